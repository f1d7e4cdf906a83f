"""Published methods that nodes do not use, to be measured beside those that they do. Functions in one process."""
