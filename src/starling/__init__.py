"""Train a PyTorch model together, without a server."""
