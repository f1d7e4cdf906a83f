"""Addresses to begin with: of bootstrap peers, members of an earlier run and the local network. The manifest is fetched from them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from textwrap import shorten

import trio

from starling.gossip.errors import RemoteProtocolError, TransportError
from starling.gossip.wire.schema import MAX_ADDRESSES
from starling.node.config import manifest as manifests
from starling.node.config.schema import Manifest
from starling.node.daemon.membership.service import Membership
from starling.node.daemon.state.transfer import Transfer
from starling.node.interfaces import Reporter
from starling.node.net.api import Network

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # seconds between attempts to fetch the manifest
NEXT_S = 0.5  # seconds by which each address is dialled before the next
OWN_SHARED = 4  # addresses of this node in an invite that also has others'
MAX_LOOKED_AT = 64  # members without an answered dial whose addresses are considered for an invite
MAX_ADDED = 64  # addresses stored beyond those that the owner gave
VAIN_DIALS = 2  # failed dials of an added address, after which another may replace it
MAX_WHY = 80  # characters of why an address gives no manifest
MAX_REMEMBERED = 16  # addresses of members stored for the next run …
STORE_S = 10.0  # … and the seconds between writes


class Bootstrap:
    """Addresses of the first peers to dial: from the settings or the invite, of members met in an earlier run, and of those found on the
    local network.
    """

    def __init__(
        self, bootstrap: tuple[str, ...], known: tuple[str, ...], remember: Callable[[tuple[str, ...]], object], report: Reporter
    ) -> None:
        self.given = tuple(dict.fromkeys(bootstrap))
        self.addresses = tuple(dict.fromkeys((*bootstrap, *known)))
        self._added = trio.Event()
        self._vain: dict[str, int] = {}  # failed dials of each added address
        self._kept = frozenset(known)
        self._remember = remember
        self._report = report
        self._refusals: dict[str, str] = {}
        """Why each address gave no manifest, when it was last asked."""

    def add(self, address: str) -> None:
        """Add an address at which a member may be found.

        Of MAX_ADDED the one dialled in vain most often, VAIN_DIALS times at least, makes room: who announces many is in nobody's way.
        """
        if address in self.addresses:
            return
        if len(self.addresses) >= len(self.given) + MAX_ADDED:
            vainest = max(self._vain, key=lambda each: self._vain[each], default="")
            if self._vain.get(vainest, 0) < VAIN_DIALS:
                return
            del self._vain[vainest]
            self.addresses = tuple(each for each in self.addresses if each != vainest)
        self.addresses = (*self.addresses, address)
        self._vain[address] = 0
        self._added.set()
        self._added = trio.Event()

    def dialled(self, address: str, *, reached: bool) -> bool:
        """Record whether an added address was reached -> whether to keep it."""
        if address in self._vain:
            self._vain[address] = 0 if reached else self._vain[address] + 1
        return address in self.addresses

    async def additions(self, known: Sequence[str]) -> AsyncIterator[str]:
        """Yield the addresses beyond those `known`, as they are added, without end."""
        seen = set(known)
        while True:
            for address in self.addresses:
                if address not in seen:
                    seen.add(address)
                    yield address
            if seen.issuperset(self.addresses):  # no address came while the last one was tried
                seen.intersection_update(self.addresses)
                await self._added.wait()

    async def fetch_manifest(self, transfer: Transfer, network: Network, swarm: str) -> Manifest:
        """Fetch the manifest of a swarm from the first peer that has it; try until one does."""
        pause, warned = FIRST_PAUSE_S, False
        while True:
            asked = self.addresses
            found = await self._first_manifest(transfer, network, swarm) if asked else None
            if found is not None:
                return found
            if not warned:
                text = f"no bootstrap peer gives the swarm's manifest, still trying: {listed(self._refusals)}"
                self._report.event("bootstrap_unreachable", text, level="warning")
                warned = True
            with trio.move_on_after(pause) as waited:
                if self.addresses == asked:
                    await self._added.wait()
            pause = min(2 * pause, LONGEST_PAUSE_S) if waited.cancelled_caught else pause

    async def _first_manifest(self, transfer: Transfer, network: Network, swarm: str) -> Manifest | None:
        """Ask all addresses, each NEXT_S after the one before or as soon as that failed: one that is silent must not delay the others.

        Those that are added meanwhile are asked at once. -> None once all have failed
        """
        found: list[Manifest] = []
        known = self.addresses
        self._refusals.clear()
        left = set(known)  # not yet failed

        async def ask(address: str, failed: trio.Event, scope: trio.CancelScope) -> None:
            try:
                peer = await network.dial(address, given=address in self.given)
                raw = await transfer.fetch_manifest(peer, swarm)
                found.append(manifests.from_bytes(raw, swarm, peer))
                scope.cancel()
            except RemoteProtocolError as error:
                self._report.fault(error.peer, error.reason)
                self._refusals[address] = "it is not of this swarm" if error.reason == "unknown_swarm" else error.reason
            except TransportError as error:
                self._refusals[address] = error.reason
            except trio.TooSlowError:
                self._refusals[address] = "it takes the connection and answers nothing"
            failed.set()
            left.discard(address)
            if not left:
                scope.cancel()

        async def ask_added(nursery: trio.Nursery) -> None:
            async for address in self.additions(known):
                left.add(address)
                nursery.start_soon(ask, address, trio.Event(), nursery.cancel_scope)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_added, nursery)
            for address in known:
                failed = trio.Event()
                nursery.start_soon(ask, address, failed, nursery.cancel_scope)
                with trio.move_on_after(NEXT_S):
                    await failed.wait()
        return found[0] if found else None

    async def stage(self, transfer: Transfer, network: Network, stages: int) -> int:
        """Return the stage of a crew that is wanted most, according to the first peer that answers; try until one does. The first node
        takes 0.
        """
        warned = not self.addresses
        while self.addresses:
            for address in self.addresses:
                with suppress(TransportError, trio.TooSlowError):
                    stage = await transfer.ask_stage(await network.dial(address, given=address in self.given))
                    if stage < stages:
                        return stage
            if not warned:
                text = "no bootstrap peer says which stage of a crew is wanted; still trying, or choose one, `--stage 1`"
                self._report.event("bootstrap_unreachable", text, level="warning")
                warned = True
            await trio.sleep(FIRST_PAUSE_S)
        return 0

    async def watch(self, membership: Membership) -> None:
        """Store addresses of members every STORE_S and at the end; rarely, because writing to a slow disk blocks the event loop."""
        try:
            while True:
                await trio.sleep(STORE_S)
                self._store(membership)
        finally:
            self._store(membership)

    def _store(self, membership: Membership) -> None:
        known = tuple(address for peer in membership.members for address in membership.origins.met(peer)[:1])[:MAX_REMEMBERED]
        if known and self._kept != set(known):
            self._kept = frozenset(known)
            self._remember(known)


def listed(refusals: Mapping[str, str]) -> str:
    """Return the reasons, each with the addresses that it is of, as 10.0.0.7:4001 where they are of that kind."""
    places: dict[str, list[str]] = {}
    for address, why in refusals.items():
        place = re.sub(r"^/(?:ip4|dns[46]?)/([^/]+)/tcp/(\d+)$", r"\1:\2", address.rpartition("/p2p/")[0] or address)
        places.setdefault(shorten(why.removeprefix(f"{place}: "), MAX_WHY, placeholder=" …"), []).append(place)
    return "; ".join(f"{', '.join(at)}: {why}" for why, at in places.items()) or "there is no address"


def to_share(
    own: Sequence[str], members: Sequence[str], answered: Callable[[str], str | None], met: Callable[[str], tuple[str, ...]]
) -> tuple[str, ...]:
    """Return at most MAX_ADDRESSES addresses for an invite: this node's, and one each of some other members.

    First those where a dial of this node was `answered`, then those that were `met` at a host which they announce. `members`: the others
    alive, in the order in which they are taken.
    """
    reached = {peer: address for peer in members if (address := answered(peer)) is not None}
    unsure = [peer for peer in members if peer not in reached][:MAX_LOOKED_AT]
    others = chain(reached.values(), (address for peer in unsure for address in met(peer)[:1]))
    return tuple(dict.fromkeys(chain(own[:OWN_SHARED], islice(others, MAX_ADDRESSES), own[OWN_SHARED:])))[:MAX_ADDRESSES]
