"""Where others are: bootstrap peers, members of an earlier run, and who is remembered for the next; and the manifest, fetched from them."""

from __future__ import annotations

from collections.abc import Callable

import trio

from starling.gossip.errors import RemoteProtocolError, TransportError
from starling.node.config import manifest as manifests
from starling.node.config.schema import Manifest
from starling.node.daemon.membership.service import Membership
from starling.node.daemon.state.transfer import Transfer
from starling.node.interfaces import Reporter
from starling.node.net.api import Network

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # between attempts to fetch the manifest
MAX_REMEMBERED = 16  # addresses of members kept for the next run …
LOOK_S = 10.0  # … looked at so often


class Bootstrap:
    """Peers to begin with.

    Args:
        bootstrap: addresses that the person gave.
        known: addresses of members of an earlier run.
        remember: told the addresses of some members now and then, for the next run.
        report: told when nobody answers.
    """

    def __init__(
        self, bootstrap: tuple[str, ...], known: tuple[str, ...], remember: Callable[[tuple[str, ...]], object], report: Reporter
    ) -> None:  # fmt: skip
        self.addresses = tuple(dict.fromkeys((*bootstrap, *known)))
        self._kept = frozenset(known)
        self._remember = remember
        self._report = report

    async def fetch_manifest(self, transfer: Transfer, network: Network, swarm: str) -> Manifest:
        """What the swarm of this id has agreed on, from the first that knows; goes on until one does."""
        pause, said = FIRST_PAUSE_S, False
        while True:
            for address in self.addresses:
                try:
                    peer = await network.dial(address)
                    raw = await transfer.fetch_manifest(peer, swarm)
                    return manifests.from_bytes(raw, swarm, peer)
                except RemoteProtocolError as error:
                    self._report.fault(error.peer, error.reason)
                except (TransportError, trio.TooSlowError):
                    continue
            if not said:
                text = f"no bootstrap peer answers ({', '.join(self.addresses)}); trying on"
                self._report.event("bootstrap_unreachable", text, level="warning")
                said = True
            await trio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def watch(self, membership: Membership) -> None:
        """Remember members now and then, and at the end: a disk may be slow, and all else waits for it."""
        try:
            while True:
                await trio.sleep(LOOK_S)
                self._look(membership)
        finally:
            self._look(membership)

    def _look(self, membership: Membership) -> None:
        present = [member for peer, member in membership.table.items() if member.present and peer != membership.me]
        known = tuple(address for member in present for address in member.record.addresses[:1])[:MAX_REMEMBERED]
        if known and self._kept != set(known):
            self._kept = frozenset(known)
            self._remember(known)
