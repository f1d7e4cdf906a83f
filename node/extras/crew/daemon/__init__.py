"""The daemon's part of a crew: stage assignments, the steps of its stage, and copies of states."""
