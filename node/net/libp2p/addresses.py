"""Multiaddrs of TCP endpoints: `/ip4/192.0.2.7/tcp/4001/p2p/12D3Koo…` and its ip6 and dns forms, and of peers behind a relay at such an
endpoint, `…/p2p/RELAY/p2p-circuit/p2p/PEER`. No other kind is dialled.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psutil

_ID = "[1-9A-HJ-NP-Za-km-z]{20,128}"
_FORM = re.compile(rf"/(ip4|ip6|dns|dns4|dns6)/([^/\s]{{1,253}})/tcp/([0-9]{{1,5}})(?:/p2p/({_ID})/p2p-circuit)?(?:/p2p/({_ID}))?")
CIRCUIT = "/p2p-circuit"
MAX_BYTES = 256  # most bytes of an address in a record


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a TCP listener: ip4, ip6, dns, dns4 or dns6, and the id of the peer expected there, or ""."""

    protocol: str
    host: str  # address in canonical form, or a name
    port: int  # 0 to 65535; 0 only for listening
    peer: str = ""
    rumored: bool = False  # whether another peer reported it, see `destinations`
    relay: str = ""  # id of the relay that listens there and connects to `peer`; "": `peer` itself does

    def __str__(self) -> str:
        suffix = f"/p2p/{self.peer}" if self.peer else ""
        via = f"/p2p/{self.relay}{CIRCUIT}" if self.relay else ""
        return f"/{self.protocol}/{self.host}/tcp/{self.port}{via}{suffix}"


def parse(address: str) -> Endpoint:
    """Return the endpoint in /ip4|ip6|dns|dns4|dns6/HOST/tcp/PORT[/p2p/RELAY/p2p-circuit][/p2p/ID]. Raises ValueError for others."""
    match = _FORM.fullmatch(address)
    if match is None:
        raise ValueError(f"{address!r} is not of the form /ip4/HOST/tcp/PORT/p2p/ID (or ip6, dns, dns4, dns6)")
    protocol, host, port, relay, peer = match.groups()
    if int(port) > 65535:
        raise ValueError(f"{address!r}: port must be at most 65535")
    if protocol == "ip4":
        host = str(ipaddress.IPv4Address(host))
    elif protocol == "ip6":
        host = str(ipaddress.IPv6Address(host))
    return Endpoint(protocol, host, int(port), peer or "", relay=relay or "")


def at(host: str, port: int, peer: str = "") -> Endpoint:
    """Return the endpoint at an IP address in canonical form."""
    return Endpoint("ip6" if ":" in host else "ip4", host, port, peer)


def reachable(listening: Iterable[tuple[str, int]], peer: str, hosts: Sequence[str]) -> list[Endpoint]:
    """Return endpoints of this node, `peer`, from (host, port) of bound sockets; unspecified hosts become those of `hosts` of their
    version.

    Loopback stands for an unspecified host only where nothing else is left.
    """
    found, alone = [], []
    for host, port in listening:
        address = ipaddress.ip_address(host)
        version = address.version
        if not address.is_unspecified:
            found.append(Endpoint(f"ip{version}", host, port, peer))
            continue
        found += [Endpoint(f"ip{version}", each, port, peer) for each in hosts if (":" in each) == (version == 6)]
        alone.append(Endpoint(f"ip{version}", "127.0.0.1" if version == 4 else "::1", port, peer))
    return list(dict.fromkeys(found or alone))


def interfaces() -> list[str]:
    """Return the addresses of this machine's interfaces, sorted, without loopback and link-local ones."""
    kinds = (socket.AF_INET, socket.AF_INET6)
    every = [each.address for name in psutil.net_if_addrs().values() for each in name if each.family in kinds]
    hosts = [ipaddress.ip_address(each) for each in every if "%" not in each]
    return sorted(str(each) for each in hosts if not each.is_loopback and not each.is_link_local)


def canonical(host: str) -> str:
    """Return an IP address in canonical form. Raises ValueError: it is none."""
    return str(ipaddress.ip_address(host))


def plain(host: str) -> str:
    """Return an IP address in its usual form: an IPv4 one mapped into IPv6 becomes IPv4."""
    address = ipaddress.ip_address(host.partition("%")[0])
    inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return host if inner is None else str(inner)


def block(host: str) -> str:
    """Return the address block of one owner: an IPv4 address (mapped or not), or the /64 of an IPv6 one."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((int(address), 64), strict=False))
        address = address.ipv4_mapped
    return str(address)
