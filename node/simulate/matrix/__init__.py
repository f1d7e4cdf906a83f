"""Simulation of all nodes of a swarm as rows of one array."""
