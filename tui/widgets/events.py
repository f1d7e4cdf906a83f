"""Events as lines: time, sign of the level, words."""

from __future__ import annotations

import re
import time

from rich.text import Text

from starling.node.status import format as show
from starling.node.status.snapshot import Event
from starling.tui.drawing.palette import LEVEL_SIGNS
from starling.tui.view import View

PEER_ID = re.compile(r"(/p2p/)?(12D3Koo\w{40,})")


def event_line(event: Event, view: View, node: str = "") -> Text:
    """One event; `node` is its node's name where several are shown."""
    when = time.strftime("%H:%M:%S", time.localtime(event.time_s))
    sign, role = LEVEL_SIGNS[event.level]
    line = Text(no_wrap=True, end="")
    line.append(f"{when} ", style=view.style("dim"))
    if node:
        line.append(f"{show.clean(node)} ", style=view.style("own"))
    line.append(
        f"{sign} {PEER_ID.sub(lambda found: _named(found, view), show.clean(event.text or event.name))}",
        style=view.style(role),
    )
    return line


def _named(found: re.Match[str], view: View) -> str:
    """A label for the peer; within an address the end of its id, as a label there would look like part of the address."""
    return f"{found[1]}{show.short(found[2])}" if found[1] else view.label(found[2])
