"""Count a schedule's iterations and fix-ups, simulate the L2 cache, read hardware counters."""
