"""Exit codes of commands that more than one of them gives; `starling --help` lists all."""

INTERRUPTED = 130  # Ctrl-C: 128 and the signal's number
