"""Published methods that nodes do not use, to be measured beside those that they do. Library functions, in one process."""
