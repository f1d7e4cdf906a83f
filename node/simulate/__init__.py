"""Simulated swarms: thousands of nodes as rows of one array, or dozens of whole nodes in virtual time, from one file."""
