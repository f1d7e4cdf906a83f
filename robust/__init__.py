"""Rules and arithmetic of trust: pure."""
