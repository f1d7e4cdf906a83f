"""The command palette: everything the keys do, by name."""

from __future__ import annotations

from collections.abc import Iterator

from textual.command import DiscoveryHit, Hit, Hits, Provider

from starling.tui.widgets.tabs import TABS

COMMANDS = (
    ("next node", "select(1)", "where there are several"),
    ("previous node", "select(-1)", "where there are several"),
    ("theme: dark or light", "turn_theme", "the other one"),
    ("copy peer id", "copy_peer", "under the cursor, or the node's own"),
    ("quit", "quit", "the node goes on"),
)
REPLAY = (
    ("replay: play or pause", "play", "at the end: from the beginning"),
    ("replay: faster", "faster", "1x, 4x, 16x"),
    ("replay: to the beginning", "seek(0)", ""),
    ("replay: to the end", "seek(1)", ""),
)


class StarlingCommands(Provider):
    """Finds commands of `starling.tui.app.StarlingApp` by name."""

    async def discover(self) -> Hits:
        """All of them, while nothing is typed."""
        for name, action, explained in self._known():
            yield DiscoveryHit(name, lambda action=action: self._do(action), help=explained)

    async def search(self, query: str) -> Hits:
        """Those whose name is like the query."""
        matcher = self.matcher(query)
        for name, action, explained in self._known():
            score = matcher.match(name)
            if score > 0:
                yield Hit(score, matcher.highlight(name), lambda action=action: self._do(action), help=explained)

    def _known(self) -> Iterator[tuple[str, str, str]]:
        for key, title, name in TABS:
            yield f"go to {title}", f"open('{name}')", f"key {key}"
        yield from COMMANDS
        if getattr(self.app, "replays", False):
            yield from REPLAY

    async def _do(self, action: str) -> None:
        await self.app.run_action(f"app.{action}")
