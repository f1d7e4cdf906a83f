"""Weights by how alike the update histories of peers are, kept as count-sketches."""
