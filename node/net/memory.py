"""A network in memory and virtual time, for whole nodes under `MockClock(autojump_threshold=0)`.

A frame is lost with the connection it was sent on (crash, sever, refusal). Faults are rules, see `starling.node.net.faults`; they
apply to dials as well, which try three times. Frame rates are not limited. System tasks deliver frames, so that joining needs no nursery.

A peer's `cap` holds for all its links together, in pieces, round-robin among its senders; a sender waits for the cap of the receiving peer
too, as a full window makes it. So a frame behind a long one waits for a piece of it, not for all.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

import trio

from starling.gossip.errors import PeerUnreachable
from starling.gossip.wire.schema import Lane
from starling.node.config.schema import LimitsSection
from starling.node.net.api import Connected, Disconnected, Inbound
from starling.node.net.faults import DEFAULT_DELAY_S, Deliver, Drop, Rule, delay
from starling.node.net.memory_network import MemoryNetwork

DIAL_TRIES = 3
DIAL_TIMEOUT_S = 0.3


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection between two peers; the dicts are by sending end."""

    free_at: dict[str, float] = field(default_factory=dict)
    last_due: dict[tuple[str, Lane], float] = field(default_factory=dict)
    sending: dict[tuple[str, Lane], trio.Lock] = field(default_factory=dict)  # under a cap a lane carries one frame at a time


class MemoryHub:
    """A simulated network: its peers and the connections between them.

    For each frame the first of the rules (src, dst, now) -> Deliver | Drop | None that says something decides, else a delay of 0.5 to 1.5
    ms by the seed. The list may be changed at any time, and so may `origins`, public prefixes of peers.
    """

    def __init__(self, rules: Iterable[Rule] = (), seed: int = 0) -> None:
        self.rules = list(rules)
        self.origins: dict[str, str] = {}
        self._usually = delay(DEFAULT_DELAY_S, DEFAULT_DELAY_S / 2, seed)
        self._peers: dict[str, MemoryNetwork] = {}
        self._connections: dict[frozenset[str], _Connection] = {}
        # heap of (due time, number, connection, destination, frame)
        self._under_way: list[tuple[float, int, _Connection, str, Inbound]] = []
        self._number = 0
        self._changed: trio.Event | None = None

    def join(self, peer_id: str, limits: LimitsSection | None = None) -> MemoryNetwork:
        """Connect a new peer; of its limits only `inbox_frames` is used."""
        if peer_id in self._peers:
            raise ValueError(f"{peer_id} is on this network already")
        if self._changed is None:
            self._changed = trio.Event()
            trio.lowlevel.spawn_system_task(self._deliver)
        network = self._peers[peer_id] = MemoryNetwork(self, peer_id, limits or LimitsSection())
        return network

    def crash(self, peer_id: str) -> None:
        """End a peer at once, with its connections."""
        network = self._peers.pop(peer_id)
        for one, other in sorted(sorted(key) for key in self._connections if peer_id in key):
            self.sever(one, other)
        network.stop()

    def fate(self, src: str, dst: str) -> Deliver | Drop:
        """Return what happens to a frame sent now."""
        now = trio.current_time()
        for rule in self.rules:
            fate = rule(src, dst, now)
            if fate is not None:
                return fate
        return self._usually(src, dst, now)

    def connected(self, one: str, other: str) -> bool:
        """Tell if there is a connection between two peers."""
        return frozenset((one, other)) in self._connections

    def sever(self, one: str, other: str) -> None:
        """End the connection between two peers, if there is one; frames in flight are lost."""
        if self._connections.pop(frozenset((one, other)), None) is None:
            return
        for peer, far in sorted(((one, other), (other, one))):
            if peer in self._peers:
                self._peers[peer].announce(Disconnected(far))

    async def connection(self, src: str, dst: str) -> _Connection:
        """Return the connection between two peers, made if needed; PeerUnreachable if `dst` is absent, refuses, or rules drop the dial."""
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
                await trio.sleep(DIAL_TIMEOUT_S)
                continue
            await trio.sleep(2 * fate.after_s)
            if src not in self._peers or dst not in self._peers:
                raise PeerUnreachable(dst, "connection refused: not running")
            if self._peers[dst].refuses(src) or self._peers[src].refuses(dst):
                raise PeerUnreachable(dst, "refused")
            if key not in self._connections:
                self._connections[key] = _Connection()
                self._peers[src].dialled.add(dst)
                self._peers[src].announce(Connected(dst))
                self._peers[dst].announce(Connected(src))
            return self._connections[key]
        raise PeerUnreachable(dst, "no answer")

    async def carry(self, src: str, dst: str, lane: Lane, frame: bytes) -> None:
        """Send a frame, after earlier ones on a slow link; PeerUnreachable as `connection`."""
        connection = await self.connection(src, dst)
        await self._paced(connection, src, dst, lane, len(frame))
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
        heappush(self._under_way, (due, self._number, connection, dst, Inbound(src, lane, frame)))
        assert self._changed is not None
        self._changed.set()

    async def _paced(self, connection: _Connection, src: str, dst: str, lane: Lane, size: int) -> None:
        """Wait for the caps of both ends; PeerUnreachable: the connection ended meanwhile."""
        up, down = self._peers[src].up, self._peers[dst].down
        if not (up.capped or down.capped):
            return
        async with connection.sending.setdefault((src, lane), trio.Lock()):
            while size > 0:
                piece = min(size, up.piece_bytes, down.piece_bytes)
                await up.passed(piece)
                await down.passed(piece)
                if self._connections.get(frozenset((src, dst))) is not connection:
                    raise PeerUnreachable(dst, "connection lost while sending")
                size -= piece

    async def _deliver(self) -> None:
        assert self._changed is not None
        while True:
            with trio.move_on_at(self._under_way[0][0] if self._under_way else inf):
                await self._changed.wait()
            self._changed = trio.Event()
            while self._under_way and self._under_way[0][0] <= trio.current_time():
                *_, connection, dst, inbound = heappop(self._under_way)
                if self._connections.get(frozenset((inbound.peer, dst))) is connection:
                    self._peers[dst].arrive(inbound)
