"""What can be learned: models, data, losses and figures of merit."""
