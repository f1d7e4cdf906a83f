"""Algorithms: pure functions on flat vectors, and state machines that get time and chance as arguments."""
