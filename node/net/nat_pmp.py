"""Map ports on a router by NAT-PMP (RFC 6886), which many speak that have no UPnP: two datagrams each way.

    ask      version 0, operation; to lead a port: 2 zero bytes, port here, port outside, seconds
    answer   version 0, operation + 128, result (0: done), seconds since its start
             then the address outside, or port here, port outside, seconds

Numbers are big-endian. To end it, both the port outside and the seconds are 0.
"""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

import trio

from starling.node.net.lan import in_thread
from starling.node.net.port_lease import LEASE_S, Lease

PORT = 5351
WAITS_S = (0.25, 0.5, 1.0, 2.0)  # seconds to wait for an answer before each repetition
ADDRESS, TCP = 0, 2  # operations
_HEAD, _LEAD = struct.Struct(">BBHI"), struct.Struct(">BBHHHI")
_GATEWAY_FLAG = 2


def question(operation: int, port: int = 0, outside: int = 0, seconds: int = 0) -> bytes:
    """Return the request for the outside address, or to map a TCP port."""
    return bytes(2) if operation == ADDRESS else _LEAD.pack(0, operation, 0, port, outside, seconds)


def answer(data: bytes, operation: int) -> bytes | None:
    """Return the payload of an answer to this operation; empty: refused; None: no such answer."""
    if len(data) < _HEAD.size:
        return None
    version, answered, result, _ = _HEAD.unpack_from(data)
    if version != 0 or answered != operation + 128:
        return None
    size = 4 if operation == ADDRESS else 8
    return data[_HEAD.size : _HEAD.size + size] if result == 0 and len(data) >= _HEAD.size + size else b""


def of_routes(table: str) -> str | None:
    """Return the gateway of the default route in Linux's /proc/net/route."""
    for line in table.splitlines()[1:]:
        match line.split():
            case [_, "00000000", gateway, flags, *_] if int(flags, 16) & _GATEWAY_FLAG:
                return str(IPv4Address(int.from_bytes(bytes.fromhex(gateway)[::-1], "big")))
    return None


def of_route(text: str) -> str | None:
    """Return the gateway in what macOS's `route -n get default` prints."""
    return next((line.split()[1] for line in text.splitlines() if line.split()[:1] == ["gateway:"]), None)


def gateway() -> str | None:
    """Return the router's address here, blocking; None: there is none, or this system does not say."""
    routes = Path("/proc/net/route")
    try:
        if routes.exists():
            return of_routes(routes.read_text())
        asked = ["route", "-n", "get", "default"]
        return of_route(subprocess.run(asked, capture_output=True, text=True, timeout=2.0, check=True).stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


@dataclass(slots=True)
class NatPmp:
    """Maps ports by NAT-PMP. Satisfies `starling.node.net.port_lease.Router`."""

    find: Callable[[], str | None] = gateway
    port: int = PORT
    words: str = "NAT-PMP"

    async def lead(self, outside: int, port: int) -> Lease | None:
        """Map a port; the router chooses another one if it is taken."""
        router = await in_thread(self.find)
        if router is None or not (address := await self._ask(router, ADDRESS)):
            return None
        if not (led := await self._ask(router, TCP, port, outside, int(LEASE_S))):
            return None
        inside, given, seconds = struct.unpack(">HHI", led)
        return Lease(str(IPv4Address(address)), given, float(seconds)) if inside == port and given and seconds else None

    async def give_back(self, outside: int, port: int) -> None:
        """End the mapping; one that is not ended expires."""
        if (router := await in_thread(self.find)) is not None:
            await self._ask(router, TCP, port)

    async def _ask(self, router: str, operation: int, port: int = 0, outside: int = 0, seconds: int = 0) -> bytes:
        """Return the payload of the router's answer as `answer`; empty also if it does not answer."""
        with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            try:
                await asked.connect((router, self.port))  # connected, so that datagrams of others do not arrive
                for wait_s in WAITS_S:
                    await asked.send(question(operation, port, outside, seconds))
                    with trio.move_on_after(wait_s):
                        while (found := answer(await asked.recv(64), operation)) is None:
                            pass
                        return found
            except OSError:
                return b""  # no router listens there
        return b""
