"""Events of a node, for the log and the status; and counts of peers' faults.

Everything here is bounded, because peers choose how often they are at fault: 50 events, 4,096 peers with faults, 32 reasons each.
A fault is an event when its count reaches a power of two, so that a flood of n faults makes log n lines.
"""

from collections import deque
from collections.abc import Callable, Mapping

import trio

from starling.gossip.limits import keep
from starling.node.interfaces import Level
from starling.node.status.format import clean
from starling.node.status.snapshot import Event
from starling.node.storage.log import NodeLog

MAX_EVENTS = 50
MAX_TEXT = 300
MAX_PEERS = 4096
MAX_REASONS = 32


class Changes:
    """Wakes every task that waits for the next change of the node's status."""

    def __init__(self) -> None:
        self.event = trio.Event()
        """Set at the next change, and then replaced: take it before reading the status, so that no change is missed."""

    def notify(self) -> None:
        """Tell all who wait that the status has changed."""
        self.event.set()
        self.event = trio.Event()


class Events:
    """Events and fault counts of one node; `clock` is unix time in seconds. A `log` of None, as in simulation, keeps none."""

    def __init__(self, log: NodeLog | None, *, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self.changes = Changes()  # notified after every event
        self._recent: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._faults: dict[str, dict[str, int]] = {}

    @property
    def recent(self) -> tuple[Event, ...]:
        """Return the last 50 events, oldest first."""
        return tuple(self._recent)

    @property
    def faults(self) -> Mapping[str, Mapping[str, int]]:
        """Return counts of faults by peer and reason."""
        return self._faults

    def faults_of(self, peer: str) -> int:
        """Return the number of faults of one peer."""
        return sum(self._faults.get(peer, {}).values())

    def event(self, name: str, text: str, *, level: Level = "info", **fields: object) -> None:
        """Add an event: its name in snake_case, one line for a person, and fields for the log."""
        line = _one_line(text)
        self._recent.append(Event(time_s=self._clock(), name=name, text=line, level=level))
        if self._log is not None:
            self._log.write(level, name, text=line, **fields)
        self.changes.notify()

    def line(self, name: str, fields: Mapping[str, object]) -> None:
        """Write a line to the log file only: it is too frequent for the status and the terminal."""
        if self._log is not None:
            self._log.write("debug", name, **fields)

    def fault(self, peer: str, reason: str) -> None:
        """Count a peer's protocol fault; counts of 1, 2, 4, 8 … are events."""
        count = self._count(peer, reason)
        if count & (count - 1) == 0:
            text = f"{peer} broke the protocol: {reason}" + ("" if count == 1 else f", {count} times")
            self.event("peer_fault", text, level="warning", peer=peer, reason=reason, count=count)

    def _count(self, peer: str, reason: str) -> int:
        reasons = self._faults.get(peer, {})
        keep(self._faults, peer, reasons, MAX_PEERS)
        if reason not in reasons and len(reasons) >= MAX_REASONS:
            reason = next(reversed(reasons))
        reasons[reason] = reasons.get(reason, 0) + 1
        return reasons[reason]


def _one_line(text: str) -> str:
    """Return text that is safe on a terminal: one line, no control characters, bounded length."""
    safe = clean(text)
    return safe if len(safe) <= MAX_TEXT else safe[: MAX_TEXT - 1] + "…"
