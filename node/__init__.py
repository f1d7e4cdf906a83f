"""The node: a trio daemon and a torch engine around the pure cores."""
