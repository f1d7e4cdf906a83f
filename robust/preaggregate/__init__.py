"""What is done to vectors before a combining rule sees them."""
