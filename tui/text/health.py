"""Health of a node as text: its state, its problem, and what it does for the others."""

from collections.abc import Callable

from starling.node.status import format as show
from starling.node.status.snapshot import StatusSnapshot
from starling.tui.source import Reading
from starling.tui.view import View

FRESH_S = 3.0  # a node publishes every second
RECENT_S = 60.0
OTHER_STATES = {
    "starting": "starting",
    "joining": "looking for members of its swarm",
    "waiting": "waiting for its quorum; nothing is wrong",
    "leaving": "has left, or is saying goodbye and saving",
    "failed": "stopped by an error; its log.jsonl says which",
}

Line = tuple[str, str, str]
"""A sign, the role of its color, and words."""


def problem(view: View) -> str | None:
    """Return what is wrong with the connection to the chosen node, else with the node; None if nothing is."""
    reading = view.reading
    if reading is None:
        return f"no node in {view.waiting_for} yet; waiting for one to start"
    snapshot = reading.snapshot
    if snapshot is None:
        return reading.trouble or f"attached to {reading.name}; waiting for its first snapshot"
    age_s = (view.now if reading.as_of is None else reading.as_of) - snapshot.time_s
    if reading.ended:
        return f"{reading.result or 'this node has ended'}; its state of {show.duration(age_s)} ago is shown"
    if reading.trouble is not None:
        return f"{reading.trouble} (its state of {show.duration(age_s)} ago is shown; attaching again)"
    if age_s > FRESH_S:
        return f"no news from this node for {show.duration(age_s)}; see its log.jsonl"
    return snapshot.problem


def troubled(reading: Reading) -> bool:
    """Return whether the node's name is marked, because it has a problem or cannot be reached."""
    return (reading.trouble is not None and not reading.ended) or (reading.snapshot is not None and reading.snapshot.problem is not None)


def value(snapshot: StatusSnapshot) -> str:
    """Return the last evaluation, with its name and round."""
    name = show.metric(snapshot.metric) or "value"
    at = f" (round {show.count(snapshot.value_round)})" if snapshot.value_round is not None else ""
    return f"{name} {show.figure(snapshot.value)}{at}"


def trains(snapshot: StatusSnapshot) -> list[tuple[str, str]]:
    """Return (name, text) rows that describe what is trained, and how."""
    how = [("", snapshot.method)] if snapshot.method else [("mix", snapshot.algorithm), ("overlay", snapshot.overlay)]
    size = show.count(snapshot.parameters)
    rows = [("swarm", snapshot.name), ("task", snapshot.task), ("parameters", size), *how]
    return [(name, show.clean(words) or show.MISSING) for name, words in rows]


def members(members: int) -> str:
    """Return "1 member", "8 members"."""
    return "1 member" if members == 1 else f"{members:,} members"


def health(snapshot: StatusSnapshot, label: Callable[[str], str] = show.short) -> Line:
    """Return the health of a node; `label` gives peer ids their labels on the screen."""
    if snapshot.state == "failed":
        return ("✗", "bad", OTHER_STATES["failed"])
    if snapshot.state in OTHER_STATES:
        words = _model(snapshot, label) or show.clean(snapshot.activity) or OTHER_STATES[snapshot.state]
        return ("…", "warn", words)
    if snapshot.state == "finished":
        return ("✓", "good", f"finished after {_exchanges(snapshot.exchanges.committed)}")
    return _training(snapshot, label)


def beside(alone: float | None, snapshot: StatusSnapshot) -> str:
    """Return the end of `health`'s line in a demo: the value that node 0's data reach without a swarm; "" if that is not known."""
    if alone is None:
        return ""
    return f"; alone: {show.metric(snapshot.metric) or 'value'} {show.figure(alone)}"


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
        return ("○", "warn", f"{_exchanges(len(recent))} in the last minute and none committed; training without peers")
    if snapshot.transactions:
        silent_s = snapshot.time_s - snapshot.transactions[-1].time_s
        return ("○", "warn", f"no exchange for {show.duration(silent_s)}; training without peers")
    if snapshot.exchanges.committed:
        return ("✓", "good", f"helping: {_exchanges(snapshot.exchanges.committed)} so far")
    return ("○", "warn", "no exchange yet; training without peers")


def _model(snapshot: StatusSnapshot, label: Callable[[str], str]) -> str:
    models = (each for each in snapshot.transfers if each.kind == "model")
    if (most := max(models, key=lambda each: each.done_bytes, default=None)) is None:
        return ""
    return f"fetching the swarm's model from {label(most.peer)}: {show.progress(most)}"


def _exchange(snapshot: StatusSnapshot, label: Callable[[str], str]) -> str:
    """Return the exchange that takes longest: models of many megabytes need minutes on a slow line."""
    exchanges = (each for each in snapshot.transfers if each.kind == "exchange")
    if (longest := max(exchanges, key=lambda each: each.seconds, default=None)) is None:
        return ""
    return f"exchange with {label(longest.peer)} for {show.duration(longest.seconds)}: {show.progress(longest)}"


def _exchanges(number: int) -> str:
    return "1 exchange" if number == 1 else f"{number:,} exchanges"
