"""Members of a swarm on the local network, found by multicast DNS: nobody needs to know an address. zeroconf, in a thread of its own.

Told are the peer id, the port, the private addresses, and a hash of the swarm's id, so that who has no invite does not learn which swarm
it is. What others tell is a hint of any quality: the MAX_FOUND heard last are remembered, private addresses alone are dialled, and
who answers must prove to be the peer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

from starling.gossip.limits import keep
from starling.node.interfaces import Reporter
from starling.node.net.libp2p.addresses import Endpoint, at, parse
from starling.node.net.libp2p.destinations import is_name, kind_of

if TYPE_CHECKING:
    from zeroconf import ServiceInfo, Zeroconf

T = TypeVar("T")
SERVICE = "_starling._tcp.local."
MAX_FOUND = 32
PER_PEER = 4
ASK_S, START_S, STOP_S = 3.0, 10.0, 0.5
POLL_S = 3.0
MAX_WAITING = 64


def mark_of(swarm: str) -> bytes:
    """Return the hash by which a swarm is announced on the local network."""
    return hashlib.blake2b(b"starling/lan/1\0" + swarm.encode(), digest_size=16).hexdigest().encode()


def told(addresses: Iterable[str]) -> tuple[Endpoint, ...]:
    """Return this node's addresses that may be announced on the local network: private ones, of one port."""
    found = [parse(each) for each in addresses]
    private = [each for each in found if not (is_name(each) or each.relay) and kind_of(each.host) == "private"]
    return tuple(each for each in private if each.port == private[0].port)


@dataclass(slots=True)
class Found:
    """Announcements of one swarm on the local network, as one node received them. Pure."""

    swarm: str
    me: str
    _known: dict[str, tuple[str, ...]] = field(default_factory=dict)  # peer -> addresses

    def heard(self, properties: Mapping[bytes, bytes | None], hosts: Sequence[str], port: int | None) -> tuple[str, ...]:
        """Return the new addresses, with /p2p/ID, of an announcement, which may contain anything."""
        if properties.get(b"swarm") != mark_of(self.swarm) or not 1 <= (port or 0) <= 65535:
            return ()
        peer = (properties.get(b"peer") or b"").decode("ascii", "replace")
        if peer == self.me:
            return ()
        found = []
        for host in hosts[:PER_PEER]:
            try:
                endpoint = parse(str(at(host, port or 0, peer)))
                if endpoint.peer and kind_of(endpoint.host) == "private":
                    found.append(str(endpoint))
            except ValueError:
                continue
        before = self._known.get(peer, ())
        fresh = tuple(each for each in dict.fromkeys(found) if each not in before)
        if fresh or peer in self._known:
            keep(self._known, peer, tuple(found), MAX_FOUND)
        return fresh


class Lan:
    """Announces this node on the local network, and calls `found` with the addresses of members there.

    `addresses` are this node's now. Where there is no multicast an event says so, once.
    """

    def __init__(
        self, swarm: str, peer: str, addresses: Callable[[], Sequence[str]], found: Callable[[str], object], report: Reporter
    ) -> None:
        self._peer, self._swarm = peer, swarm
        self._addresses, self._found, self._report = addresses, found, report
        self._core = Found(swarm, peer)
        self._names, self._to_ask = trio.open_memory_channel[str](MAX_WAITING)

    async def serve(self) -> None:
        """Announce and search until cancelled; do nothing on a node without a private address, such as one on loopback alone."""
        while not told(self._addresses()):  # noqa: ASYNC110 - rare, and no event says it
            await trio.sleep(POLL_S)
        try:
            with trio.fail_after(START_S):
                zeroconf = await in_thread(self._open)
        except (OSError, trio.TooSlowError) as error:
            why = error if isinstance(error, OSError) else "no answer"
            self._report.event("no_lan", f"members on the local network are not looked for: {why}")
            return
        try:
            browser = await in_thread(partial(self._browse, zeroconf, trio.lowlevel.current_trio_token()))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._announce, zeroconf)
                async for name in self._to_ask:
                    await self._ask(zeroconf, name)
        finally:
            with trio.move_on_after(STOP_S) as scope:
                scope.shield = True
                await in_thread(zeroconf.close)
            del browser

    @staticmethod
    def _open() -> Zeroconf:
        from zeroconf import Zeroconf  # noqa: PLC0415 — a fifth of a second, and often not needed

        return Zeroconf()

    def _browse(self, zeroconf: Zeroconf, token: trio.lowlevel.TrioToken) -> object:
        from zeroconf import ServiceBrowser, ServiceStateChange  # noqa: PLC0415

        def changed(name: str, state_change: ServiceStateChange, **_others: object) -> None:
            """Queue a found name; called in zeroconf's thread."""
            if state_change is not ServiceStateChange.Removed:
                token.run_sync_soon(self._queue, name)

        return ServiceBrowser(zeroconf, SERVICE, handlers=[changed])

    def _queue(self, name: str) -> None:
        try:
            self._names.send_nowait(name)
        except trio.WouldBlock:  # dropped: a flooding node is asked again when it repeats its announcement
            return

    async def _ask(self, zeroconf: Zeroconf, name: str) -> None:
        info = await in_thread(partial(zeroconf.get_service_info, SERVICE, name, int(ASK_S * 1000)))
        if info is not None:
            for address in self._core.heard(info.properties, info.parsed_addresses(), info.port):
                self._found(address)

    async def _announce(self, zeroconf: Zeroconf) -> None:
        """Announce this node's addresses, and again when they change."""
        before: tuple[Endpoint, ...] = ()
        info: ServiceInfo | None = None
        while True:
            now = told(self._addresses())
            if now and now != before:
                if info is not None:
                    await in_thread(partial(zeroconf.unregister_service, info))
                info = self._info(now)
                await in_thread(partial(zeroconf.register_service, info, None, allow_name_change=True))
                before = now
            await trio.sleep(POLL_S)

    def _info(self, endpoints: tuple[Endpoint, ...]) -> ServiceInfo:
        from zeroconf import ServiceInfo  # noqa: PLC0415

        label = hashlib.blake2b(self._peer.encode(), digest_size=8).hexdigest()
        return ServiceInfo(
            SERVICE,
            f"{label}.{SERVICE}",
            port=endpoints[0].port,
            server=f"{label}.local.",
            properties={b"swarm": mark_of(self._swarm), b"peer": self._peer.encode()},
            parsed_addresses=[each.host for each in endpoints[:PER_PEER]],
        )


async def in_thread(work: Callable[[], T]) -> T:
    """Run a blocking call of a library in a thread, which is abandoned on cancellation."""
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)  # type: ignore[call-arg]
