"""Orders of output tiles: which tile a schedule visits when, one file each."""
