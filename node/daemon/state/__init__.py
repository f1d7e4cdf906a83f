"""Manifest and model transfer."""
