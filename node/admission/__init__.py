"""Who may be a member: credentials and the rules they are judged by. No I/O, clock or chance of its own; torch-free."""
