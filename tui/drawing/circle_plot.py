"""Members on a circle and the edges between them: solid where the pair exchanges in this round, else dotted. Pure."""

import math
from collections.abc import Callable

from rich.cells import cell_len
from rich.text import Text

from starling.tui.drawing.canvas import Canvas
from starling.tui.swarm import Member, Pair, Swarm

MAX_DRAWN = 24
ACROSS = 8  # least cells between the names left and right of the circle
DOTTED = 3
SPARSE = 6  # spacing of dots in a dense graph, so that this round's links stand out


def draw(swarm: Swarm, width: int, height: int, style: Callable[[str], str]) -> Text:
    """Return the overlay in `width` by `height` cells: a circle, or lists of neighbors if a circle does not fit.

    Departed members are left out of the circle.
    """
    members = [member for member in swarm.members if member.here]
    if width < 1 or height < 1:
        return Text()
    if not members:
        return Text("–  no member known yet", style=style("dim"))
    label = max(cell_len(_name(member)) for member in members)
    if not fits(len(members), label, width, height):
        return _lists(swarm, members, style)
    return _circle(swarm, members, label, width, height).text(style)


def fits(members: int, label: int, width: int, height: int) -> bool:
    """Return whether a circle of this many members, with labels of this many cells, is legible."""
    return members <= min(MAX_DRAWN, 2 * height - 4) and width >= 2 * label + ACROSS and height >= 7


def _circle(swarm: Swarm, members: list[Member], label: int, width: int, height: int) -> Canvas:
    canvas = Canvas(width, height)
    places = _places(members, label, width, height)
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
    """Return the full name, since shortened ones could look alike; brackets mark the chosen node."""
    return f"{member.sign}[{member.label}]" if member.own else f"{member.sign} {member.label}"


def _places(members: list[Member], label: int, width: int, height: int) -> dict[str, tuple[float, float]]:
    """Return the dots of an ellipse with space for names to its left and right, the first member on top."""
    across, down = width - 1 - 2 * label, 2 * height - 4
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
    """Return a line per member: ━ its partners in this round, ┄ its other edges."""
    labels = {member.peer: member.label for member in members}
    text = Text(no_wrap=True, end="")
    links = set(swarm.links or ())
    for number, member in enumerate(members):
        text.append("\n" if number else "")
        text.append(_name(member), style=style("own" if member.own else member.role))
        for sign, role, pairs in (("━", "good", links), ("┄", "dim", set(swarm.edges) - links)):
            partners = sorted(labels[p] for pair in pairs if member.peer in pair for p in pair if p != member.peer and p in labels)
            if partners:
                text.append(f" {sign} {', '.join(partners)}", style=style(role))
    return text
