"""One small training run in Starling and in other frameworks, on equal data: `python -m benchmarks.peers`."""
