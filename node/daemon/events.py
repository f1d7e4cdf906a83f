"""Events of a node: written to the log, kept for the status; and counts of peers' faults.

Everything here is bounded, because peers choose how often they are at fault: 50 events, 4,096 peers with faults, 32 reasons each.
A fault is an event when its count reaches a power of two, so that a flood of n faults makes log n lines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from structlog.typing import FilteringBoundLogger

from starling.node.interfaces import Level
from starling.node.status.snapshot import Event

MAX_EVENTS = 50
MAX_TEXT = 300
MAX_PEERS = 4096
MAX_REASONS = 32


class Events:
    """Events and fault counts of one node.

    Args:
        log: gets every event, with its fields; None keeps no log, as in simulation.
        clock: unix time in seconds.
        changed: called after every event.
    """

    def __init__(
        self, log: FilteringBoundLogger | None, *, clock: Callable[[], float], changed: Callable[[], object] = lambda: None
    ) -> None:  # fmt: skip
        self._log = log
        self._clock = clock
        self.changed = changed
        self._recent: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._faults: dict[str, dict[str, int]] = {}

    @property
    def recent(self) -> tuple[Event, ...]:
        """The last 50, oldest first."""
        return tuple(self._recent)

    @property
    def faults(self) -> Mapping[str, Mapping[str, int]]:
        """Counts by peer and reason."""
        return self._faults

    def faults_of(self, peer: str) -> int:
        """All faults of one peer."""
        return sum(self._faults.get(peer, {}).values())

    def event(self, name: str, text: str, *, level: Level = "info", **fields: object) -> None:
        """Add an event.

        Args:
            name: in snake_case.
            text: one line for a person.
            level: how serious it is.
            fields: for the log.
        """
        line = _one_line(text)
        self._recent.append(Event(time_s=self._clock(), name=name, text=line, level=level))
        if self._log is not None:
            write = {"info": self._log.info, "warning": self._log.warning, "error": self._log.error}[level]
            write(name, text=line, **fields)
        self.changed()

    def line(self, name: str, fields: Mapping[str, object]) -> None:
        """Write to the log file only: for what is too frequent for the status and the terminal."""
        if self._log is not None:
            self._log.debug(name, **fields)

    def fault(self, peer: str, reason: str) -> None:
        """Count a peer's protocol fault; counts of 1, 2, 4, 8 … are events."""
        count = self._count(peer, reason)
        if count & (count - 1) == 0:
            times = "" if count == 1 else f", {count} times"
            self.event(
                "peer_fault",
                f"{peer} broke the protocol: {reason}{times}",
                level="warning",
                peer=peer,
                reason=reason,
                count=count,
            )

    def _count(self, peer: str, reason: str) -> int:
        reasons = self._faults.pop(peer, {})
        self._faults[peer] = reasons  # now the most recent
        if len(self._faults) > MAX_PEERS:
            del self._faults[next(iter(self._faults))]
        if reason not in reasons and len(reasons) >= MAX_REASONS:
            reason = next(reversed(reasons))
        reasons[reason] = reasons.get(reason, 0) + 1
        return reasons[reason]


def _one_line(text: str) -> str:
    """Text as it may be shown on a terminal: one line, no control characters, bounded."""
    words = " ".join(text.split())
    clean = "".join(character if character.isprintable() else "·" for character in words)
    return clean if len(clean) <= MAX_TEXT else clean[: MAX_TEXT - 1] + "…"
