"""The training loop of a node: one `RoundLoop` for each pace, chosen once from the manifest when the node opens (`paces.py`).

loop.py          waits for the quorum, runs the loop, pauses it
steps.py         rounds of K local steps, then exchanges and Mix
slots.py         trains without pause and exchanges once a slot
local_work.py    who does the local steps: this node's engine, or it and the other stages of its crew
grants.py        how many local steps a round gets
catch_up.py      which round is next after the swarm has gone on
evaluation.py    the value of the model, and early stopping
housekeeping.py  figures, checkpoints, and what follows when the engine is lost
"""
