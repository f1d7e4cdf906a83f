"""Is the node well, and does it help? One line for a volunteer. Pure."""

from __future__ import annotations

from starling.node.status import format as show
from starling.node.status.snapshot import StatusSnapshot

RECENT_S = 60.0
BUSY = {
    "starting": "it gets ready",
    "joining": "it looks for members of its swarm",
    "waiting": "it waits for its quorum; nothing is wrong",
    "leaving": "it says goodbye and saves",
    "failed": "it stopped on an error; its log.jsonl says which",
}


def verdict(snapshot: StatusSnapshot) -> tuple[str, str, str]:
    """A sign, the role of its color, and what there is to say."""
    if snapshot.state in BUSY:
        return ("✗", "bad", BUSY[snapshot.state]) if snapshot.state == "failed" else ("…", "warn", BUSY[snapshot.state])
    if snapshot.state == "finished":
        return ("✓", "good", f"it is done and helped in {_exchanges(snapshot.exchanges.committed)}")
    recent = [each for each in snapshot.transactions if snapshot.time_s - each.time_s <= RECENT_S]
    done = [each for each in recent if each.outcome == "committed"]
    if done:
        span_s = max(1.0, snapshot.time_s - recent[0].time_s)
        peers = len({each.peer for each in done})
        whom = "a peer" if peers == 1 else f"{peers} peers"
        return ("✓", "good", f"it helps: {_exchanges(len(done))} with {whom} in the last {show.duration(span_s)}")
    if recent:
        return ("○", "warn", f"the last {_exchanges(len(recent))} came to nothing; it goes on learning alone")
    if snapshot.transactions:
        silent_s = snapshot.time_s - snapshot.transactions[-1].time_s
        return ("○", "warn", f"it learns alone: no exchange for {show.duration(silent_s)}")
    if snapshot.exchanges.committed:
        return ("✓", "good", f"it helped in {_exchanges(snapshot.exchanges.committed)} so far")
    return ("○", "warn", "it learns, and has met no peer yet")


def _exchanges(number: int) -> str:
    return "1 exchange" if number == 1 else f"{number:,} exchanges"
