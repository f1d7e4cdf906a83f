"""One stage of a crew: a model divided among several machines."""
