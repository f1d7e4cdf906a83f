"""Selectors: the coordinates of a vector that an exchange is about."""
