"""A libp2p host: listens, dials, limits connections, and carries frames on three lanes. See `starling.node.net.api`.

Identities, peer ids, multistream-select and the Noise handshake are py-libp2p's, the muxer and the switch our own, because its swarm ends
the node when a handler raises, never returns inbound slots, dials by itself, remembers failures for a minute and takes 0.2 s per
connection to close. Stock libp2p peers can connect.

    links           open connections: secured, admitted within limits, served and ended
    reach           where peers can be dialled, and dialling them there
    frame_streams   frames to and from peers, on the streams of lanes
    version_talk    why a peer does not take a stream
    own_addresses   where others reach this node
    relay           circuits for others; `relayed` those for this node, and `punching` makes connections of both ends at once out of them
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import trio

from starling.gossip.wire.schema import Lane
from starling.node.interfaces import Reporter
from starling.node.net.api import Traffic, Way
from starling.node.net.inbox import Inboxes
from starling.node.net.libp2p.announcing import Announcing
from starling.node.net.libp2p.circuit import HOP, IDENTIFY, PUNCH, STOP
from starling.node.net.libp2p.frame_streams import FrameStreams
from starling.node.net.libp2p.identify import serve_identify
from starling.node.net.libp2p.lanes import TELL_VERSIONS, takes_exchanges
from starling.node.net.libp2p.links import HostSettings, Links
from starling.node.net.libp2p.noise import Identity
from starling.node.net.libp2p.own_addresses import OwnAddresses
from starling.node.net.libp2p.peer_dialler import PeerDialler
from starling.node.net.libp2p.punching import Punching
from starling.node.net.libp2p.relay import Relay
from starling.node.net.libp2p.relayed import Relayed
from starling.node.net.libp2p.version_talk import VersionTalk


class Libp2pNetwork(Inboxes):
    """The production network. Satisfies `starling.node.net.api.Network`. Made by `node.net.libp2p.open_host`."""

    def __init__(self, identity: Identity, announcing: Announcing, settings: HostSettings, report: Reporter) -> None:
        super().__init__(identity.peer, settings.limits.inbox_frames)
        self._announcing, self._settings = announcing, settings
        self.links = links = Links(identity, settings, announcing, self.announce, report)
        self.dialler = dialler = PeerDialler(links)
        self.versions = VersionTalk(settings.spoken, links, report)
        self._relay, self._punching = Relay(links, announcing, settings.relay), Punching(links, dialler)
        self._own = OwnAddresses(announcing, report, belong=dialler.belong, moved=self._punching.pairs.moved, looked=links.close_gone)
        self._relayed = Relayed(links, dialler, announcing, self._own.use_relays)
        self._frames = FrameStreams(
            links,
            dialler,
            self.versions,
            self._inboxes,
            others={
                TELL_VERSIONS: self.versions.serve,
                HOP: self._relay.serve_hop,
                STOP: self._relayed.serve_stop,
                PUNCH: self._punching.serve_punch,
                IDENTIFY: serve_identify,
            },
        )
        links.serve_stream, links.lost = self._frames.serve, (self._relay.lost, self._relayed.lost)
        dialler.through_relay = self._relayed.connect

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._own.known

    @property
    def announced(self) -> tuple[str, ...]:
        return self._own.announced

    @property
    def local(self) -> tuple[str, ...]:
        return self._own.local

    @property
    def relayed(self) -> tuple[str, ...]:
        return self._own.relayed

    @property
    def port(self) -> int | None:
        return self._announcing.port

    @property
    def met_public(self) -> bool:
        return self._announcing.met_public

    @property
    def traffic(self) -> Mapping[str, Traffic]:
        return self.links.peers.traffic

    @property
    def total_traffic(self) -> Traffic:
        return self.links.peers.total_traffic

    @property
    def callers(self) -> tuple[str, ...]:
        return self.links.callers

    @property
    def relays(self) -> tuple[str, ...]:
        return self._relayed.relays

    @property
    def circuits(self) -> tuple[tuple[str, str], ...]:
        return tuple((it.source, it.target) for it in self._relay.slots.circuits)

    def way(self, peer: str) -> Way | None:
        """Return how we are connected to a peer; None: we are not."""
        connection = self.links.newest(peer)
        if connection is None:
            return None
        if not connection.info.relay:
            return "direct"
        return "relayed" if takes_exchanges(connection.info) else "control"

    def relay_of(self, peer: str) -> str:
        """Return the relay through which we are connected to a peer; "" for none."""
        connection = self.links.newest(peer)
        return "" if connection is None else connection.info.relay

    def origin(self, peer: str) -> str | None:
        """Return the public address prefix of a peer's newest direct connection; "" for a private address, None without one."""
        return self.links.origin(peer)

    def found(self, *, hidden: bool, host: str) -> None:
        """Announce only relays, as others cannot dial us; or this host too, at which they do, "" for none that is new."""
        self._own.found(hidden=hidden, host=host)

    def leased(self, outside: tuple[str, int] | None) -> None:
        """Announce the host and port that the router forwards to us; None: it does so no more."""
        self._own.leased(outside)

    def look_at_interfaces(self) -> None:
        """Find this node's addresses anew, and close connections from addresses that it no longer has."""
        self._own.poll()

    def learn(self, peer: str, addresses: Sequence[str]) -> None:
        """Store where a peer can be dialled, as reported by others; invalid addresses and those of other peers are ignored."""
        self.dialler.learn(peer, addresses)

    def also_at(self, address: str) -> None:
        """Dial a peer at this address of the local network too, besides those that it announces."""
        self.dialler.also_at(address)

    def answered(self, peer: str) -> str | None:
        """Return the multiaddr, with /p2p/ID, at which our last dial of a peer was answered; None if none was."""
        return self.dialler.answered(peer)

    def met(self, peer: str, addresses: Sequence[str]) -> tuple[str, ...]:
        """Return those of these addresses of a peer at whose host we met it, and names."""
        return self.dialler.met(peer, addresses)

    async def dial(self, address: str, *, given: bool = True) -> str:
        """Connect to a multiaddr with /p2p/ID and return the peer id. Raises PeerUnreachable with the reason in one line.

        `given`: by the owner, so this node is in networks of this kind; else an address where it met the peer, or a name, still rumored.
        """
        return await self.dialler.dial(address, given=given)

    async def dial_back(self, peer: str, port: int) -> tuple[str, bool]:
        """Dial the host of a peer's connection at a port and hang up.

        Returns the host, "" without a connection, and whether it is that peer that answers.
        """
        return await self.dialler.dial_back(peer, port)

    def receives(self, peer: str) -> bool:
        """Return whether a part of a frame of `peer` has arrived, and the rest is in flight."""
        return self._frames.receives(peer)

    def expect(self, lane: Lane, frame_bytes: int) -> None:
        """Set the longest frame of a lane; a longer one is refused when its length is read."""
        self._frames.expect(lane, frame_bytes)

    async def send(self, peer: str, lane: Lane, frame: bytes) -> None:
        """Queue one frame on the lane's stream, dialling and opening it if needed. Raises LocalProtocolError if it is too long,
        PeerUnreachable if no known address answers, the peer is refused or the connection broke.
        """
        await self._frames.send(peer, lane, frame)

    def ration(self, members: Callable[[], Collection[str]]) -> None:
        """Bound the processor time of strangers' connections from now on; an address of one of these members has a larger share."""
        self.links.ration.bound(members)

    def cap(self, up_bytes_per_s: int, down_bytes_per_s: int) -> None:
        """Set other caps on traffic from now on; 0 is no cap."""
        self._settings.up.change(up_bytes_per_s)
        self._settings.down.change(down_bytes_per_s)

    def refuse(self, peer: str, until: float) -> None:
        """Drop and refuse everything of `peer` until `until` on trio's clock."""
        self.links.refuse(peer, until)

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        """Accept, dial and serve connections; for `open_network`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.links.ration.serve)
            nursery.start_soon(self.dialler.serve)
            nursery.start_soon(self._own.watch)
            nursery.start_soon(self._relayed.serve)
            nursery.start_soon(self._punching.serve)
            if listeners:
                nursery.start_soon(trio.serve_listeners, self.links.accept, listeners)

    async def drained(self) -> None:
        """Wait until all that was sent is handed to the operating system."""
        await self.links.drained()
