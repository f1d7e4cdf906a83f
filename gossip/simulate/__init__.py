"""The reference trajectory that every shell must reproduce."""
