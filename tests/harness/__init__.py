"""Shared by tests: example data, fakes and ways to observe a program."""
