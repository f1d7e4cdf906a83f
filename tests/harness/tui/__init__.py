"""Runs the terminal UI and reads its screen."""
