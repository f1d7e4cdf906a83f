"""Differential privacy of local steps."""
