"""Claims about the whole product as recipes, one runner that checks them, and the results it stored."""
