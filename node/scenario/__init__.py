"""Swarms of whole nodes in one process, under virtual time."""
