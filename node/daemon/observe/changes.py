"""A signal that a node's status has changed, for services that show or store it."""

from __future__ import annotations

import trio


class Changes:
    """Wakes every task that waits for the next change."""

    def __init__(self) -> None:
        self.event = trio.Event()
        """Set at the next change, and then replaced: take it before reading the status, so that no change is missed."""

    def notify(self) -> None:
        """The status has changed."""
        self.event.set()
        self.event = trio.Event()
