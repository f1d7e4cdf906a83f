"""Compress a difference of vectors to few bytes, and restore it."""
