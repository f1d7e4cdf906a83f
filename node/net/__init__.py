"""Frames to and from peers: libp2p in production, memory in simulation."""
