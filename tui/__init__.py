"""The terminal UI: draws snapshots, holds no state of a node."""
