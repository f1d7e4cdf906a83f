"""Where the figures of a node go besides its own status: files, and trackers of experiments."""
