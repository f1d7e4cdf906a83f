"""Exchange transactions, rounds and pace as state machines, torch-free."""
