"""`python -m starling.tui PATH …`: show running nodes or recorded runs; a PATH is a run directory, a demo's folder or a record.jsonl."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from starling.tui.app import StarlingApp
from starling.tui.first_run import first_run
from starling.tui.source import open_sources


def main() -> int:
    """Run until a person quits, by a key, Ctrl-C or a signal. Exit 2: a file is no record."""
    if len(sys.argv) < 2:
        sys.stderr.write("usage: python -m starling.tui PATH …\n")
        return 2
    try:
        sources, playback = open_sources([Path(argument) for argument in sys.argv[1:]])
    except ValueError as error:
        sys.stderr.write(f"starling: {error}\n")
        return 2
    asyncio.run(_run(StarlingApp(sources, playback, welcome=first_run)))
    return 0


async def _run(app: StarlingApp) -> None:
    """Run the app to its end; signals end it in order, so that the terminal is restored."""
    if sys.platform != "win32":  # whose event loop handles none
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, app.exit)
    await app.run_async()


def leave(code: int) -> NoReturn:
    """End the process at once. Textual's key-reading thread may loop for ever at full speed after the terminal was closed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
