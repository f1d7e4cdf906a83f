"""`starling web`: show the terminal UI's contents as a page for a browser on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from starling.node.cli.common import DEFAULT_DIR
from starling.node.cli.completion import RunDirectories
from starling.node.cli.help import command
from starling.node.status.control import typed


@command(("starling web starling-2", "a running node"), ("starling web my-demo", "all nodes of a demo"))
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="PORT", help="Of 127.0.0.1; 0: a free one, another each time.")
@click.argument("paths", metavar="[DIR]…", nargs=-1, type=RunDirectories())
def web(port: int, paths: tuple[Path, ...]) -> int:
    """Watch running nodes or a demo in a browser on this machine.

    DIR is a run directory or a demo's folder (default: starling-node). Prints the address of a page that shows what `starling tui` shows,
    and serves it until Ctrl-C: to this machine alone, and to nobody without the token in the address. The page changes nothing.
    """
    from starling.node.storage.run_dir import check_holds_node

    shown = paths or (DEFAULT_DIR,)
    for path in shown:
        if path.suffix == ".jsonl":
            raise click.UsageError(f"DIR: {path} is no run directory; a record is replayed by `starling tui {typed(path)}`")
        check_holds_node(path, "DIR", or_demo=True)
    # This process becomes the page's: it has an event loop of its own, and a signal must reach it.
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "starling.tui.web", str(port), *map(str, shown)])  # noqa: S606
