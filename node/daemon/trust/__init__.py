"""Reputation and evidence as services."""
