"""Hosts on one machine: Linux network namespaces behind routers, on one local network or on shaped lines. For root, where it may."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest


def _run(*words: str, stdin: str | None = None) -> None:
    subprocess.run(words, input=stdin, text=True, check=True, capture_output=True, timeout=20)


def _needs(*programs: str) -> None:
    if os.geteuid() != 0 or not all(map(shutil.which, programs)):
        pytest.skip(f"needs root, {' and '.join(programs)}")


def _add(name: str, made: list[str]) -> None:
    try:
        _run("ip", "netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no namespaces here: {error.stderr.strip()[:80]}")
    made.append(name)
    _run("ip", "-n", name, "link", "set", "lo", "up")


def _bridged(wire: str, hosts: Sequence[str], network: str) -> None:
    """Join these namespaces, eth0 of each at `network`.1 and on, by a bridge in `wire`, whose port p0 leads to the first and so on."""
    _run("ip", "-n", wire, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
    _run("ip", "-n", wire, "link", "set", "br0", "up")
    for number, name in enumerate(hosts):
        port = f"p{number}"
        _run("ip", "link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", wire)
        _run("ip", "-n", wire, "link", "set", port, "master", "br0", "up")
        _run("ip", "-n", name, "addr", "add", f"{network}.{number + 1}/24", "dev", "eth0")
        _run("ip", "-n", name, "link", "set", "eth0", "up")


def _delayed(ends: Iterable[tuple[str, str]], delay_ms: float) -> None:
    """Below the shaper of these (namespace, device), where the kernel has sch_netem; else it is said that lines have no delay."""
    if not delay_ms:
        return
    late = ("parent", "1:1", "netem", "delay", f"{delay_ms}ms", "limit", "10000")
    for name, device in ends:
        try:
            _run("tc", "-n", name, "qdisc", "add", "dev", device, *late)
        except subprocess.CalledProcessError:
            print(f"this kernel cannot delay packets: {name} has no delay of {delay_ms:g} ms")  # noqa: T201
            return


def unplug(host: str) -> None:
    """What is sent to or from a host of `lan` is lost from now on."""
    _run("ip", "-n", host, "link", "set", "eth0", "down")


@contextmanager
def lan(count: int, rate: str = "", delay_ms: float = 0.0) -> Iterator[list[str]]:
    """`count` namespaces on one local network, at 10.96.0.1 and on.

    With a `rate`, such as 100mbit, each has a line of it, both ways, and what it sends is late where the kernel can delay.
    """
    _needs("ip", *["tc"] * bool(rate))
    stem = f"sn{os.getpid() % 100_000}"
    wire, hosts, made = f"{stem}w", [f"{stem}h{number}" for number in range(count)], list[str]()
    try:
        for name in (wire, *hosts):
            _add(name, made)
        _bridged(wire, hosts, "10.96.0")
        for number, name in enumerate(hosts):
            _run("ip", "-n", name, "route", "add", "224.0.0.0/4", "dev", "eth0")
            if rate:
                shape = ("root", "handle", "1:", "tbf", "rate", rate, "burst", "64k", "latency", "100ms")
                _run("tc", "-n", name, "qdisc", "add", "dev", "eth0", *shape)
                _run("tc", "-n", wire, "qdisc", "add", "dev", f"p{number}", *shape)
                _delayed([(name, "eth0")], delay_ms)
        yield hosts
    finally:
        for name in made:
            _run("ip", "netns", "del", name)


@dataclass(frozen=True, slots=True)
class Line:
    """What lies between a host and the others, each way; of a round trip half the delay is at either end."""

    rate: str  # as tc has it
    delay_ms: float
    loss: float  # of what a host is sent, 0 to 1

    def to(self, host: str, ends: Sequence[tuple[str, str]]) -> None:
        """Shape what leaves these (namespace, device), the two ends of the line of `host`."""
        for name, device in ends:
            shape = ("root", "handle", "1:", "tbf", "rate", self.rate, "burst", "16kb", "latency", "200ms")
            _run("tc", "-n", name, "qdisc", "add", "dev", device, *shape)
        _delayed(ends, self.delay_ms / 4)
        if self.loss:
            rules = f"*filter\n-A INPUT -m statistic --mode random --probability {self.loss} -j DROP\nCOMMIT\n"
            _run("ip", "netns", "exec", host, "iptables-restore", "--noflush", stdin=rules)


def _with_ipv6(wan: list[str], routers: list[str], behind: list[str]) -> None:
    """Public addresses for all; a router lets in what answers."""
    firewall = "*filter\n-A FORWARD -i eth0 -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT\n-A FORWARD -i eth0 -j DROP\nCOMMIT\n"
    for number, name in enumerate(wan):
        _run("ip", "-n", name, "addr", "add", f"2a00:98::{number + 1}/64", "dev", "eth0", "nodad")
    for number, (router, host) in enumerate(zip(routers, behind, strict=True)):
        _run("ip", "-n", router, "addr", "add", f"2a00:98:1:{number}::1/64", "dev", "lan", "nodad")
        _run("ip", "-n", host, "addr", "add", f"2a00:98:1:{number}::2/64", "dev", "eth0", "nodad")
        _run("ip", "-n", host, "-6", "route", "add", "default", "via", f"2a00:98:1:{number}::1")
        _run("ip", "netns", "exec", router, "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding")
        _run("ip", "netns", "exec", router, "ip6tables-restore", stdin=firewall)
        there = ("via", f"2a00:98::{wan.index(router) + 1}")
        for other in wan:
            if other != router:
                _run("ip", "-n", other, "-6", "route", "add", f"2a00:98:1:{number}::/64", *there)


@contextmanager
def homes(
    count: int, *, opens: int = 1, symmetric: Collection[int] = (), ipv6: bool = False, line: Line | None = None
) -> Iterator[list[str]]:
    """Namespaces: `opens` in the open at 10.98.0.1 and on, then `count` behind a home router each, that lets in only what answers.

    `symmetric`: the numbers of routers that show every destination another port. `ipv6`: all have public addresses of it, and routers a
    firewall. `line`: of every host; without delay where the kernel cannot.
    """
    _needs("ip", "iptables-restore", *["tc"] * bool(line))
    stem = f"st{os.getpid() % 100_000}"
    wire, there = f"{stem}w", [f"{stem}r{number}" for number in range(opens)]
    behind = [f"{stem}h{number}" for number in range(count)]
    routers = [f"{stem}g{number}" for number in range(count)]
    wan, made = [*there, *routers], list[str]()
    try:
        for name in (wire, *wan, *behind):
            _add(name, made)
        _bridged(wire, wan, "10.98.0")
        for number, (router, host) in enumerate(zip(routers, behind, strict=True)):
            _run("ip", "link", "add", "lan", "netns", router, "type", "veth", "peer", "name", "eth0", "netns", host)
            _run("ip", "-n", router, "addr", "add", f"10.97.{number}.1/24", "dev", "lan")
            _run("ip", "-n", host, "addr", "add", f"10.97.{number}.2/24", "dev", "eth0")
            for name, device in ((router, "lan"), (host, "eth0")):
                _run("ip", "-n", name, "link", "set", device, "up")
            _run("ip", "-n", host, "route", "add", "default", "via", f"10.97.{number}.1")
            _run("ip", "netns", "exec", router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
            ports = " --random-fully" * (number in symmetric)
            rules = f"*nat\n-A POSTROUTING -o eth0 -j MASQUERADE{ports}\nCOMMIT\n*filter\n-A INPUT -i eth0 ! -p icmp -j DROP\nCOMMIT\n"
            _run("ip", "netns", "exec", router, "iptables-restore", stdin=rules)
        if ipv6:
            _with_ipv6(wan, routers, behind)
        if line is not None:
            shaped = {host: ((host, "eth0"), (wire, f"p{number}")) for number, host in enumerate(there)}
            shaped |= {host: ((host, "eth0"), (router, "lan")) for host, router in zip(behind, routers, strict=True)}
            for host, ends in shaped.items():
                line.to(host, ends)
        yield [*there, *behind]
    finally:
        for name in made:
            _run("ip", "netns", "del", name)
