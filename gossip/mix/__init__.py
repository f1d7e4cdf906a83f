"""Mixing algorithms, each as functions of one node."""
