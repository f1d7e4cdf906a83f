"""A swarm of real node processes on loopback."""
