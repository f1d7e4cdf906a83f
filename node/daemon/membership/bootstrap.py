"""Addresses to begin with, of bootstrap peers and members of an earlier run; the manifest is fetched from them."""

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
STORE_S = 10.0  # … stored so often


class Bootstrap:
    """Addresses of peers to begin with: from the settings or the invite, which the owner gave, and of members met in an earlier run."""

    def __init__(
        self, bootstrap: tuple[str, ...], known: tuple[str, ...], remember: Callable[[tuple[str, ...]], object], report: Reporter
    ) -> None:  # fmt: skip
        self.given = tuple(dict.fromkeys(bootstrap))
        self.addresses = tuple(dict.fromkeys((*bootstrap, *known)))
        self._kept = frozenset(known)
        self._remember = remember
        self._report = report

    async def fetch_manifest(self, transfer: Transfer, network: Network, swarm: str) -> Manifest:
        """Fetch the manifest of a swarm from the first peer that has it; tries until one does."""
        pause, warned = FIRST_PAUSE_S, False
        while True:
            for address in self.addresses:
                try:
                    peer = await network.dial(address, given=address in self.given)
                    raw = await transfer.fetch_manifest(peer, swarm)
                    return manifests.from_bytes(raw, swarm, peer)
                except RemoteProtocolError as error:
                    self._report.fault(error.peer, error.reason)
                except (TransportError, trio.TooSlowError):
                    continue
            if not warned:
                text = f"no bootstrap peer answers ({', '.join(self.addresses)}); still trying"
                self._report.event("bootstrap_unreachable", text, level="warning")
                warned = True
            await trio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def watch(self, membership: Membership) -> None:
        """Store addresses of members every STORE_S and at the end; rarely, because writing to a slow disk blocks the event loop."""
        try:
            while True:
                await trio.sleep(STORE_S)
                self._store(membership)
        finally:
            self._store(membership)

    def _store(self, membership: Membership) -> None:
        known = tuple(address for peer in membership.members for address in membership.met(peer)[:1])[:MAX_REMEMBERED]
        if known and self._kept != set(known):
            self._kept = frozenset(known)
            self._remember(known)
