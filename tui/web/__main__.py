"""`python -m starling.tui.web PORT PATH …`: the page of running nodes; a PATH is a run directory or a demo's folder."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from starling.tui.doctor import examine
from starling.tui.source import StatusSource, open_sources
from starling.tui.web.poller import IDLE_S, Poller
from starling.tui.web.server import HOST, PageServer


def main() -> int:
    """Serve until Ctrl-C or SIGTERM; the address goes to standard output. Exit 1: the port is taken."""
    if len(sys.argv) < 3 or not sys.argv[1].isdecimal():
        sys.stderr.write("usage: python -m starling.tui.web PORT PATH …\n")
        return 2
    sources, _ = open_sources([Path(argument) for argument in sys.argv[2:]])
    try:
        asyncio.run(_serve(sources, int(sys.argv[1])))
    except OSError as error:
        why = os.strerror(error.errno or 0)
        sys.stderr.write(f"starling: --port: {HOST}:{sys.argv[1]} cannot be listened on ({why}); leave it out for a free one\n")
        return 1
    return 0


async def _serve(sources: Sequence[StatusSource], port: int) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    looking = Poller(sources, examine)
    try:
        async with PageServer(looking.document).listening(port) as address:
            sys.stdout.write(f"{address}\n")
            sys.stdout.flush()
            sys.stderr.write("a page on this machine only, for anyone with this address; Ctrl-C ends it\n")
            while not ended.is_set():
                try:
                    async with asyncio.timeout(IDLE_S):
                        await ended.wait()
                except TimeoutError:
                    looking.let_go()
    finally:
        looking.close()


if __name__ == "__main__":
    sys.exit(main())
