"""Rounds in which a few members train and a few average, while all others sleep (`pace.kind = "sampled"`)."""
