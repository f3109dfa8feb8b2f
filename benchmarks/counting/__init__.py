"""Counts instead of times: the work of schedules, a simulated L2 cache, hardware counters."""
