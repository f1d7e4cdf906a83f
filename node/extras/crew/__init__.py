"""Several machines as one member: crews, whose stages hold consecutive blocks of the model."""
