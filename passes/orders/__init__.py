"""Orders: passes that change the order in which schedules visit output tiles; one in each file."""
