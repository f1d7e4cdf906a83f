"""Messages, their bounds and their bytes; torch-free."""
