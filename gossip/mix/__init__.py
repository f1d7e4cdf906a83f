"""Mixing algorithms as seen from one node."""
