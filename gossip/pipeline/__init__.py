"""One replica on several machines: who holds which blocks, and the order in which micro-batches go through them. Torch-free."""
