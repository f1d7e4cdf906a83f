"""What taking part costs: speed alone and with the swarm, bytes against the caps, the machine."""

from __future__ import annotations

from rich.text import Text

from starling.node.status import format as show
from starling.node.status.snapshot import StatusSnapshot
from starling.tui.view import View
from starling.tui.widgets.panel import Panel

BAR = 10


class Costs(Panel):
    """Draws the chosen node."""

    def update_from(self, view: View) -> None:
        """Draw this node; dashes where nothing is known."""
        self.show(
            _lines(view.snapshot, view)
            if view.snapshot is not None
            else Text(f"{show.MISSING}  nothing known yet", style=view.style("dim"))
        )


def _lines(snapshot: StatusSnapshot, view: View) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")

    def line(name: str, words: str, end: str = "\n") -> None:
        text.append(f"{name:<9} ", style=view.style("dim"))
        text.append(f"{words}{end}")

    alone, paced = snapshot.steps_per_s, snapshot.paced_per_s
    kept = paced / alone if paced is not None and alone else None
    line(
        "steps",
        f"{show.speed(alone)} alone, {show.speed(paced)} with the swarm{_bar(kept)}, {show.count(snapshot.local_steps)} in all",
    )
    sent, received = (
        (snapshot.up_bytes_per_s, snapshot.up_limit_bytes_per_s),
        (snapshot.down_bytes_per_s, snapshot.down_limit_bytes_per_s),
    )
    line(
        "sent",
        f"{_capped(*sent)}, {show.size(snapshot.bytes_sent)} in all, payload {show.size(snapshot.payload_bytes)}",
    )
    line("received", f"{_capped(*received)}, {show.size(snapshot.bytes_received)} in all")
    line("exchanges", show.ended(snapshot.exchanges))
    machine = snapshot.resources
    gpu = (
        f"GPU {show.share(machine.gpu)}, {show.size(machine.gpu_memory_bytes)}"
        if machine.gpu_memory_bytes
        else f"GPU {show.share(machine.gpu)}"
    )
    line(
        "machine",
        f"CPU {show.cores(machine.cpu)}  memory {show.size(machine.memory_bytes)}  disk {show.size(machine.disk_bytes)}  {gpu}",
    )
    restarts = f"engine restarts {snapshot.engine_restarts}"
    line("privacy", f"ε {show.privacy(snapshot.epsilon, snapshot.delta)}  {restarts}", end="")
    return text


def _capped(rate: float | None, cap: int | None) -> str:
    if cap is None:
        return f"{show.rate(rate)}, no cap"
    return f"{show.rate(rate)} of {show.rate(cap)}{_bar(rate / cap if rate is not None and cap else None)}"


def _bar(part: float | None) -> str:
    return f" {show.bar(part, BAR)} {show.share(part)}" if part is not None else ""
