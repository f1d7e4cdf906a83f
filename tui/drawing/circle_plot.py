"""Members on a circle, edges between them: this round's links in whole lines, edges that rest in dotted ones. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable

from rich.cells import cell_len
from rich.text import Text

from starling.tui.drawing.canvas import Canvas
from starling.tui.swarm import Member, Pair, Swarm

MAX_DRAWN = 24
LABEL = 10  # cells of a name and its sign at most
DOTTED = 3
SPARSE = 6  # where nearly everybody has an edge with everybody, links are seen first


def draw(swarm: Swarm, width: int, height: int, style: Callable[[str], str]) -> Text:
    """The overlay in `width` by `height` cells: a circle, or lists of neighbors where a circle has no room.

    Members that are gone are left out of the circle.
    """
    members = [member for member in swarm.members if member.here]
    if width < 1 or height < 1:
        return Text()
    if not members:
        return Text("–  nobody known yet", style=style("dim"))
    return (
        _circle(swarm, members, width, height).text(style)
        if fits(len(members), width, height)
        else _lists(swarm, members, style)
    )


def fits(members: int, width: int, height: int) -> bool:
    """A circle of so many can be read."""
    return members <= min(MAX_DRAWN, 2 * height - 4) and width >= 2 * LABEL + 8 and height >= 7


def _circle(swarm: Swarm, members: list[Member], width: int, height: int) -> Canvas:
    canvas = Canvas(width, height)
    places = _places(members, width, height)
    links = set(swarm.links or ())
    for pair in swarm.edges:
        if pair not in links:
            _line(canvas, places, pair, "dim", DOTTED if len(swarm.edges) <= 2 * len(members) else SPARSE)
    own = {member.peer for member in members if member.own}
    for pair in sorted(links, key=lambda pair: bool(own & {*pair})):
        _line(canvas, places, pair, "own" if own & {*pair} else "good", 1)
    for member in members:
        x, y = places[member.peer]
        name = _name(member)
        column, row = round(x / 2), round((y - 1.5) / 4)
        left = x < width - 1
        canvas.write(column - cell_len(name) + 1 if left else column, row, name, "own" if member.own else member.role)
    return canvas


def _name(member: Member) -> str:
    """The sign on the circle's side of the name cannot be told from here, so the sign comes first; brackets mark the chosen node."""
    label = member.label if cell_len(member.label) <= LABEL - 4 else f"…{member.label[-(LABEL - 5) :]}"
    return f"{member.sign}[{label}]" if member.own else f"{member.sign} {label}"


def _places(members: list[Member], width: int, height: int) -> dict[str, tuple[float, float]]:
    """Dots: an ellipse that leaves room for names to its left and right, the first member on top."""
    across, down = width - 1 - 2 * LABEL, 2 * height - 4
    middle = (width - 0.5, 2 * height - 0.5)
    angles = (2 * math.pi * number / len(members) for number in range(len(members)))
    return {
        member.peer: (middle[0] + across * math.sin(angle), middle[1] - down * math.cos(angle))
        for member, angle in zip(members, angles, strict=True)
    }


def _line(canvas: Canvas, places: dict[str, tuple[float, float]], pair: Pair, role: str, every: int) -> None:
    if pair[0] in places and pair[1] in places:
        canvas.line(places[pair[0]], places[pair[1]], role, every=every)


def _lists(swarm: Swarm, members: list[Member], style: Callable[[str], str]) -> Text:
    """A line per member: ━ whom it meets in this round, ┄ with whom it has an edge besides."""
    labels = {member.peer: member.label for member in members}
    text = Text(no_wrap=True, end="")
    links = set(swarm.links or ())
    for number, member in enumerate(members):
        text.append("\n" if number else "")
        text.append(_name(member), style=style("own" if member.own else member.role))
        for sign, role, pairs in (("━", "good", links), ("┄", "dim", set(swarm.edges) - links)):
            met = sorted(
                labels[p] for pair in pairs if member.peer in pair for p in pair if p != member.peer and p in labels
            )
            if met:
                text.append(f" {sign} {', '.join(met)}", style=style(role))
    return text
