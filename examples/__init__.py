"""Examples of schedules written outside the library, with the public functions of `passes.kit`."""
