"""Schedules: passes that assign the work on output tiles to workgroups; one in each file."""
