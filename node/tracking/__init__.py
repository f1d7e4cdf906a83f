"""Outputs of a node's figures besides its own status: files, and experiment trackers."""
