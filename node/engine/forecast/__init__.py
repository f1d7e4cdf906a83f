"""How long a local step will take on this machine, before one is done."""
