"""The targets, by what they read."""
