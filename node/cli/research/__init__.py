"""Commands that need no swarm: simulate, overlay, bench."""
