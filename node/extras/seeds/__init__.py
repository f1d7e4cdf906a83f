"""Local steps along drawn directions, without gradients (`mix.kind = "seeds"`)."""
