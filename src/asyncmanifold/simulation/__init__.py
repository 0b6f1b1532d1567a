"""The deterministic simulator: schedules on a virtual clock, and the event loop."""
