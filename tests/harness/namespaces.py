"""Hosts on one machine: Linux network namespaces behind routers, on one local network or on shaped lines. For root, where permitted."""

import os
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.harness.cables import Cable, End, Line, cabled

CONGESTION = ("congctl", "cubic")  # congestion control of home computers, whatever this machine's setting


def ran(*words: str, stdin: str | None = None) -> str:
    """Run a command that changes or shows a network; return its output."""
    return subprocess.run(words, input=stdin, text=True, check=True, capture_output=True, timeout=20).stdout


def _needs(*programs: str) -> None:
    if os.geteuid() != 0 or not all(map(shutil.which, programs)):
        pytest.skip(f"needs root, {' and '.join(programs)}")


def _add(name: str, made: list[str]) -> None:
    try:
        ran("ip", "netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no namespaces here: {error.stderr.strip()[:80]}")
    made.append(name)
    ran("ip", "-n", name, "link", "set", "lo", "up")


def _joined(pairs: Sequence[tuple[End, End]], line: Line | None, until: ExitStack) -> None:
    """Connect each two ends, of which the first is a host's: by a line, or without a limit."""
    if line is not None:
        until.enter_context(cabled([Cable(ends, line) for ends in pairs]))
        return
    for (host, device), (place, port) in pairs:
        ran("ip", "link", "add", device, "netns", host, "type", "veth", "peer", "name", port, "netns", place)
        ran("ip", "-n", host, "link", "set", device, "up")
        ran("ip", "-n", place, "link", "set", port, "up")


def _port(wire: str, number: int) -> End:
    return wire, f"p{number}"


def _bridged(wire: str, hosts: Sequence[str], network: str) -> None:
    """Make one network of these namespaces, eth0 of each at `network`.1 and on, by a bridge in `wire` with a port for each."""
    ran("ip", "-n", wire, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
    ran("ip", "-n", wire, "link", "set", "br0", "up")
    for number, name in enumerate(hosts):
        ran("ip", "-n", wire, "link", "set", _port(wire, number)[1], "master", "br0")
        ran("ip", "-n", name, "addr", "add", f"{network}.{number + 1}/24", "dev", "eth0")
        source = ("src", f"{network}.{number + 1}")
        ran("ip", "-n", name, "route", "change", f"{network}.0/24", "dev", "eth0", *source, *CONGESTION)


def unplug(host: str) -> None:
    """Lose all frames to or from a host of `lan` from now on."""
    ran("ip", "-n", host, "link", "set", "eth0", "down")


def carried(pid: int) -> tuple[int, int]:
    """Return the bytes that the line of this process's host has carried so far, sent and received."""
    (line,) = [it for it in Path(f"/proc/{pid}/net/dev").read_text().splitlines() if "eth0:" in it]
    fields = line.partition(":")[2].split()
    return int(fields[8]), int(fields[0])


@contextmanager
def lan(count: int, line: Line | None = None, buffer_bytes: int = 0) -> Iterator[list[str]]:
    """Make `count` namespaces on one local network, at 10.96.0.1 and on, each with its own `line`; a packet crosses two.

    With `buffer_bytes` TCP sockets may have this much in flight.
    """
    _needs("ip")
    stem = f"sn{os.getpid() % 100_000}"
    wire, hosts, made = f"{stem}w", [f"{stem}h{number}" for number in range(count)], list[str]()
    try:
        with ExitStack() as until:
            for name in (wire, *hosts):
                _add(name, made)
            _joined([((name, "eth0"), _port(wire, number)) for number, name in enumerate(hosts)], line, until)
            _bridged(wire, hosts, "10.96.0")
            for name in hosts:
                ran("ip", "-n", name, "route", "add", "224.0.0.0/4", "dev", "eth0")
                if buffer_bytes:
                    sizes = "; ".join(f"echo 4096 131072 {buffer_bytes} > /proc/sys/net/ipv4/tcp_{way}mem" for way in "rw")
                    ran("ip", "netns", "exec", name, "sh", "-ec", sizes)
            yield hosts
    finally:
        for name in made:
            ran("ip", "netns", "del", name)


def _behind(router: str, host: str, number: int, *, symmetric: bool) -> None:
    """Let the router translate what its host, at 10.97.`number`.2, sends, and admit only replies."""
    ran("ip", "-n", router, "addr", "add", f"10.97.{number}.1/24", "dev", "lan")
    ran("ip", "-n", host, "addr", "add", f"10.97.{number}.2/24", "dev", "eth0")
    ran("ip", "-n", host, "route", "add", "default", "via", f"10.97.{number}.1", *CONGESTION)
    ran("ip", "netns", "exec", router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    ports = " --random-fully" * symmetric
    rules = f"*nat\n-A POSTROUTING -o eth0 -j MASQUERADE{ports}\nCOMMIT\n*filter\n-A INPUT -i eth0 ! -p icmp -j DROP\nCOMMIT\n"
    ran("ip", "netns", "exec", router, "iptables-restore", stdin=rules)


def _with_ipv6(wan: list[str], routers: list[str], behind: list[str]) -> None:
    """Give all public addresses; a router admits only replies."""
    firewall = "*filter\n-A FORWARD -i eth0 -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT\n-A FORWARD -i eth0 -j DROP\nCOMMIT\n"
    for number, name in enumerate(wan):
        ran("ip", "-n", name, "addr", "add", f"2a00:98::{number + 1}/64", "dev", "eth0", "nodad")
    for number, (router, host) in enumerate(zip(routers, behind, strict=True)):
        ran("ip", "-n", router, "addr", "add", f"2a00:98:1:{number}::1/64", "dev", "lan", "nodad")
        ran("ip", "-n", host, "addr", "add", f"2a00:98:1:{number}::2/64", "dev", "eth0", "nodad")
        ran("ip", "-n", host, "-6", "route", "add", "default", "via", f"2a00:98:1:{number}::1")
        ran("ip", "netns", "exec", router, "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding")
        ran("ip", "netns", "exec", router, "ip6tables-restore", stdin=firewall)
        there = ("via", f"2a00:98::{wan.index(router) + 1}")
        for other in wan:
            if other != router:
                ran("ip", "-n", other, "-6", "route", "add", f"2a00:98:1:{number}::/64", *there)


@contextmanager
def homes(
    count: int, *, opens: int = 1, symmetric: Collection[int] = (), ipv6: bool = False, line: Line | None = None
) -> Iterator[list[str]]:
    """Make namespaces: `opens` public ones at 10.98.0.1 and on, then `count` behind a home router each, which admits only replies.

    `symmetric`: the numbers of routers that use another port for every destination. `ipv6`: all have public IPv6 addresses, and routers a
    firewall. `line`: of every host; what one sends to another crosses two.
    """
    _needs("ip", "iptables-restore")
    stem = f"st{os.getpid() % 100_000}"
    wire, there = f"{stem}w", [f"{stem}r{number}" for number in range(opens)]
    behind = [f"{stem}h{number}" for number in range(count)]
    routers = [f"{stem}g{number}" for number in range(count)]
    wan, made = [*there, *routers], list[str]()
    try:
        with ExitStack() as until:
            for name in (wire, *wan, *behind):
                _add(name, made)
            ports = [((name, "eth0"), _port(wire, number)) for number, name in enumerate(wan)]
            homely = [((host, "eth0"), (router, "lan")) for host, router in zip(behind, routers, strict=True)]
            _joined(ports[opens:], None, until)
            _joined([*ports[:opens], *homely], line, until)
            _bridged(wire, wan, "10.98.0")
            for number, (router, host) in enumerate(zip(routers, behind, strict=True)):
                _behind(router, host, number, symmetric=number in symmetric)
            if ipv6:
                _with_ipv6(wan, routers, behind)
            yield [*there, *behind]
    finally:
        for name in made:
            ran("ip", "netns", "del", name)
