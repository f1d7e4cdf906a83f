"""Training: a synchronous object in a separate process."""
