"""What is counted rather than timed: schedules' work, a simulated L2 cache, hardware counters."""
