"""Who may be a member: credentials and the rules they are judged by. Pure but for `issue`, which keeps what was given out; torch-free."""
