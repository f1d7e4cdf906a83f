"""The node in four lines: what it is, how far it got, how well it learns, what it costs."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Static

from node.status import StatusSnapshot
from tui import format as show
from tui.source import Reading

# A sign beside each word, so that colour is never the only signal.
STATES = {
    "starting": ("…", "yellow"),
    "joining": ("…", "yellow"),
    "training": ("●", "green"),
    "waiting": ("○", "yellow"),
    "finished": ("✓", "green"),
    "leaving": ("←", "yellow"),
    "failed": ("✗", "red"),
}


class Headline(Static):
    """Draws one reading."""

    def update_from(self, reading: Reading | None) -> None:
        """Draw this node; dashes where nothing is known."""
        snapshot = reading.snapshot if reading is not None else None
        self.update(_unknown(reading) if snapshot is None else _lines(snapshot))


def _unknown(reading: Reading | None) -> Text:
    name = show.clean(reading.name) if reading is not None else show.MISSING
    return Text(f"{name}  state {show.MISSING}  round {show.MISSING}  value {show.MISSING}  loss {show.MISSING}")


def _lines(snapshot: StatusSnapshot) -> Text:
    sign, colour = STATES[snapshot.state]
    text = Text()
    text.append(f"{sign} {snapshot.state}", style=f"bold {colour}")
    text.append(f"  round {show.rounds(snapshot.round, snapshot.rounds)}", style="bold")
    text.append(f"  {_value(snapshot)}  loss {show.figure(snapshot.loss)}", style="bold")
    text.append(f"  {_members(snapshot.members)}\n")
    traits = [f"{show.clean(snapshot.name)}", f"peer {show.short(snapshot.peer)}", show.clean(snapshot.task)]
    traits += [show.clean(snapshot.algorithm), show.clean(snapshot.overlay)]
    traits += [f"{show.count(snapshot.parameters)} parameters", show.clean(snapshot.device or show.MISSING)]
    text.append(" · ".join(trait or show.MISSING for trait in traits) + "\n", style="dim")
    text.append(f"up {show.duration(snapshot.uptime_s)}  steps {show.count(snapshot.local_steps)}")
    text.append(f" ({show.speed(snapshot.steps_per_s)})  ε {show.privacy(snapshot.epsilon, snapshot.delta)}")
    text.append(f"  engine restarts {snapshot.engine_restarts}")
    text.append("  rejoined" if snapshot.rejoined else "  joined late" if snapshot.joined_late else "")
    text.append(f"\nsent {show.size(snapshot.bytes_sent)} ({show.rate(snapshot.up_bytes_per_s)})")
    text.append(f"  received {show.size(snapshot.bytes_received)} ({show.rate(snapshot.down_bytes_per_s)})")
    text.append(f"  payload {show.size(snapshot.payload_bytes)}")
    return text


def _value(snapshot: StatusSnapshot) -> str:
    name = show.clean(snapshot.metric).replace("_", " ") or "value"
    at = f" (round {show.count(snapshot.value_round)})" if snapshot.value_round is not None else ""
    return f"{name} {show.figure(snapshot.value)}{at}"


def _members(members: int) -> str:
    return "1 member" if members == 1 else f"{members:,} members"
