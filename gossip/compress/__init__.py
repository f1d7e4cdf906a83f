"""From a difference of vectors to few bytes and back."""
