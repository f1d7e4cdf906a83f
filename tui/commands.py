"""The command palette: every key's action by name, and what has no key."""

from __future__ import annotations

from collections.abc import Iterator

from textual.command import DiscoveryHit, Hit, Hits, Provider

from starling.tui.widgets.tabs import TABS

COMMANDS = (
    ("next node", "select(1)", "where there are several"),
    ("previous node", "select(-1)", "where there are several"),
    ("theme: dark or light", "toggle_theme", ""),
    ("copy peer id", "copy_peer", "of the row under the cursor, or of the node"),
    ("screenshot", "save('svg')", "of this screen, an SVG file in the current directory"),
    ("export status", "save('json')", "of this node, as `starling status --json` prints it"),
    ("export curves", "save('csv')", "of this node: curve, round, time_s, value"),
    ("quit", "quit", "the node keeps running"),
)
REPLAY = (
    ("replay: play or pause", "play", "at the end, from the beginning"),
    ("replay: faster", "faster", "1x, 4x, 16x"),
    ("replay: to the beginning", "seek(0)", ""),
    ("replay: to the end", "seek(1)", ""),
)


class StarlingCommands(Provider):
    """Finds commands of `starling.tui.app.StarlingApp` by name."""

    async def discover(self) -> Hits:
        """All of them, before anything is typed."""
        for name, action, help_text in self._available():
            yield DiscoveryHit(name, lambda action=action: self._run(action), help=help_text)

    async def search(self, query: str) -> Hits:
        """Those whose name matches the query."""
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
