"""A host's state per peer: addresses, limits, traffic, refusals and rejected dials. Bounded, with the time as an argument."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import trio

from starling.gossip.limits import TokenBucket
from starling.gossip.wire.schema import LANES, Lane
from starling.node.net.api import Traffic
from starling.node.net.libp2p import addresses
from starling.node.net.libp2p.addresses import Endpoint
from starling.node.net.libp2p.connection import ConnectionInfo
from starling.node.net.libp2p.streams import Stream

MAX_PEERS_REMEMBERED = 4096
REJECTED_WITHIN_S = 2.0  # seconds; a dialled connection that closes sooner, without a frame, counts as rejected
REJECTED_DIALS_TOLERATED = 3  # rejections in a row; after further ones the peer is dialled again 1, 2, 4 … seconds later
MAX_REDIAL_DELAY_S = 60.0
PAUSE_S = 1.0  # after a dial that failed, before a frame to send may begin another; twice as long each time
MAX_PAUSE_S = 4.0  # upper bound of it
DROPPED_PER_S = 250.0  # excess frames per second that are dropped and counted; a peer that sends more is disconnected


@dataclass(slots=True)
class PeerState:
    """Addresses, connections and failures of one peer."""

    bucket: TokenBucket  # budget of frames that the peer may send
    dropped: TokenBucket = field(default_factory=lambda: TokenBucket(DROPPED_PER_S, 4 * DROPPED_PER_S))
    known: trio.Event = field(default_factory=trio.Event)  # set once its addresses were given to `learn`, or it was dialled
    outgoing: dict[Lane, Stream] = field(default_factory=dict)
    locks: dict[Lane, trio.Lock] = field(default_factory=lambda: {lane: trio.Lock() for lane in LANES})
    at_once: int = 0  # frames sent to it since other tasks ran
    endpoints: tuple[Endpoint, ...] = ()
    met_at: str = ""  # address block of its last connection
    lan_endpoints: tuple[Endpoint, ...] = ()  # endpoints at which it was heard on the local network
    answered: Endpoint | None = None  # endpoint where our last successful dial reached it
    other_version: dict[Lane, str] = field(default_factory=dict)  # lane -> why it cannot be opened; cleared with the connection
    traffic: Traffic = field(default_factory=Traffic)
    refused_until: float = -inf
    rejected_dials: int = 0  # in a row
    redial_at: float = -inf
    failed_dials: int = 0  # in a row
    paused_until: float = -inf
    relay_failures: int = 0  # failed dials through relays in a row
    through_relay_at: float = -inf  # not before

    @property
    def everywhere(self) -> tuple[Endpoint, ...]:
        """Return all endpoints of the peer: reported by others, and heard on the local network."""
        return (*self.endpoints, *self.lan_endpoints)

    def may_dial(self, now: float) -> bool:
        """Tell if the peer did not reject the last dials, or long enough ago."""
        return self.rejected_dials <= REJECTED_DIALS_TOLERATED or now >= self.redial_at

    def dialled(self, *, reached: bool, now: float) -> None:
        """Note that a dial ended: of one that is gone each frame to send would begin another, a millisecond of the processor."""
        self.failed_dials = 0 if reached else self.failed_dials + 1
        self.paused_until = -inf if reached else now + min(PAUSE_S * 2.0 ** min(self.failed_dials - 1, 10), MAX_PAUSE_S)

    def may_go_through_relay(self, now: float) -> bool:
        """Tell if the last dial through a relay succeeded, or enough time has passed."""
        return now >= self.through_relay_at

    def went_through_relay(self, *, reached: bool, now: float) -> None:
        """Note that a dial through a relay ended: after one that failed the next is 2, 4, 8 … seconds later."""
        self.relay_failures = 0 if reached else self.relay_failures + 1
        self.through_relay_at = -inf if reached else now + min(2.0 ** min(self.relay_failures, 10), MAX_REDIAL_DELAY_S)

    def connection_closed(self, info: ConnectionInfo, now: float) -> None:
        """Count a rejected dial: a peer that bans us learns our id only from a completed handshake, which costs both sides."""
        if not info.inbound and info.useful_at == info.since and now < info.since + REJECTED_WITHIN_S:
            self.rejected_dials += 1
            exponent = min(self.rejected_dials - REJECTED_DIALS_TOLERATED - 1, 10)
            self.redial_at = now + min(2.0**exponent, MAX_REDIAL_DELAY_S)


class PeerTable:
    """State of all known peers, each with a limit of frames; those `connected` are never deleted."""

    def __init__(self, frames_per_s: float, connected: Container[str]) -> None:
        self._frames_per_s = frames_per_s
        self._connected = connected
        self._peers: dict[str, PeerState] = {}
        self._forgotten = Traffic()

    @property
    def traffic(self) -> Mapping[str, Traffic]:
        """Return the traffic per remembered peer."""
        return {name: peer.traffic for name, peer in self._peers.items()}

    @property
    def total_traffic(self) -> Traffic:
        """Return the traffic with all peers since the start, also those no longer remembered."""
        return sum((peer.traffic for peer in self._peers.values()), self._forgotten)

    def refused(self, name: str, now: float) -> bool:
        """Tell if a peer's connections are refused."""
        peer = self._peers.get(name)
        return peer is not None and now < peer.refused_until

    def is_at(self, name: str, block: str, host: str) -> bool:
        """Tell if a peer was met in an address block, or can be dialled at this host."""
        peer = self._peers.get(name)
        return peer is not None and (peer.met_at == block or any(each.host == host for each in peer.everywhere))

    def get(self, name: str, now: float) -> PeerState:
        """Return a peer's state; a new one replaces that of a peer which is neither connected nor refused."""
        peer = self._peers.get(name)
        if peer is None:
            if len(self._peers) >= MAX_PEERS_REMEMBERED:
                idle = (each for each, kept in self._peers.items() if each not in self._connected and kept.refused_until <= now)
                forgotten = self._peers.pop(next(idle, ""), None)
                if forgotten is not None:
                    self._forgotten += forgotten.traffic
            peer = self._peers[name] = PeerState(TokenBucket(self._frames_per_s, 4 * self._frames_per_s))
        return peer


def dialable(peer: str | None, known: Sequence[str]) -> Iterator[Endpoint]:
    """Yield endpoints of the multiaddrs `known` that are valid, have a port and name no other peer; `peer` None: any."""
    for address in known:
        try:
            endpoint = addresses.parse(address)
        except ValueError:
            continue
        if endpoint.port and (peer is None or endpoint.peer in ("", peer)):
            yield endpoint
