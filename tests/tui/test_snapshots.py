"""Every screen, cell by cell, at 80x24 and 160x48, dark and light; every run tests the small dark ones.

Expected screens are in tests/tui/snapshots, a file per screen and size: the text, then for either theme the runs of cells that share a
style. After an intended change: `STARLING_SNAPSHOTS=write pytest -m acceptance tests/tui/test_snapshots.py`, and review the difference.
(pytest-textual-snapshot compares pictures; it pins a syrupy that does not run with our pytest.)
"""

import asyncio
import os
import time
from itertools import groupby
from pathlib import Path
from string import ascii_letters

import pytest

from starling.tui.app import StarlingApp
from tests.harness.snapshots import NOW
from tests.harness.tui.looking import CannedSource, examined, screen_text, settle, strips, swarm

SNAPSHOTS = Path(__file__).parent / "snapshots"
SCREENS = {
    "node": ["1"],
    "swarm": ["2"],
    "peers": ["3"],
    "peer": ["3", "enter"],
    "events": ["escape", "4"],
    "edge": ["5", "up", "down"],
    "help": ["question_mark"],
    "agreed": ["escape", "1", "m"],
    "nodes": ["escape", "o"],
    "doctor": ["escape", "d"],
    "tour": ["escape", "3", "question_mark", "enter", "enter", "enter"],
}

pytestmark = pytest.mark.slow


def styles(app):
    """Return lines like `a12 b3`, and the styles that a and b denote."""
    names, lines = {}, []
    for strip in strips(app):
        cells = [segment.style for segment in strip for _ in range(segment.cell_length)]
        runs = []
        for style, run in groupby(cells, key=_look):
            name = names.setdefault(style, ascii_letters[len(names)])
            runs.append(f"{name}{len(list(run))}")
        lines.append(" ".join(runs))
    return "\n".join((*lines, *(f"{name} = {style}" for style, name in names.items())))


def _look(style):
    if style is None:
        return "plain"
    words = [word for word in ("bold", "dim", "italic", "underline", "reverse") if getattr(style, word)]
    colors = (color.name if color is not None else "default" for color in (style.color, style.bgcolor))
    return " ".join((*words, " on ".join(colors)))


async def show(size, themes):
    app = StarlingApp([CannedSource([swarm()])], clock=lambda: NOW, poll_s=3600.0, examine=examined)
    app.animation_level = "none"
    seen = {}
    async with app.run_test(size=size) as pilot:
        for theme in themes:
            await settle(pilot, app)
            for name, keys in SCREENS.items():
                for key in keys:
                    await pilot.press(key)
                    await settle(pilot, app)
                seen[name, theme] = screen_text(app), styles(app)
            await pilot.press("escape", "t")
    return seen


@pytest.mark.parametrize(
    ("size", "themes"),
    [
        pytest.param((80, 24), ("dark",), id="80x24"),
        pytest.param((80, 24), ("dark", "light"), id="80x24-light", marks=pytest.mark.acceptance),
        pytest.param((160, 48), ("dark", "light"), id="160x48", marks=pytest.mark.acceptance),
    ],
)
def test_every_screen_equals_its_snapshot(size, themes, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        seen = asyncio.run(show(size, themes))
    finally:
        monkeypatch.undo()
        time.tzset()
    for name in SCREENS:
        text, _ = seen[name, "dark"]
        assert all(seen[name, theme][0] == text for theme in themes)  # both themes show the same text
        found = "\n".join((*(line.rstrip() for line in text.splitlines()), ""))
        for theme in themes:
            found += f"\n--- {theme}\n{seen[name, theme][1]}\n"
        path = SNAPSHOTS / f"{name}-{size[0]}x{size[1]}.txt"
        if os.environ.get("STARLING_SNAPSHOTS") == "write" and len(themes) == 2:
            path.parent.mkdir(exist_ok=True)
            path.write_text(found)
        expected = path.read_text() if len(themes) == 2 else path.read_text().partition("\n--- light\n")[0]
        assert found == expected, f"{path.name}: is this meant? see the top of {Path(__file__).name}"
