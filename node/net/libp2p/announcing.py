"""Choose the addresses that a node announces: recomputed when interfaces change, private ones for private swarms only. Pure.

What the owner is shown (`known`) is all that can be dialled. What goes into the membership record, which every member reads (`told`), has
no private address once a peer was met at a public one: other networks cannot use it, and it would reveal the structure of the
owner's network.
Peers that met before stay in touch, where they met.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from starling.gossip.wire.schema import MAX_ADDRESSES
from starling.node.net.libp2p import addresses
from starling.node.net.libp2p.addresses import Endpoint
from starling.node.net.libp2p.destinations import is_name, kind_of


@dataclass(slots=True)
class Announcing:
    """Addresses of a node with sockets `bound` to (host, port), or those that its owner `configured`."""

    peer: str
    configured: tuple[Endpoint, ...]
    bound: tuple[tuple[str, int], ...]
    hosts: tuple[str, ...] = ()
    """Hosts of this machine's interfaces at the last check."""
    met_public: bool = False
    """A peer was met at a public address."""
    hidden: bool = False
    """Others cannot dial this node: only addresses through relays are announced."""
    relayed: tuple[Endpoint, ...] = ()
    """Addresses at which others reach us through relays."""
    leased: tuple[str, int] | None = None
    """Host and port of the router that lead here, as it says."""
    observed: str = ""
    """A host at which others reach this node, besides those of the interfaces; "" for none."""
    known: tuple[Endpoint, ...] = field(default=())

    def poll(self, hosts: Sequence[str]) -> bool:
        """Take the interfaces' current addresses -> whether `known` changed. While there are none the last ones stay."""
        if not hosts and self.hosts:
            return False
        self.hosts, before = tuple(hosts), self.known
        outside = dict.fromkeys(([self.observed] if self.observed else []) + ([self.leased[0]] if self.leased else []))
        seen = [addresses.at(host, self.port or 0, self.peer) for host in outside] if self.bound else []
        found = self.configured or tuple(dict.fromkeys((*seen, *addresses.reachable(self.bound, self.peer, hosts))))
        public_first = sorted(found, key=_is_private)
        self.known = tuple(replace(each, peer=self.peer) for each in public_first)[:MAX_ADDRESSES]
        return self.known != before

    @property
    def told(self) -> tuple[Endpoint, ...]:
        """Return the addresses for the membership record."""
        public_only = self.met_public and not self.configured
        every = self.relayed if self.hidden else self.known
        return tuple(each for each in every if not (public_only and _is_private(each)))[:MAX_ADDRESSES]

    @property
    def port(self) -> int | None:
        """Return the port that others dial, one for all addresses; None if this node does not listen."""
        if self.configured:
            return self.configured[0].port
        return (self.leased[1] if self.leased else self.bound[0][1]) if self.bound else None

    def is_gone(self, host: str) -> bool:
        """Tell if a connection from this local address is dead, as no interface has the address any more."""
        kind = kind_of(host)
        return bool(self.hosts) and kind not in {"loopback", "link-local"} and host.partition("%")[0] not in self.hosts


def _is_private(endpoint: Endpoint) -> bool:
    return not is_name(endpoint) and kind_of(endpoint.host) != "public"
