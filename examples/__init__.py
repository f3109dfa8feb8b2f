"""Examples that use public names only: schedules written with `passes.kit`, and a transformer."""
