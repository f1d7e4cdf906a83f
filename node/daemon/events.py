"""Facts worth telling: to the log, to the status, and a peer's faults to whoever keeps its reputation.

Everything here is bounded, because peers choose how often they are at fault: 50 events, 4,096 peers with faults, 32 reasons each,
and a fault is told when its count reaches a power of two, so that a flood of n faults makes log n lines.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

from structlog.typing import FilteringBoundLogger

from starling.node.status.snapshot import Event

MAX_EVENTS = 50
MAX_TEXT = 300
MAX_PEERS = 4096
MAX_REASONS = 32
RATE_OVER = 16  # rounds

Level = Literal["info", "warning", "error"]


class Events:
    """Satisfies `starling.node.interfaces.Reporter`.

    Args:
        log: gets every event, with its fields; None keeps no log, as in simulation.
        clock: unix time in seconds.
        on_fault: told of every single fault, (peer, reason).
    """

    def __init__(
        self, log: FilteringBoundLogger | None, *, clock: Callable[[], float], on_fault: Callable[[str, str], None]
    ) -> None:
        self._log = log
        self._clock = clock
        self.on_fault = on_fault
        self.on_event: Callable[[], object] = lambda: None
        """Called after every event."""
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._faults: dict[str, dict[str, int]] = {}

    @property
    def events(self) -> tuple[Event, ...]:
        """The last 50, oldest first."""
        return tuple(self._events)

    @property
    def faults(self) -> Mapping[str, Mapping[str, int]]:
        """Counts by peer and reason."""
        return self._faults

    def faults_of(self, peer: str) -> int:
        """All faults of one peer."""
        return sum(self._faults.get(peer, {}).values())

    def event(self, name: str, text: str, *, level: Level = "info", **fields: object) -> None:
        """One event: `name` in snake_case, `text` one line for a person, fields for the log."""
        line = _one_line(text)
        self._events.append(Event(time_s=self._clock(), name=name, text=line, level=level))
        if self._log is not None:
            tell = {"info": self._log.info, "warning": self._log.warning, "error": self._log.error}[level]
            tell(name, text=line, **fields)
        self.on_event()

    def line(self, name: str, fields: Mapping[str, object]) -> None:
        """For the log's file alone: what comes too often for the status, and for a person."""
        if self._log is not None:
            self._log.debug(name, **fields)

    def fault(self, peer: str, reason: str) -> None:
        """A peer broke the protocol: count it, tell it when it is news, and hand it to whoever judges."""
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
        self.on_fault(peer, reason)

    def _count(self, peer: str, reason: str) -> int:
        reasons = self._faults.pop(peer, {})
        self._faults[peer] = reasons  # now the most recent
        if len(self._faults) > MAX_PEERS:
            del self._faults[next(iter(self._faults))]
        if reason not in reasons and len(reasons) >= MAX_REASONS:
            reason = next(reversed(reasons))
        reasons[reason] = reasons.get(reason, 0) + 1
        return reasons[reason]


class Rate:
    """How fast a count rises, waiting included, over the last few times it was noted.

    Args:
        window: between so many notes, >= 1.
    """

    def __init__(self, window: int = RATE_OVER) -> None:
        self._notes: deque[tuple[float, int]] = deque(maxlen=window + 1)

    def note(self, now: float, count: int) -> None:
        """The count is so high; one that fell begins anew."""
        if self._notes and count < self._notes[-1][1]:
            self._notes.clear()
        self._notes.append((now, count))

    def per_s(self, now: float = -math.inf) -> float | None:
        """Its rate at the last note; told a time, it falls while the next note takes longer than usual. None before the second note."""
        if len(self._notes) < 2:
            return None
        (began, first), (ended, last) = self._notes[0], self._notes[-1]
        usual_s = (ended - began) / (len(self._notes) - 1)
        elapsed = max(ended, now - usual_s) - began
        return (last - first) / elapsed if elapsed > 0.0 else None


def _one_line(text: str) -> str:
    """Text as it may be shown on a terminal: one line, no control characters, bounded."""
    words = " ".join(text.split())
    clean = "".join(character if character.isprintable() else "·" for character in words)
    return clean if len(clean) <= MAX_TEXT else clean[: MAX_TEXT - 1] + "…"
