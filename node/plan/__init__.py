"""Estimate what a model needs, which machines can train it and how fast: arithmetic before anything is downloaded. Torch-free."""
