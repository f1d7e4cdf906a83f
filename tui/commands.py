"""The command palette, and the files that its commands write."""

import csv
import io
import re
import time
from collections.abc import Iterator
from pathlib import Path

from textual.command import DiscoveryHit, Hit, Hits, Provider

from starling.node.status.snapshot import StatusSnapshot
from starling.tui.widgets.frame import TABS

COMMANDS = (
    ("next node", "select(1)", "where there are several"),
    ("previous node", "select(-1)", "where there are several"),
    ("all nodes", "pick", "choose one, where there are several"),
    ("method and manifest", "agreed", "what the swarm agreed on, in words"),
    ("doctor", "doctor", "check the machine and the network of this node"),
    ("tour", "tour", "the pages one by one"),
    ("theme: dark or light", "toggle_theme", ""),
    ("copy peer id", "copy_peer", "of the row under the cursor, or of the node"),
    ("screenshot", "save('svg')", "of this screen, an SVG file in the current directory"),
    ("export status", "save('json')", "of this node, as `starling status --json` prints it"),
    ("export curves", "save('csv')", "of this node: curve, round, time_s, value"),
    ("quit", "quit", "the node keeps running"),
)
REPLAY = (
    ("replay: play or pause", "replay('toggle')", "at the end, from the beginning"),
    ("replay: faster", "replay('faster')", "1x, 4x, 16x"),
    ("replay: to the beginning", "replay('seek', 0)", ""),
    ("replay: to the end", "replay('seek', 1)", ""),
)


class StarlingCommands(Provider):
    """Finds commands of `starling.tui.app.StarlingApp` by name."""

    async def discover(self) -> Hits:
        for name, action, help_text in self._available():
            yield DiscoveryHit(name, lambda action=action: self._run(action), help=help_text)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, action, help_text in self._available():
            score = matcher.match(name)
            if score > 0:
                yield Hit(score, matcher.highlight(name), lambda action=action: self._run(action), help=help_text)

    def _available(self) -> Iterator[tuple[str, str, str]]:
        for key, title, name in TABS:
            yield f"go to {title}", f"open('{name}')", f"key {key}"
        yield from COMMANDS
        if getattr(self.app, "replays", False):
            yield from REPLAY

    async def _run(self, action: str) -> None:
        await self.app.run_action(f"app.{action}")


def curves_csv(snapshot: StatusSnapshot) -> str:
    """Return a line per point of each curve: curve, round, seconds since the start, value."""
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("curve", "round", "time_s", "value"))
    curves = {"loss": snapshot.loss_curve, snapshot.metric or "value": snapshot.value_curve, "distance": snapshot.distance_curve}
    for name, points in curves.items():
        table.writerows((name, point.round, point.time_s, point.value) for point in points)
    return text.getvalue()


def save(folder: Path, name: str, suffix: str, text: str, unix_s: float) -> Path:
    """Write a new file, never over another one; return its path, made of the node or screen `name` and the time `unix_s`.

    Raises OSError: it cannot be written.
    """
    safe = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.")[:64] or "node"
    stem = f"starling-{safe}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(unix_s))}"
    number = 1
    while True:
        path = folder / (f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}")
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            number += 1
        else:
            return path
