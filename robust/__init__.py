"""Robust aggregation, attacks, evidence and reputation: pure functions and state machines."""
