"""Training: a synchronous object in a process of its own."""
