"""The terminal UI: draws status snapshots of nodes and of recorded runs."""
