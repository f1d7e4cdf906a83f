"""Make a user's training script a member of a swarm, in the script's own process."""
