"""A network in memory and virtual time, for whole nodes under `MockClock(autojump_threshold=0)`.

A hub holds the peers, the connections between them and the frames under way. A frame belongs to the connection it was
sent on: when that is gone (crash, disconnect, refusal) so is the frame. Faults are rules, see `starling.node.net.faults`; rules
apply to dials as well, which try three times. Frame rates are not limited here: virtual time has no load to shed.

One system task delivers and one per node and lane hands out, so that joining needs no nursery: they live as long
as the trio run and never raise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from types import MappingProxyType

import trio

from starling.gossip.errors import LocalProtocolError, PeerUnreachable
from starling.gossip.wire.schema import LANES, MAX_FRAME_BYTES, Lane
from starling.node.config.schema import LimitsSection
from starling.node.net.api import Connected, Disconnected, Inbound, Traffic
from starling.node.net.faults import DEFAULT_DELAY_S, Deliver, Drop, Rule, delay
from starling.node.net.inbox import EventQueue, Inbox

DIAL_TRIES = 3
DIAL_PATIENCE_S = 0.3


def address_of(peer: str) -> str:
    """The one address of a peer on a memory network."""
    return f"/memory/{peer}/p2p/{peer}"


@dataclass(slots=True, eq=False)
class _Connection:
    """Between two peers; the dicts are per sending end."""

    free_at: dict[str, float] = field(default_factory=dict)
    last_due: dict[tuple[str, Lane], float] = field(default_factory=dict)


@dataclass(slots=True, order=True)
class _UnderWay:
    due: float
    number: int
    connection: _Connection = field(compare=False)
    dst: str = field(compare=False)
    inbound: Inbound = field(compare=False)


class MemoryHub:
    """All peers of a simulated network and the connections between them.

    Args:
        rules: (src, dst, now) -> Deliver | Drop | None, asked in order for every frame; the first answer wins. The list
            `rules` may be changed while the network runs, and `origins`, the public prefixes of peers that are to have one.
        seed: of the small delay (0.5 to 1.5 ms) of frames no rule has an opinion on.
    """

    def __init__(self, rules: Iterable[Rule] = (), seed: int = 0) -> None:
        self.rules = list(rules)
        self.origins: dict[str, str] = {}
        self._usually = delay(DEFAULT_DELAY_S, DEFAULT_DELAY_S / 2, seed)
        self._peers: dict[str, MemoryNetwork] = {}
        self._connections: dict[frozenset[str], _Connection] = {}
        self._under_way: list[_UnderWay] = []
        self._number = 0
        self._changed: trio.Event | None = None

    def join(self, peer_id: str, limits: LimitsSection | None = None) -> MemoryNetwork:
        """A place in the network for a peer that has none.

        Args:
            peer_id: its id.
            limits: only `inbox_frames` counts here.
        """
        if peer_id in self._peers:
            raise ValueError(f"{peer_id} is on this network already")
        if self._changed is None:
            self._changed = trio.Event()
            trio.lowlevel.spawn_system_task(self._deliver)
        network = self._peers[peer_id] = MemoryNetwork(self, peer_id, limits or LimitsSection())
        return network

    def crash(self, peer_id: str) -> None:
        """The peer is gone from one moment to the next: its connections vanish, its own network is dead."""
        network = self._peers.pop(peer_id)
        for key in sorted((key for key in self._connections if peer_id in key), key=sorted):
            self._sever(key)
        network.stop()

    def restart(self, peer_id: str) -> MemoryNetwork:
        """Connect a peer that starts afresh; if it is still connected, it crashes first."""
        if peer_id in self._peers:
            self.crash(peer_id)
        return self.join(peer_id)

    def fate(self, src: str, dst: str) -> Deliver | Drop:
        """What happens to a frame sent now."""
        now = trio.current_time()
        for rule in self.rules:
            fate = rule(src, dst, now)
            if fate is not None:
                return fate
        return self._usually(src, dst, now)

    def connected(self, one: str, other: str) -> bool:
        """Whether there is a connection between two peers."""
        return frozenset((one, other)) in self._connections

    def sever(self, one: str, other: str) -> None:
        """End the connection between two peers, if there is one; frames under way are lost."""
        self._sever(frozenset((one, other)))

    def _sever(self, key: frozenset[str]) -> None:
        if self._connections.pop(key, None) is None:
            return
        one, other = sorted(key)
        for peer, far in ((one, other), (other, one)):
            if peer in self._peers:
                self._peers[peer].event(Disconnected(far))

    async def connection(self, src: str, dst: str) -> _Connection:
        """The connection between two peers, made if there is none.

        Raises:
            PeerUnreachable: the peer is absent or refuses, or the rules drop the dial.
        """
        key = frozenset((src, dst))
        if src == dst:
            raise PeerUnreachable(dst, "that is this node itself")
        if src not in self._peers:
            raise PeerUnreachable(dst, "this node crashed")
        for _ in range(DIAL_TRIES):
            if key in self._connections:
                return self._connections[key]
            fate = self.fate(src, dst)
            if isinstance(fate, Drop):
                await trio.sleep(DIAL_PATIENCE_S)
                continue
            await trio.sleep(2 * fate.after_s)
            if src not in self._peers or dst not in self._peers:
                raise PeerUnreachable(dst, "connection refused: not running")
            if self._peers[dst].refuses(src) or self._peers[src].refuses(dst):
                raise PeerUnreachable(dst, "refused")
            if key not in self._connections:
                self._connections[key] = _Connection()
                self._peers[src].event(Connected(dst))
                self._peers[dst].event(Connected(src))
            return self._connections[key]
        raise PeerUnreachable(dst, "no answer")

    async def carry(self, src: str, dst: str, lane: Lane, frame: bytes) -> None:
        """Put a frame under way; waits while the link is busy with earlier ones.

        Raises:
            PeerUnreachable: there is no connection, and none can be made.
        """
        connection = await self.connection(src, dst)
        fate = self.fate(src, dst)
        if isinstance(fate, Drop):
            return
        start = max(trio.current_time(), connection.free_at.get(src, -inf))
        sent = start + len(frame) / fate.bytes_per_s
        connection.free_at[src] = sent
        due = max(sent + fate.after_s, connection.last_due.get((src, lane), -inf))
        connection.last_due[src, lane] = due
        await trio.sleep_until(start)
        self._number += 1
        heappush(self._under_way, _UnderWay(due, self._number, connection, dst, Inbound(src, lane, frame)))
        assert self._changed is not None
        self._changed.set()

    async def _deliver(self) -> None:
        assert self._changed is not None
        while True:
            with trio.move_on_at(self._under_way[0].due if self._under_way else inf):
                await self._changed.wait()
            self._changed = trio.Event()
            while self._under_way and self._under_way[0].due <= trio.current_time():
                arrived = heappop(self._under_way)
                if self._connections.get(frozenset((arrived.inbound.peer, arrived.dst))) is arrived.connection:
                    self._peers[arrived.dst].arrive(arrived.inbound)


class MemoryNetwork:
    """One peer's place on a hub; satisfies `starling.node.net.api.Network`. Made by `MemoryHub.join`."""

    def __init__(self, hub: MemoryHub, peer_id: str, limits: LimitsSection) -> None:
        self._hub = hub
        self._peer_id = peer_id
        self._known: set[str] = set()
        self._refused: dict[str, float] = {}
        self._traffic: dict[str, Traffic] = {}
        self._events = EventQueue()
        self._inboxes = {lane: Inbox(lane, limits.inbox_frames) for lane in LANES}
        self._alive = trio.CancelScope()
        trio.lowlevel.spawn_system_task(self._hand_out)

    async def _hand_out(self) -> None:
        with self._alive:
            async with trio.open_nursery() as nursery:
                for inbox in self._inboxes.values():
                    nursery.start_soon(inbox.run)

    @property
    def peer_id(self) -> str:
        """Our own id."""
        return self._peer_id

    @property
    def addresses(self) -> tuple[str, ...]:
        """The one memory address."""
        return (address_of(self._peer_id),)

    @property
    def traffic(self) -> Mapping[str, Traffic]:
        """Per peer."""
        return MappingProxyType(self._traffic)

    @property
    def total_traffic(self) -> Traffic:
        """With all peers."""
        return sum(self._traffic.values(), Traffic())

    def origin(self, peer: str) -> str:
        """The address prefix that the hub gives a connected peer."""
        return self._hub.origins.get(peer, "") if self._hub.connected(self._peer_id, peer) else ""

    def inbound(self, lane: Lane) -> trio.MemoryReceiveChannel[Inbound]:
        """Frames of one lane, at most `inbox_frames` of a peer."""
        return self._inboxes[lane].channel

    def events(self) -> trio.MemoryReceiveChannel[Connected | Disconnected]:
        """Connections coming and going."""
        return self._events.channel

    def learn(self, peer: str, addresses: Sequence[str]) -> None:
        """A peer can be dialled if one of the addresses is its memory address."""
        if address_of(peer) in addresses:
            self._known.add(peer)
        else:
            self._known.discard(peer)

    def expect(self, lane: Lane, frame_bytes: int) -> None:
        """Nothing to do: here a frame is whole before it is sent."""

    async def dial(self, address: str) -> str:
        """Connect to a memory address and return the peer id.

        Raises:
            PeerUnreachable: no such peer, refused, or the rules let no dial through.
        """
        peer = address.rpartition("/")[2]
        if address != address_of(peer):
            raise PeerUnreachable(address, "not a memory address with /p2p/ID")
        await self._hub.connection(self._peer_id, peer)
        self._known.add(peer)
        return peer

    async def send(self, peer: str, lane: Lane, frame: bytes) -> None:
        """Put a frame under way.

        Raises:
            LocalProtocolError: the frame is longer than the lane allows.
            PeerUnreachable: not connected, and it cannot be dialled.
        """
        if len(frame) > MAX_FRAME_BYTES[lane]:
            raise LocalProtocolError(f"{len(frame)} bytes exceed MAX_FRAME_BYTES[{lane!r}]")
        await trio.lowlevel.checkpoint()
        if peer not in self._known and not self._hub.connected(self._peer_id, peer):
            raise PeerUnreachable(peer, "no known address")
        await self._hub.carry(self._peer_id, peer, lane, frame)
        self._traffic_of(peer).bytes_sent += len(frame)

    async def disconnect(self, peer: str) -> None:
        """Close the connection to a peer."""
        self._hub.sever(self._peer_id, peer)
        await trio.lowlevel.checkpoint()

    def refuse(self, peer: str, until: float) -> None:
        """Keep a peer out until then."""
        self._refused[peer] = until
        self._hub.sever(self._peer_id, peer)

    def refuses(self, peer: str) -> bool:
        """Whether the peer is kept out now."""
        return trio.current_time() < self._refused.get(peer, -inf)

    def arrive(self, inbound: Inbound) -> None:
        """A frame reached us; for the hub."""
        traffic = self._traffic_of(inbound.peer)
        if self._inboxes[inbound.lane].put(inbound):
            traffic.bytes_received += len(inbound.frame)
        else:
            traffic.frames_dropped += 1

    def event(self, event: Connected | Disconnected) -> None:
        """A connection came or went; for the hub."""
        self._events.put(event)

    def stop(self) -> None:
        """End every channel; for the hub."""
        self._alive.cancel()
        self._events.close()

    def _traffic_of(self, peer: str) -> Traffic:
        return self._traffic.setdefault(peer, Traffic())
