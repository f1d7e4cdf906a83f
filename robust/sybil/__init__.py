"""Telling identities apart that learn from the same data: weights by how alike the histories of their updates are."""
