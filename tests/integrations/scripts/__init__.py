"""Realistic training loops, each in a process that is a member of a swarm.

python -m tests.integrations.scripts.NAME FOLDER PART
"""
