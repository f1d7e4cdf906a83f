"""Overlays: the mixing matrix of each round, one row at a time. Torch-free."""
