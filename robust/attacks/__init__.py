"""Byzantine behaviours, for experiments and tests."""
