"""One replica on several machines: the stage of each machine, and the order of micro-batches. Torch-free."""
