"""Name the peers that answer probes and send nothing about exchanges: in one event each, and for as long as it lasts in the status.

It is no fault: a peer whose messages are lost on the way cannot be told from one that sends none. Nobody else is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import trio

from starling.node.interfaces import Reporter
from starling.node.status.format import short

MUTE_S = 30.0
"""Seconds without a word before a peer is named: more than a slow node takes for a round where others take a fraction of a second."""


@dataclass(slots=True)
class MuteWatch:
    """Watches for peers that say nothing. `since` returns when the first of a peer's links that expired without a message was opened."""

    report: Reporter
    since: Callable[[], Mapping[str, float]]
    _named: frozenset[str] = frozenset()

    @property
    def words(self) -> tuple[str, ...]:
        """Return a line for each peer that is named."""
        return tuple(f"{short(peer)} answers no exchange and asks for none" for peer in sorted(self._named))

    def look(self) -> None:
        """Report whom to name from now on; whoever has said something is no longer named."""
        named = frozenset(peer for peer, opened in self.since().items() if trio.current_time() >= opened + MUTE_S)
        for peer in sorted(named - self._named):
            text = f"{peer} answers probes, but no exchange, and asks for none: it is hardly waited for until it does"
            self.report.event("peer_mute", text, level="warning", peer=peer)
        self._named = named
