"""Measurements that a volunteer can repeat on their own machine."""
