"""Published methods that nodes do not use, for comparison. Functions in one process."""
