"""Interface of networks for the daemon: frames to and from peers by their ids. Frames may be lost, but not changed.

Two networks satisfy it: `starling.node.net.libp2p` (TCP, Noise, Yamux) and `starling.node.net.memory` (virtual time, with faults as rules).
A frame arrives whole or not at all; order holds between two peers on one lane while a connection lasts.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import trio

from starling.gossip.wire.schema import Lane

Way = Literal["direct", "relayed", "control"]
"""Of a connection: to the peer itself; through a relay, with small exchanges too; or with control messages alone."""


@dataclass(frozen=True, slots=True)
class Inbound:
    """One received frame: at most MAX_FRAME_BYTES[lane], not decoded."""

    peer: str
    lane: Lane
    frame: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Connected:
    """The first connection to `peer` is up."""

    peer: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The last connection to `peer` is gone."""

    peer: str


@dataclass(slots=True)
class Traffic:
    """Bytes and frames exchanged with one peer since the start (frames as given to `send`, headers not counted)."""

    bytes_sent: int = 0
    bytes_received: int = 0
    frames_dropped: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.bytes_sent + other.bytes_sent, self.bytes_received + other.bytes_received, self.frames_dropped + other.frames_dropped
        )


class Network(Protocol):
    """Connections of one node to its peers."""

    @property
    def peer_id(self) -> str:
        """Return this node's own id."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return multiaddrs with /p2p/ID under which others may dial us."""

    @property
    def announced(self) -> tuple[str, ...]:
        """Return the `addresses` that every member may read: no private ones once a peer was met at a public one."""

    @property
    def local(self) -> tuple[str, ...]:
        """Return multiaddrs with /p2p/ID of this machine's interfaces, where we listen; none if this network has no ports."""

    @property
    def port(self) -> int | None:
        """Return the port where this node listens, or is forwarded from; None if it does not listen, or this network has no ports."""

    @property
    def met_public(self) -> bool:
        """Tell if a peer was met at a public address."""

    @property
    def callers(self) -> tuple[str, ...]:
        """Return peers that have opened a connection to us."""

    @property
    def relays(self) -> tuple[str, ...]:
        """Return peers through which others reach us, as they cannot dial us."""

    @property
    def relayed(self) -> tuple[str, ...]:
        """Return addresses, through relays, at which others reach us."""

    @property
    def circuits(self) -> tuple[tuple[str, str], ...]:
        """Return pairs of peers between which this node relays."""

    def way(self, peer: str) -> Way | None:
        """Return how this node is connected to a peer; None: it is not."""

    def relay_of(self, peer: str) -> str:
        """Return the relay through which we are connected to a peer; "" for none."""

    def found(self, *, hidden: bool, host: str) -> None:
        """Announce only relays, as others cannot dial us (`hidden`); or announce this host, at which they reach us, "" for none that is
        new.
        """

    async def dial_back(self, peer: str, port: int) -> tuple[str, bool]:
        """Dial the host of a peer's connection at a port and hang up -> the host, "" without a connection; whether that peer answered."""

    @property
    def traffic(self) -> Mapping[str, Traffic]:
        """Return the traffic per peer."""

    @property
    def total_traffic(self) -> Traffic:
        """Return the traffic with all peers since the start, also those no longer remembered; never decreases."""

    def origin(self, peer: str) -> str | None:
        """Return the public address prefix of a peer's newest direct connection; "" for a private address, None without one."""

    def inbound(self, lane: Lane) -> trio.abc.ReceiveChannel[Inbound]:
        """Return the frames of one lane. Bounded (`limits.inbox_frames` per peer, see `node.net.inbox`): dropped ones are counted."""

    def receives(self, peer: str) -> bool:
        """Tell if part of a frame of `peer` has arrived, and the rest is on its way."""

    def events(self) -> trio.MemoryReceiveChannel[Connected | Disconnected]:
        """Return opened and closed connections. Bounded: when full the oldest events are dropped."""

    def learn(self, peer: str, addresses: Sequence[str]) -> None:
        """Store where a peer can be dialled, in place of what was known; invalid addresses are ignored."""

    def leased(self, outside: tuple[str, int] | None) -> None:
        """Announce the host and port that the router forwards to us; None: it does so no more."""

    def also_at(self, address: str) -> None:
        """Add an address of a peer on the local network, which is dialled in addition to those that it announces."""

    def expect(self, lane: Lane, frame_bytes: int) -> None:
        """Set the longest frame of a lane; a longer one is refused when its length is read."""

    def ration(self, members: Callable[[], Collection[str]]) -> None:
        """Bound the processor time of strangers' connections from now on; an address of one of these members has a larger share."""

    def cap(self, up_bytes_per_s: int, down_bytes_per_s: int) -> None:
        """Limit sending and receiving to so many bytes a second from now on; 0 is no cap."""

    def answered(self, peer: str) -> str | None:
        """Return the multiaddr, with /p2p/ID, at which our last dial of a peer was answered; None if none was."""

    def met(self, peer: str, addresses: Sequence[str]) -> tuple[str, ...]:
        """Return the addresses of a peer at whose host this node met it."""

    async def dial(self, address: str, *, given: bool = True) -> str:
        """Connect to a multiaddr with /p2p/ID and return the peer id. Raises PeerUnreachable with the reason in one line.

        `given`: by the owner, so this node is in networks of this kind; else an address at which this node met the peer.
        """

    async def send(self, peer: str, lane: Lane, frame: bytes) -> None:
        """Queue one frame, dialling if needed. Returning does not mean that it arrived.

        The caller sets the deadline. A cancelled send loses at most this frame and those behind it on the lane.
        Raises PeerUnreachable if no known address answers, or the connection broke.
        """

    def refuse(self, peer: str, until: float) -> None:
        """Drop and refuse everything of `peer` until `until` on trio's clock."""
