"""Verdicts of `starling doctor`: functions from measurements to a `Check`. Pure: they measure nothing themselves.

Sizes in bytes, times in seconds, `*_at` in Unix time. A check's `todo` is the next step, as a command where there is one.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec

from starling.node.status import format as show
from starling.node.status.check import Answer

TORCH_S = 20.0  # seconds for a separate process to import torch
DIAL_S = 3.0  # seconds for a bootstrap address to be resolved and to answer
NODE_BYTES, EASY_BYTES = 400_000_000, 1_000_000_000  # memory of the smallest node with both processes, and of a comfortable one
GPU_BYTES = 1_000_000_000  # bytes free on a GPU: with less, batches of most models do not fit
DISK_BYTES, ROOMY_BYTES = 50_000_000, 1_000_000_000  # disk space for the logs of a run, and with two checkpoints of a usual model
BUSY = 2.0  # load per core above which local steps wait for other programs
CLOCK_S = 300.0  # seconds by which clocks may differ
RTT_S = 0.1  # round-trip time of a long link, in seconds
LINUX_BUFFER = 4 << 20  # Linux's default of net.ipv4.tcp_wmem
SYSCTL = "`sudo sysctl -w net.ipv4.tcp_wmem='4096 65536 33554432' net.ipv4.tcp_rmem='4096 131072 33554432'`"
FORWARD = (
    "ask the router for a port, `--map-port`, or forward one to this machine: "
    "`--listen /ip4/0.0.0.0/tcp/4001 --announce /ip4/PUBLIC-ADDRESS/tcp/4001`"
)
FRESH = "ask a member for a fresh invite (`starling invite`)"

Verdict = tuple[Answer, str, str]
"""Verdict, finding and remedy of a `Check`."""
Kind = Literal["public", "private", "loopback", "link-local", "never"]


class Gpu(msgspec.Struct, frozen=True):
    """Facts of a GPU that torch can use; `free` is None where it could not be measured."""

    name: str
    total: int
    free: int | None = None


class Torch(msgspec.Struct, frozen=True):
    """Facts that torch reports in a separate process (`starling.node.engine.torch_probe`)."""

    version: str
    built_for: str = ""  # version of CUDA or ROCm, such as CUDA 12.8; "": only the processor, or Apple's GPU
    gpus: tuple[Gpu, ...] = ()
    mps: bool = False


class Place(NamedTuple):
    """Facts of a run directory, or of the nearest existing folder above it."""

    error: str = ""  # reason why no file can be written there
    free: int = 0
    at: float | None = None  # time that the file system gave to a new file


class Bound(NamedTuple):
    """A multiaddr that was bound for a moment; `error`: why it cannot be, "" if it can."""

    address: str
    kept: bool = False  # whether the port is one of an earlier run, which may be replaced by another
    error: str = ""


class Dialled(NamedTuple):
    """A bootstrap address: seconds until it accepted a connection, or the failure, with the system's words."""

    address: str
    seconds: float | None = None
    failed: Literal["", "name", "refused", "silent", "other"] = ""
    reason: str = ""
    kind: Kind = "public"  # names count as public addresses


def versions(installed: Mapping[str, str | None]) -> Verdict:
    """Judge the versions of packages. `installed`: package -> version, None if it is missing."""
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in installed.items())
    missing = None in installed.values()
    return ("fail", found, "`pip install starling-swarm`") if missing else ("ok", found, "")


def device(torch: Torch | str | None, wanted: str, *, driver: bool) -> Verdict:
    """Judge the device. `torch`: its facts, the line with which its import failed, or None: no answer in time; `wanted`: `device` of the
    settings; `driver`: NVIDIA's is here.
    """
    if torch is None:
        return "unknown", f"torch did not start within {TORCH_S:.0f} s", "try again when the machine is less busy"
    if isinstance(torch, str):
        return "fail", f"torch cannot be imported: {torch}", "`pip install --force-reinstall torch`"
    there = ["cuda"] * bool(torch.gpus) + ["mps"] * torch.mps + ["cpu"]
    if wanted not in {"auto", *there}:
        return "fail", f"device is {wanted}, torch finds {', '.join(there)}", "set device to auto in node.toml"
    if driver and not torch.gpus and wanted == "auto":
        found = f"an NVIDIA driver is here, but torch, built for {torch.built_for or 'processors alone'}, finds no GPU"
        return "warn", found, "look with `nvidia-smi`, or install torch for CUDA (https://pytorch.org)"
    if wanted == "cpu" or not torch.gpus:
        return "ok", "Apple's GPU" if torch.mps and wanted != "cpu" else "the processor, no GPU", ""
    found = "; ".join(f"{gpu.name}, {show.size(gpu.free)} of {show.size(gpu.total)} free" for gpu in torch.gpus)
    if (free := torch.gpus[0].free) is not None and free < GPU_BYTES:
        return "warn", found, "end other programs on it (`nvidia-smi`), or take `--device cpu`"
    return "ok", found, ""


def memory(available: int, taken: int) -> Verdict:
    """Judge the bytes `available` to a new program; `taken` by the node that runs here, 0 if none does."""
    found = f"{show.size(available)} available" + (f", {show.size(taken)} taken by this node" if taken else "")
    todo = f"close other programs: the smallest node takes {show.size(NODE_BYTES)}"
    if available + taken >= EASY_BYTES:
        return "ok", found, ""
    return "warn" if available + taken >= NODE_BYTES else "fail", found, todo


def cores(count: int, load: float) -> Verdict:
    """Judge the `count` of usable cores; `load`: programs that compute, mean over a minute."""
    found = f"{show.cores(count)}, load {load:.1f}"
    if load < BUSY * count:
        return "ok", found, ""
    return "warn", found, "end other programs: peers wait for a node on an overloaded machine"


def directory(path: str, place: Place) -> Verdict:
    """Judge the run directory, which need not exist yet."""
    if place.error:
        return "fail", f"{path} cannot be written: {place.error}", "name another with `--dir`"
    found = f"{path} can be written, {show.size(place.free)} free"
    if place.free >= ROOMY_BYTES:
        return "ok", found, ""
    return "warn" if place.free >= DISK_BYTES else "fail", found, "free disk space, or name another with `--dir`"


def clock(now_at: float, place: Place, created_at: float = 0.0, ends_at: float | None = None) -> Verdict:
    """Judge the clock. `created_at`: of the swarm, 0 if not known; `ends_at`: of the invitation, None without one. No peer tells the time
    yet.
    """
    found, todo = _date(now_at), "set the clock: `timedatectl set-ntp true`"
    if now_at < created_at - CLOCK_S:
        return "fail", f"{found}, before the swarm was created ({_date(created_at)})", todo
    if ends_at is not None and now_at > ends_at:
        return "fail", f"{found}, after the invitation ended ({_date(ends_at)})", f"if the date is right, {FRESH}"
    if place.at is not None and abs(place.at - now_at) > CLOCK_S:
        return "warn", f"{found}, but the file system says {_date(place.at)}", todo
    return "unknown", f"{found}; no other machine was asked", "compare with `date -u` on another one"


def port(bound: Sequence[Bound], listening: Sequence[str] | None) -> Verdict:
    """Judge the ports. `listening`: addresses of the running node; None if none runs, and `bound` says whether it could listen."""
    if listening is not None and not listening:
        return "unknown", "the running node does not say yet where it listens", "try again in a moment"
    if listening:
        return "ok", f"the running node listens: {', '.join(listening)}", ""
    for address, kept, error in bound:
        if error and kept:
            return "warn", f"{address}, of the last run: {error}", "another is picked then: give out new invites"
        if error:
            return "fail", f"{address}: {error}", "choose another: `--listen /ip4/0.0.0.0/tcp/PORT`"
    if all(each.address.endswith("/tcp/0") for each in bound):
        return "ok", "any that is free, picked at the first start", "to choose one: `--listen /ip4/0.0.0.0/tcp/4001`"
    return "ok", f"{', '.join(each.address for each in bound)}: free", ""


def reachable(state: str, members: int, relays: Sequence[str] = ()) -> Verdict:
    """Judge how members reach this node. `state`: `reachability` of its status; `members`: others that it knows; `relays`: through which
    they reach it.
    """
    match state:
        case "reachable":
            return "ok", "members can dial this node", ""
        case "hidden" if relays:
            found = f"members cannot dial this node, behind a NAT or a firewall; it is {show.reached(state, relays)}"
            return "ok", found, ""
        case "hidden":
            found = "members cannot dial this node, behind a NAT or a firewall: it dials them, and needs one that can be dialled"
            return "warn", found, FORWARD
    asked = "no member has tried yet" if members else "no other member is here to try"
    return "unknown", asked, "try again in a minute"


def addresses(hosts: Mapping[str, Kind], listen: Sequence[str], announced: Sequence[str]) -> Verdict:
    """Judge the addresses. `hosts`: of this machine's interfaces, and their kinds; `listen`, `announced`: multiaddrs of the settings."""
    found = ", ".join(f"{host} ({kind})" for host, kind in hosts.items())
    if announced:
        return "ok", f"{found or 'none'}; announced are {', '.join(announced)}", ""
    if not hosts:
        return "fail", "this machine has no address but loopback", "connect it to a network"
    unheard = [host for host in hosts if not any(each.startswith(_listeners(host)) for each in listen)]
    if any(kind == "public" and host not in unheard for host, kind in hosts.items()):
        return "ok", found, ""
    if missing := [host for host in unheard if hosts[host] == "public" or len(unheard) == len(hosts)]:
        return ("warn", f"{found}; the node does not listen on {missing[0]}", f"`--listen {_listeners(missing[0])[0]}tcp/4001`")
    return "warn", f"{found}: members in other networks cannot dial this node", FORWARD


def _listeners(host: str) -> tuple[str, str]:
    """Return the beginnings of multiaddrs that listen on a host: on all addresses of its version, or on it alone."""
    return ("/ip6/::/", f"/ip6/{host}/") if ":" in host else ("/ip4/0.0.0.0/", f"/ip4/{host}/")


def buffers(send: int | None, receive: int | None) -> Verdict:
    """Judge the most bytes that the system buffers for one TCP connection, which bounds those in flight; None: not known."""
    if send is None or receive is None:
        return "unknown", "this system does not say how many bytes TCP may have under way", ""
    least = min(send, receive)
    fastest = f"at most {show.rate(least / RTT_S)} where a round trip takes {show.latency(RTT_S)}"
    found = f"{show.size(send)} to send, {show.size(receive)} to receive: {fastest}"
    return "ok" if least >= LINUX_BUFFER else "warn", found, f"for more over long links, {SYSCTL}"


def bootstraps(dialled: Sequence[Dialled], others: int, *, creator: bool) -> tuple[Verdict, ...]:
    """Return a check for each bootstrap address. One that fails is no failure where another answers, or the running node knows `others`.

    `creator`: of a swarm, who needs none; where it is false, no address means that there was no invite.
    """
    if not dialled and creator:
        return (("ok", "none is needed: this node created its swarm", ""),)
    if not dialled:
        return (("unknown", "no invite was given", "`starling doctor INVITE`"),)
    enough = others > 0 or any(each.seconds is not None for each in dialled)
    return tuple(_bootstrap(each, enough) for each in dialled)


def _bootstrap(each: Dialled, enough: bool) -> Verdict:
    if each.seconds is not None:
        return "ok", f"{each.address} accepts connections, after {show.latency(each.seconds)}", ""
    what, todo = {
        "name": (f"the name cannot be resolved: {each.reason}", f"if other names can (`getent hosts NAME`), {FRESH}"),
        "refused": ("the machine answers, but no node listens there", f"that node ended or moved: {FRESH}"),
        "silent": (f"no answer within {DIAL_S:.0f} s: it is off, or a firewall is between", f"try another network, or {FRESH}"),
    }.get(each.failed, (each.reason, "look at this machine's network, `ip route`"))
    if each.kind != "public":
        todo = f"{each.kind} addresses are known in their own network alone: ask for an invite with a public one"
    return "warn" if enough else "fail", f"{each.address}: {what}", todo


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
