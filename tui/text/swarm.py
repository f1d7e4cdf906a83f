"""Figures of the swarm."""

from statistics import fmean

from starling.node.status import format as show
from starling.tui.swarm import Member, Swarm
from starling.tui.text.cell import Cell
from starling.tui.view import View

COLUMNS = ("member", "state", "round", "edges", "known by")


def legend(swarm: Swarm) -> str:
    """Return the legend of the drawing's lines, with their numbers."""
    pairs = show.MISSING if swarm.links is None else len(swarm.links)
    return f"━ pairs of this round {pairs}  ┄ edges {len(swarm.edges)}"


def facts(swarm: Swarm, view: View) -> list[tuple[str, str]]:
    """Return (name, text) for each figure of the swarm."""
    metric = show.metric(view.snapshot.metric) if view.snapshot is not None else ""
    here = sum(member.here for member in swarm.members)
    lines = [
        ("members", f"{show.count(here or None)} ({len(swarm.members) - here:,} gone), {swarm.attached} attached"),
        (metric or "value", _spread(swarm.values)),
        ("round", show.count(swarm.round)),
        ("steps", f"{show.speed(swarm.steps_per_s)} of {swarm.attached} attached"),
        ("sent", f"{show.rate(swarm.sent_per_s)} of {swarm.attached} attached"),
    ]
    if swarm.distances:
        lines.append(("distance", _spread(swarm.distances)))
    if swarm.share is not None:
        lines.append(("its share", f"{show.share(swarm.share)} of their steps"))
    return lines


def row(member: Member, swarm: Swarm) -> tuple[Cell, ...]:
    """Return a cell for each column; brackets mark the chosen node."""
    return (
        Cell(f"[{member.label}]", "own") if member.own else Cell(member.label),
        Cell(f"{member.sign} {member.state}", member.role),
        Cell(show.count(member.round)),
        Cell(show.count(member.edges)),
        Cell(f"{member.known_by} of {swarm.attached}"),
    )


def _spread(figures: tuple[float, ...]) -> str:
    """Return mean, smallest and largest as text."""
    if not figures:
        return show.MISSING
    if len(figures) == 1:
        return show.small(figures[0])
    return f"{show.small(fmean(figures))} ({show.small(min(figures))}–{show.small(max(figures))})"
