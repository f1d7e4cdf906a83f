"""Tasks: models, data, losses and metrics."""
