"""Codecs and combining rules, measured on this machine."""
