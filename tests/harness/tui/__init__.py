"""The terminal UI, run and read."""
