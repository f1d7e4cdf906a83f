"""Published methods that nodes do not use, to compare with those that they do. Functions in one process."""
