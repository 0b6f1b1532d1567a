"""The deterministic simulator: schedules on a virtual clock, executors, and the event loop."""
