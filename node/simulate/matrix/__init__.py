"""All nodes of a swarm as rows of one array."""
