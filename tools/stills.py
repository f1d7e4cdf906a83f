"""Stills of a recorded run, as SVG: `python tools/stills.py --to docs/stills RECORD …`.

One file per screen, and one of the light theme. Needs no terminal and no running node; a record always gives the same pictures.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from starling.tui.app import StarlingApp
from starling.tui.replay import Playback
from starling.tui.source import RecordSource, StatusSource, open_sources

STILLS = {"node": ("1",), "swarm": ("2",), "peers": ("3",), "events": ("4", "a"), "edge": ("5", "down", "down"), "light": ("1", "t")}
"""Names of pictures and the keys that lead to them."""


def take(records: Sequence[Path], folder: Path, *, at: float, size: tuple[int, int], chosen: int = 0) -> list[Path]:
    """Write the stills.

    Args:
        records: files written by nodes, >= 1.
        folder: where the pictures go; made if it is missing.
        at: the moment, as a share of the whole run, 0 to 1.
        size: columns and lines.
        chosen: which record's node is looked at, by its place.

    Returns:
        The files written.

    Raises:
        ValueError: one of the files is no record.
        OSError: a picture cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sources, playback = open_sources(records, clock=lambda: 0.0)
    if playback is None or not all(isinstance(source, RecordSource) for source in sources):
        raise ValueError(f"one of {', '.join(map(str, records))} is not there")
    playback.toggle()
    playback.seek(at)
    before = ["n"] * chosen
    written = []
    for name, keys in STILLS.items():
        path = folder / f"{name}.svg"
        path.write_text(asyncio.run(_take(sources, playback, (*before, *keys), size)))
        written.append(path)
    return written


async def _take(sources: Sequence[StatusSource], playback: Playback, keys: Sequence[str], size: tuple[int, int]) -> str:
    app = StarlingApp(sources, playback, clock=lambda: playback.position().time_s)
    app.animation_level = "none"
    app.title = "starling demo"
    async with app.run_test(size=size) as pilot:
        for key in keys:
            await pilot.press(key)
        for _ in range(10):  # the last line with keys takes some turns of the event loop
            await pilot.pause()
        app.draw()
        await pilot.pause()
        return app.export_screenshot(simplify=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write stills of the records on the command line."""
    parser = argparse.ArgumentParser(prog="python tools/stills.py", description="Stills of a recorded run, as SVG.")
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD", help="record.jsonl of a node")
    parser.add_argument("--to", type=Path, default=Path("docs/stills"), help="folder (default: docs/stills)")
    parser.add_argument("--at", type=float, default=0.9, help="moment, a share of the whole run (default: 0.9)")
    parser.add_argument("--size", default="100x30", help="columns x lines (default: 100x30)")
    parser.add_argument("--node", type=int, default=0, help="place of the record whose node is looked at (default: 0)")
    options = parser.parse_args(arguments)
    columns, _, lines = options.size.partition("x")
    if not (columns.isdecimal() and lines.isdecimal() and int(columns) > 0 and int(lines) > 0):
        parser.error(f"--size: must be columns x lines, got {options.size!r}; try --size 100x30")
    if not 0 <= options.at <= 1:
        parser.error(f"--at: must be in [0, 1], got {options.at:g}; try --at 0.9")
    try:
        for path in take(options.records, options.to, at=options.at, size=(int(columns), int(lines)), chosen=options.node):
            sys.stdout.write(f"{path}\n")
    except (ValueError, OSError) as error:
        sys.stderr.write(f"starling: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
