"""Calls between daemon and engine."""
