"""Schedules: which workgroup does which part of the work, one file each."""
