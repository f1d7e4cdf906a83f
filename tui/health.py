"""Whether a node is well and contributes to its swarm, in one line. Pure."""

from __future__ import annotations

from collections.abc import Callable

from starling.node.status import format as show
from starling.node.status.snapshot import StatusSnapshot

RECENT_S = 60.0
OTHER_STATES = {
    "starting": "starting",
    "joining": "looking for members of its swarm",
    "waiting": "waiting for its quorum; nothing is wrong",
    "leaving": "saying goodbye and saving",
    "failed": "stopped by an error; its log.jsonl says which",
}

Line = tuple[str, str, str]
"""A sign, the role of its color, and words."""


def health(snapshot: StatusSnapshot, label: Callable[[str], str] = show.short) -> Line:
    """What a volunteer wants to know first.

    Args:
        snapshot: of the node.
        label: peer id -> what it is called on the screen.
    """
    if snapshot.state == "failed":
        return ("✗", "bad", OTHER_STATES["failed"])
    if snapshot.state in OTHER_STATES:
        words = _model(snapshot, label) or show.clean(snapshot.activity) or OTHER_STATES[snapshot.state]
        return ("…", "warn", words)
    if snapshot.state == "finished":
        return ("✓", "good", f"finished after {_exchanges(snapshot.exchanges.committed)}")
    return _training(snapshot, label)


def _training(snapshot: StatusSnapshot, label: Callable[[str], str]) -> Line:
    recent = [each for each in snapshot.transactions if snapshot.time_s - each.time_s <= RECENT_S]
    done = [each for each in recent if each.outcome == "committed"]
    if done:
        span_s = max(1.0, snapshot.time_s - recent[0].time_s)
        peers = len({each.peer for each in done})
        with_whom = "a peer" if peers == 1 else f"{peers} peers"
        return ("✓", "good", f"helping: {_exchanges(len(done))} with {with_whom} in the last {show.duration(span_s)}")
    if words := _model(snapshot, label) or _exchange(snapshot, label):
        return ("⇄", "warn", words)
    if recent:
        return ("○", "warn", f"{_exchanges(len(recent))} in the last minute and none committed; training alone")
    if snapshot.transactions:
        silent_s = snapshot.time_s - snapshot.transactions[-1].time_s
        return ("○", "warn", f"no exchange for {show.duration(silent_s)}; training alone")
    if snapshot.exchanges.committed:
        return ("✓", "good", f"helping: {_exchanges(snapshot.exchanges.committed)} so far")
    return ("○", "warn", "no exchange yet; training alone")


def _model(snapshot: StatusSnapshot, label: Callable[[str], str]) -> str:
    models = [each for each in snapshot.transfers if each.kind == "model"]
    if not models:
        return ""
    most = max(models, key=lambda each: each.done_bytes)
    return f"fetching the swarm's model from {label(most.peer)}: {show.progress(most)}"


def _exchange(snapshot: StatusSnapshot, label: Callable[[str], str]) -> str:
    """The exchange that takes longest: models of many megabytes need minutes on a slow line."""
    exchanges = [each for each in snapshot.transfers if each.kind == "exchange"]
    if not exchanges:
        return ""
    longest = max(exchanges, key=lambda each: each.seconds)
    return f"exchange with {label(longest.peer)} for {show.duration(longest.seconds)}: {show.progress(longest)}"


def _exchanges(number: int) -> str:
    return "1 exchange" if number == 1 else f"{number:,} exchanges"
