"""What a node says of itself, as data; all that the terminal UI imports."""
