"""The daemon's side of the engine process."""
