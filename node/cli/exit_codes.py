"""Exit codes shared by several commands; `starling --help` lists all."""

INTERRUPTED = 130  # Ctrl-C: 128 and the signal's number
