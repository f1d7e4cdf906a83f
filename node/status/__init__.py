"""The status of a node as data, and how to ask for it; all that the terminal UI imports of the node."""
