"""Several hosts on one machine: Linux network namespaces, behind routers or on shaped lines. For root, where the machine lets it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


def _run(*words: str, stdin: str | None = None) -> None:
    subprocess.run(words, input=stdin, text=True, check=True, capture_output=True, timeout=20)


@contextmanager
def homes(count: int) -> Iterator[list[str]]:
    """Namespaces: one in the open at 10.98.0.1, then `count` behind a home router each, that lets in only what answers."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "iptables-restore"))):
        pytest.skip("needs root, ip and iptables")
    stem = f"st{os.getpid() % 100_000}"
    wire, there = f"{stem}w", f"{stem}r"
    behind = [f"{stem}h{number}" for number in range(count)]
    routers = [f"{stem}g{number}" for number in range(count)]
    made = []
    try:
        for name in (wire, there, *behind, *routers):
            try:
                _run("ip", "netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no namespaces here: {error.stderr.strip()[:80]}")
            made.append(name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "-n", wire, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", wire, "link", "set", "br0", "up")
        for number, name in enumerate((there, *routers)):
            _run(
                "ip", "link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"p{number}", "netns", wire
            )
            _run("ip", "-n", wire, "link", "set", f"p{number}", "master", "br0", "up")
            _run("ip", "-n", name, "addr", "add", f"10.98.0.{number + 1}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
        for number, (router, host) in enumerate(zip(routers, behind, strict=True)):
            _run("ip", "link", "add", "lan", "netns", router, "type", "veth", "peer", "name", "eth0", "netns", host)
            _run("ip", "-n", router, "addr", "add", f"10.97.{number}.1/24", "dev", "lan")
            _run("ip", "-n", host, "addr", "add", f"10.97.{number}.2/24", "dev", "eth0")
            for name, device in ((router, "lan"), (host, "eth0")):
                _run("ip", "-n", name, "link", "set", device, "up")
            _run("ip", "-n", host, "route", "add", "default", "via", f"10.97.{number}.1")
            _run("ip", "netns", "exec", router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
            rules = "*nat\n-A POSTROUTING -o eth0 -j MASQUERADE\nCOMMIT\n*filter\n-A INPUT -i eth0 ! -p icmp -j DROP\nCOMMIT\n"
            _run("ip", "netns", "exec", router, "iptables-restore", stdin=rules)
        yield [there, *behind]
    finally:
        for name in made:
            _run("ip", "netns", "del", name)


@contextmanager
def lines(count: int, rate: str, delay_ms: int) -> Iterator[tuple[list[str], bool]]:
    """`count` namespaces on one bridge, 10.96.0.1 and on, each of which sends at most `rate` (as tc has it), `delay_ms` later.

    Also whether the kernel delays (sch_netem); without it the rate alone is shaped.
    """
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc"))):
        pytest.skip("needs root, ip and tc")
    stem = f"sl{os.getpid() % 100_000}"
    wire, hosts = f"{stem}w", [f"{stem}h{number}" for number in range(count)]
    made, delays = [], True
    try:
        for name in (wire, *hosts):
            try:
                _run("ip", "netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no namespaces here: {error.stderr.strip()[:80]}")
            made.append(name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "-n", wire, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", wire, "link", "set", "br0", "up")
        for number, host in enumerate(hosts):
            port = f"p{number}"
            _run("ip", "link", "add", "eth0", "netns", host, "type", "veth", "peer", "name", port, "netns", wire)
            _run("ip", "-n", wire, "link", "set", port, "master", "br0", "up")
            _run("ip", "-n", host, "addr", "add", f"10.96.0.{number + 1}/24", "dev", "eth0")
            _run("ip", "-n", host, "link", "set", "eth0", "up")
            shaped = ("root", "handle", "1:", "tbf", "rate", rate, "burst", "16kb", "latency", "200ms")
            try:
                _run("tc", "-n", host, "qdisc", "add", "dev", "eth0", *shaped)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no shaping here: {error.stderr.strip()[:80]}")
            late = ("parent", "1:1", "netem", "delay", f"{delay_ms}ms", "limit", "10000")
            try:
                _run("tc", "-n", host, "qdisc", "add", "dev", "eth0", *late)
            except subprocess.CalledProcessError:
                delays = False
        yield hosts, delays
    finally:
        for name in made:
            _run("ip", "netns", "del", name)
