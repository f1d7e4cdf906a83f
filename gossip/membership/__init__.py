"""Membership of a swarm: signed records, failure detector, anti-entropy; torch-free."""
