"""Pictures of characters."""
