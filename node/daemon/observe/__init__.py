"""Status, control socket, metrics and records of a running node."""
