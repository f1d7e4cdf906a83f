"""What makes a training script of the user's own a member of a swarm, in the script's own process."""
