"""What is wrong, on the first lines; hidden while nothing is."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Static

from starling.node.status import format as show
from starling.tui.source import Reading

FRESH_S = 3.0  # a node publishes every second


class Problem(Static):
    """One to three lines; takes no room while all is well."""

    def __init__(self) -> None:
        super().__init__(id="problem", markup=False)
        self.display = False
        self._shown: str | None = None

    def update_from(self, reading: Reading | None, waiting_for: str, now: float) -> None:
        """Show what is wrong with this reading: the connection first, then the node.

        Args:
            reading: the node's; None when no node is known.
            waiting_for: the source's name, shown while no node is known.
            now: unix time.
        """
        text = self._text(reading, waiting_for, now)
        if text != self._shown:
            self._shown = text
            self.display = text is not None
            self.update(Text(f"! {show.clean(text)}") if text is not None else Text())

    def _text(self, reading: Reading | None, waiting_for: str, now: float) -> str | None:
        if reading is None:
            return f"no node in {waiting_for} yet; waiting for one to start"
        snapshot = reading.snapshot
        if snapshot is None:
            return reading.trouble or f"attached to {reading.name}; waiting for its first snapshot"
        age_s = now - snapshot.time_s
        if reading.ended:
            return f"this node has ended; its state of {show.duration(age_s)} ago is shown"
        if reading.trouble is not None:
            return f"{reading.trouble} (its state of {show.duration(age_s)} ago is shown; attaching again)"
        if age_s > FRESH_S:
            return f"no news from this node for {show.duration(age_s)}; see its log.jsonl"
        return snapshot.problem
