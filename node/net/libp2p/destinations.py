"""Limits on dialling addresses that other peers report. Pure: hosts and times in, decisions out.

A record may name any address, so a peer that spreads records could make nodes dial foreign hosts. An address that another peer
reported, and whose
host the peer has never been met at, is a *rumored* one:

    its kind        public, or one that this node announces, that its owner gave an address of, or that the peer was met at: no way leads
                    into a network from outside
    its budget      one unanswered dial a minute, MOST_OF_HOST of one host, AT_ONCE of one peer
    its dials       wait for slots of their own, and give up sooner (`dialler`)
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from starling.node.net.libp2p import addresses
from starling.node.net.libp2p.addresses import Endpoint

AGAIN_S = 60.0
MOST_OF_HOST = 4  # dials of one host; loopback is exempt, as a whole swarm may run there
AT_ONCE = 3
MAX_REMEMBERED = 4096

Kind = Literal["public", "private", "loopback", "link-local", "never"]
_METADATA = frozenset(map(ipaddress.ip_address, ("169.254.169.254", "100.100.100.200", "fd00:ec2::254")))
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def kind_of(host: str) -> Kind:
    """Return the kind of an IP address or of a block by `addresses.block`; "never" for multicast, cloud metadata and the like.
    Raises ValueError: a name.
    """
    address = ipaddress.ip_address(host.partition("%")[0].partition("/")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
        address = address.ipv4_mapped or address.sixtofour or inner or address
    if address.is_loopback:
        return "loopback"
    if address in _METADATA or address.is_multicast or address.is_unspecified or address.is_reserved:
        return "never"
    if address.is_link_local:
        return "link-local"
    return "public" if address.is_global else "private"


def is_name(endpoint: Endpoint) -> bool:
    """Tell if the host must be resolved; the address is known only then."""
    return not endpoint.protocol.startswith("ip")


def is_met(endpoint: Endpoint, met_at: str) -> bool:
    """Tell if a peer met at this block, or "", was met at the endpoint; for a name that is checked after resolution."""
    return bool(met_at) and (is_name(endpoint) or addresses.block(endpoint.host) == met_at)


def own_kinds(announced: Iterable[Endpoint], bound: Iterable[Endpoint]) -> frozenset[Kind]:
    """Return the kinds of a node's own addresses: of those it announces, and where these are names, of those it is bound to."""
    announced = tuple(announced)
    hosts = [each.host for each in announced if not is_name(each)]
    hosts += [each.host for each in bound] if any(map(is_name, announced)) else []
    return frozenset(map(kind_of, hosts))


@dataclass(slots=True)
class Destinations:
    """Dials of rumored addresses in the last minute, of a node that belongs to networks of the kinds `own`."""

    own: frozenset[Kind]
    _dialled: dict[str, tuple[str, float]] = field(default_factory=dict)  # destination -> (its host, time)

    def choose(self, endpoints: Iterable[Endpoint], met_at: str, now: float) -> list[Endpoint]:
        """Return the peer's endpoints that may be dialled now, and count the dials; `met_at`: the block that it was met at, or ""."""
        chosen, rumored = [], 0
        for endpoint in endpoints:
            if not endpoint.rumored or is_met(endpoint, met_at):
                chosen.append(endpoint)
            elif rumored < AT_ONCE and self.take(endpoint, met_at, now):
                chosen.append(endpoint)
                rumored += 1
        return chosen

    def take(self, endpoint: Endpoint, met_at: str, now: float) -> bool:
        """Count a dial of a rumored endpoint -> whether it may be made."""
        host = endpoint.host if is_name(endpoint) else addresses.block(endpoint.host)
        kind = "public" if is_name(endpoint) else kind_of(host)
        if kind == "never" or (kind != "public" and kind not in self.own and not (met_at and kind == kind_of(met_at))):
            return False
        recent = {key: (of, at) for key, (of, at) in self._dialled.items() if now - at < AGAIN_S}
        key, most = _key(endpoint), MAX_REMEMBERED if kind == "loopback" else MOST_OF_HOST
        if key in recent or sum(of == host for of, _ in recent.values()) >= most:
            return False
        self._dialled = recent
        if len(recent) >= MAX_REMEMBERED:
            return False
        recent[key] = host, now
        return True

    def answered(self, endpoint: Endpoint) -> None:
        """Do not count this dial: the peer answered."""
        self._dialled.pop(_key(endpoint), None)


def _key(endpoint: Endpoint) -> str:
    return f"{endpoint.host} {endpoint.port}"
