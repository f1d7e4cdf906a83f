"""A real node that lies: `python -m tests.harness.lying_node LIE ARGUMENTS …` is `starling ARGUMENTS …` with altered messages."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from starling.node.cli.main import main as starling
from starling.node.daemon import main as daemon
from starling.node.net.api import Network
from tests.harness.hostile import answering, late, silent, useless
from tests.harness.swarms import lie

LIES: dict[str, Callable[[Network], None]] = {
    "useless": partial(answering, lane="exchange", answer=useless),
    "mute": partial(answering, lane="exchange", answer=silent),
    "late": partial(answering, lane="exchange", answer=late(8)),
    "garbled": partial(lie, lane="exchange", forge=lambda _message: [b"\xc1" * 100], to=lambda _peer: True),
}


def main(name: str, *arguments: str) -> int:
    """Run that command; it lies from the moment its network is open."""
    honest = daemon.node_network

    @asynccontextmanager
    async def lying(*given: object) -> AsyncIterator[Network]:
        async with honest(*given) as network:
            LIES[name](network)
            yield network

    daemon.node_network = lying
    return starling(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
