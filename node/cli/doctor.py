"""`starling doctor`: measure what could hinder a node on this machine and its network; `verdicts` judges the results."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli import verdicts
from starling.node.cli.common import DEFAULT_DIR, check_network, console, cores_there, dir_and_json, result, table
from starling.node.cli.documents import Diagnosis
from starling.node.cli.help import command
from starling.node.cli.progress import slow
from starling.node.cli.verdicts import Bound, Dialled, Kind, Place, Torch, Verdict
from starling.node.status import control
from starling.node.status.check import Check
from starling.node.status.control import typed
from starling.node.status.final import how_ended
from starling.node.status.format import clean

if TYPE_CHECKING:
    from starling.node.admission.invite import Invite
    from starling.node.config.schema import NodeConfig
    from starling.node.status.snapshot import StatusSnapshot
    from starling.node.storage.run_dir import RunDir

Named = tuple[str, Verdict]
# statuses in the order in which they are shown, with their style
STYLES = {"fail": "bold red", "warn": "yellow", "unknown": "dim", "ok": "green"}
PROBE = (sys.executable, "-m", "starling.node.engine.torch_probe")
PACKAGES = {"starling": "starling-swarm", "torch": "torch", "libp2p": "libp2p"}


@command(
    ("starling doctor", "before joining: is this machine fit for a node?"),
    ("starling doctor INVITE", "and do the members in the invite answer?"),
    ("starling doctor --dir starling-2", "of a node, running or not"),
)
@click.argument("invite", required=False)
@dir_and_json
def doctor(invite: str | None, run_dir: Path, as_json: bool) -> int:
    """Check this machine and its network, before joining or later: what works, what does not, and what to do.

    INVITE is as for `starling join`. Nothing is changed. Exit code 1 if a check fails.
    """
    from starling.node.cli.run import read_invite

    if invite is not None and run_dir == DEFAULT_DIR and os.path.isdir(invite):  # noqa: PTH112 - an invite is too long for a Path
        run_dir, invite = Path(invite), None
    invited = None if invite is None else read_invite(invite)
    with slow("checking this machine and its network"):
        found = examine(run_dir, invited)
    result(found, as_json, _print)
    return int(any(each.verdict == "fail" for each in found.checks))


def examine(run_dir: Path, invite: Invite | None) -> Diagnosis:
    """Measure everything; torch and the bootstrap addresses concurrently, each with a limit."""
    import psutil
    import trio

    from starling.node.config import memory
    from starling.node.storage.run_dir import RunDir

    check_network()
    installed = _installed()
    place = RunDir(run_dir)
    exists = os.access(place.config_file, os.F_OK)  # False in a directory that this user may not enter
    wrong, config, created_at, ends_at = _settings(place if exists else None, invite)
    node, running = _node(run_dir) if exists else ([], None)
    disk, now_at = disk_at(run_dir.absolute()), time.time()
    torch, dialled = trio.run(_outside, config.bootstrap if invite is None else invite.bootstrap)
    taken = 0 if running is None else running.resources.memory_bytes or 0
    others = len(place.known_peers()) if running is None else running.members - 1
    found = {
        "versions": verdicts.versions(installed),
        "device": verdicts.device(torch, config.device, driver=Path("/dev/nvidiactl").exists()),
        "memory": verdicts.memory(min(psutil.virtual_memory().available, memory.available()), taken),
        "cores": verdicts.cores(cores_there(), psutil.getloadavg()[0]),
        "directory": verdicts.directory(str(run_dir), disk),
        "clock": verdicts.clock(now_at, disk, created_at, ends_at),
        "port": verdicts.port(_bound(place, config.listen), None) if running is None else verdicts.port((), running.addresses),
        **({} if running is None else {"reachable": verdicts.reachable(running.reachability, running.members - 1, running.relays)}),
        "addresses": verdicts.addresses(interface_hosts(), config.listen, config.announce),
        "buffers": verdicts.buffers(_largest("tcp_wmem"), _largest("tcp_rmem")),
    }
    reached = verdicts.bootstraps(dialled, others, creator=exists)
    named = (*node, *wrong, *found.items(), *(("bootstrap", each) for each in reached))
    checks = tuple(Check(name, *verdict) for name, verdict in named)
    return Diagnosis(directory=str(run_dir.absolute()), running=running is not None, checks=checks)


def _print(found: Diagnosis) -> None:
    """Print a line for each check and one for its remedy, problems first."""
    from rich.text import Text

    ranked = sorted(found.checks, key=lambda each: [*STYLES].index(each.verdict))
    rows = [
        (Text(each.verdict, STYLES[each.verdict]), each.check, "\n→ ".join(filter(None, (clean(each.found), clean(each.todo)))))
        for each in ranked
    ]
    console().print(table(("", "check", "what was found, and what to do"), rows, fold=True))


def _settings(place: RunDir | None, invite: Invite | None) -> tuple[list[Named], NodeConfig, float, float | None]:
    """Check the files of a node -> problems, its settings, when its swarm was created (0: not known), and when its invitation ends."""
    from starling.node.admission import chain as chains
    from starling.node.config.schema import NodeConfig

    config, created_at = NodeConfig(), 0.0
    wrong: list[Named] = []
    try:
        if place is not None:
            config, manifest = place.read_config(), place.read_manifest()
            created_at = 0.0 if manifest is None else manifest.founded_ms / 1000
            invite = invite or place.read_invite()
    except ConfigError as error:
        wrong = [("settings", ("fail", str(error), "correct that file"))]
    chain = () if invite is None else invite.chain
    return wrong, config, created_at, chains.not_after_ms(chain) / 1000 if chain else None


def _node(run_dir: Path) -> tuple[list[Named], StatusSnapshot | None]:
    """Return how the node of a directory does, or ended, as `starling status` says it; and its status if it runs."""
    from starling.node.cli import inspect_node

    logs, status, again = (f"`starling {each} --dir {typed(run_dir)}`" for each in ("logs", "status", "run"))
    try:
        seen, ended = inspect_node.snapshot_of(run_dir)
    except control.NotRunning:
        return [("node", ("ok", "not running", f"start it with {again}"))], None
    except (control.ControlError, GossipError) as error:
        return [("node", ("fail", str(error), f"see {logs}"))], None
    if ended is not None:
        failed = ended.ended == "failed"
        return [("node", ("warn" if failed else "ok", how_ended(ended, run_dir), ""))], None
    if problem := inspect_node.problem_of(seen, run_dir):
        return [("node", ("warn", problem.removeprefix("! "), f"for more, {status}"))], seen
    edges = sum(peer.edge for peer in seen.peers)
    return [("node", ("ok", f"{seen.state}, {seen.members} members, {edges} with an edge", ""))], seen


def _installed() -> dict[str, str | None]:
    """Return the versions of packages by name."""
    found: dict[str, str | None] = {"Python": platform.python_version()}
    for name, distribution in PACKAGES.items():
        try:
            found[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def disk_at(path: Path) -> Place:
    """Try an unnamed file in the directory, or in the nearest existing one above it."""
    nearest = next(each for each in (path, *path.parents) if os.access(each, os.F_OK))
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            return Place(free=shutil.disk_usage(nearest).free, at=os.fstat(file.fileno()).st_mtime)
    except OSError as error:
        return Place(error=error.strerror or str(error))


def _largest(setting: str) -> int | None:
    """Return the most bytes that the kernel gives to one connection by itself; /proc lists min, default, max."""
    try:
        return int(Path("/proc/sys/net/ipv4", setting).read_text().split()[2])
    except (OSError, ValueError, IndexError):
        return None


def _bound(place: RunDir, listen: tuple[str, ...]) -> list[Bound]:
    """Bind each address for a moment, as a node would."""
    from starling.node.net.libp2p import addresses
    from starling.node.net.libp2p.sockets import is_lacking

    found = []
    for asked, address in zip(listen, place.with_kept_port(listen), strict=True):
        error = ""
        try:
            endpoint = addresses.parse(address)
            six = endpoint.protocol == "ip6"
            with socket.socket(socket.AF_INET6 if six else socket.AF_INET) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if six:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind((endpoint.host, endpoint.port))
        except (OSError, ValueError) as refusal:
            if isinstance(refusal, OSError) and len(listen) > 1 and is_lacking(addresses.parse(address), refusal):
                continue
            error = getattr(refusal, "strerror", None) or str(refusal)
        found.append(Bound(address, asked != address, error))
    return found


def interface_hosts() -> dict[str, Kind]:
    """Return the addresses of this machine's interfaces, IPv4 first, without loopback."""
    from starling.node.net.libp2p import addresses, destinations

    hosts = sorted(addresses.interfaces(), key=lambda host: ":" in host)
    return {host: destinations.kind_of(host) for host in hosts}


async def _outside(bootstrap: tuple[str, ...]) -> tuple[Torch | str | None, list[Dialled]]:
    """Return what torch reports, and how each address answers."""
    import trio

    torch: list[Torch | str | None] = []
    dialled: dict[str, Dialled] = {}

    async def ask() -> None:
        torch.append(await ask_torch())

    async def note(address: str) -> None:
        dialled[address] = await dial(address)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.to_thread.run_sync(import_module, "starling.node.net.libp2p")  # this import takes as long as torch's
        for address in bootstrap:
            nursery.start_soon(note, address)
    return torch[0], [dialled[address] for address in bootstrap]


async def ask_torch() -> Torch | str | None:
    """Return torch's facts, why it cannot be imported, or None: no answer in time. A separate process imports it, which takes seconds."""
    import trio

    try:
        with trio.move_on_after(verdicts.TORCH_S) as patience:
            done = await trio.run_process(PROBE, capture_stdout=True, capture_stderr=True, check=False)
        if patience.cancelled_caught:
            return None
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=Torch)
    except OSError as error:  # for example no memory for another process
        return f"no process for it: {error.strerror}"
    except (IndexError, msgspec.DecodeError):
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {done.returncode}"


async def dial(address: str) -> Dialled:
    """Resolve an address and connect to it; nothing is sent."""
    import trio

    from starling.node.net.libp2p import addresses, destinations, sockets

    kind: Kind = "public"
    begun = trio.current_time()
    failed: Literal["name", "refused", "other"] = "other"
    try:
        endpoint = addresses.parse(address)
        kind = kind if destinations.is_name(endpoint) else destinations.kind_of(endpoint.host)
        with trio.fail_after(verdicts.DIAL_S):
            stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
            await stream.aclose()
    except (trio.TooSlowError, TimeoutError):
        return Dialled(address, failed="silent", kind=kind)
    except (OSError, ValueError) as error:  # ValueError: an address of another form, or a name that cannot exist
        reason = sockets.reason_of(error) if isinstance(error, OSError) else str(error)
        failed = "name" if isinstance(error, socket.gaierror) else failed
        failed = "refused" if reason == os.strerror(errno.ECONNREFUSED) else failed
        return Dialled(address, failed=failed, reason=reason, kind=kind)
    return Dialled(address, trio.current_time() - begun, kind=kind)
