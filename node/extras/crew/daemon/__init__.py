"""The daemon's side of a crew: seats, the steps of its stages, and copies of their states."""
