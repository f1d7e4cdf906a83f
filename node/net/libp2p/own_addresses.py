"""Addresses at which others reach this node: from this machine's interfaces, routers, relays and peers; reports changes."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import trio

from starling.node.interfaces import Reporter
from starling.node.net.libp2p import addresses
from starling.node.net.libp2p.addresses import Endpoint
from starling.node.net.libp2p.announcing import Announcing
from starling.node.net.libp2p.destinations import Kind, own_kinds

INTERFACES_S = 3.0  # seconds between checks of this machine's addresses, each a few tenths of a millisecond


class OwnAddresses:
    """Finds and announces the addresses of one host.

    Args:
        belong: is given the kinds of these addresses.
        moved: called after each change.
        looked: called after each check of the interfaces.
    """

    def __init__(
        self,
        announcing: Announcing,
        report: Reporter,
        *,
        belong: Callable[[Iterable[Kind]], None],
        moved: Callable[[], None],
        looked: Callable[[], None],
    ) -> None:
        self._announcing, self._report = announcing, report
        self._belong, self._moved, self._looked = belong, moved, looked
        self._use()

    @property
    def known(self) -> tuple[str, ...]:
        """Return multiaddrs with /p2p/ID under which others may dial us."""
        return tuple(map(str, self._announcing.known))

    @property
    def announced(self) -> tuple[str, ...]:
        return tuple(map(str, self._announcing.told))

    @property
    def local(self) -> tuple[str, ...]:
        """Return multiaddrs with /p2p/ID of this machine's interfaces, where we listen."""
        return tuple(map(str, self._bound))

    @property
    def relayed(self) -> tuple[str, ...]:
        """Return addresses, through relays, at which others reach us."""
        return tuple(map(str, self._announcing.relayed)) if self._announcing.hidden else ()

    async def watch(self) -> None:
        """Check the interfaces regularly, until cancelled: a laptop moves to another network."""
        while True:
            await trio.sleep(INTERFACES_S)
            self.poll()

    def poll(self) -> None:
        """Find this node's addresses again."""
        if self._announcing.poll(addresses.interfaces()):
            self._use()
            self._moved()
            known = self.known
            self._report.event("addresses_changed", f"this node's addresses are now {', '.join(known)}", addresses=known)
        self._looked()

    def found(self, *, hidden: bool, host: str) -> None:
        """Announce only relays, as others cannot dial us; or this host too, at which they do, "" for none that is new."""
        self._announcing.hidden = hidden
        if host != self._announcing.observed:
            self._announcing.observed = host
            self.poll()

    def leased(self, outside: tuple[str, int] | None) -> None:
        """Announce the host and port that the router forwards to us; None: it does so no more."""
        with suppress(ValueError):  # the other end reported something that is no address
            self._announcing.leased = None if outside is None else (addresses.canonical(outside[0]), outside[1])
            self.poll()

    def use_relays(self, relays: Sequence[str], endpoints: tuple[Endpoint, ...]) -> None:
        """Announce addresses through the relays at which we have a reservation."""
        self._announcing.relayed = endpoints
        if self._announcing.hidden:
            through = f"reached through a relay of {' and of '.join(relays)}"
            text = through if relays else "no member relays for this node any more"
            self._report.event("relays", text, relays=tuple(relays))

    @property
    def _bound(self) -> tuple[Endpoint, ...]:
        return tuple(addresses.reachable(self._announcing.bound, self._announcing.peer, self._announcing.hosts))

    def _use(self) -> None:
        self._belong(own_kinds(self._announcing.known, self._bound))
