"""Which coordinates of a vector an exchange is about."""
