"""One stage of a crew: a model that several machines hold in parts."""
