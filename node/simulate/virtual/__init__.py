"""Whole nodes in virtual time."""
