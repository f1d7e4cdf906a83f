"""Exchange services: pairwise and pulled."""
