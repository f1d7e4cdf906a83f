"""Ways to lie, for experiments and tests."""
