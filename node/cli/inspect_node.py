"""`starling status`, `peers` and `tui`: show a running node, or the files of an ended one, without changing anything."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from starling.node.cli.common import DEFAULT_DIR, console, dir_and_json, discard_output, emit, is_lively, listing, table
from starling.node.cli.completion import Watchable
from starling.node.cli.documents import Peers
from starling.node.cli.help import command
from starling.node.status import control
from starling.node.status import format as show
from starling.node.status.control import typed
from starling.node.status.final import FinalStatus, how_ended
from starling.node.status.snapshot import PeerStatus, Resources, StatusSnapshot, encode

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDE = 190  # columns from which a peer id is shown in full
WIDE_ENOUGH = 136  # columns from which the behaviour of peers is shown
ATTACH_S = 1.0  # seconds between attempts to reach a node that is gone
INVITED_TOO = 148  # columns from which inviters are shown too


@command(
    ("starling status --dir starling-2", ""),
    ("starling status --watch", "again every second, until Ctrl-C"),
    ("starling status --json", "everything it says of itself, for a program"),
)
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C, through a restart of the node too; with --json a line each time.")
@dir_and_json
def status(watch: bool, run_dir: Path, as_json: bool) -> None:
    """Show the state of a running node, or how an ended one ended.

    A problem, if there is one, is the first line, with the next command to try.
    """
    snapshot, ended = snapshot_of(run_dir)
    if watch:
        _watch(run_dir, as_json)
    elif as_json:
        click.echo(encode(snapshot), nl=False)
    else:
        out = console()
        print_first(out, snapshot, ended, run_dir)
        out.print(status_table(snapshot))


@command(("starling peers --dir starling-2", ""), ("starling peers --json", "whole ids and everything known of each, for a program"))
@dir_and_json
def peers(run_dir: Path, as_json: bool) -> None:
    """List the members a node knows, those it exchanges with first.

    In a swarm of invited members with who invited them: `starling revoke PEER` removes a member and all below it.
    """
    snapshot, ended = snapshot_of(run_dir)
    if as_json:
        emit(Peers(peer=snapshot.peer, swarm=snapshot.swarm, peers=snapshot.peers))
        return
    from rich.text import Text

    out = console()
    print_first(out, snapshot, ended, run_dir)
    out.print(peer_table(snapshot.peers, out.width))
    for peer in snapshot.peers:
        if peer.why:
            out.print(Text(f"{show.short(peer.peer)} {peer.state}: {show.clean(peer.why)}"), soft_wrap=True)


@command(
    ("starling tui starling-2", "a running node"),
    ("starling tui starling-1 starling-2", "two, one beside the other"),
    ("starling tui starling-2/record.jsonl", "a recorded run"),
    name="tui",
)
@click.argument("paths", metavar="[DIR|RECORD.jsonl]…", nargs=-1, type=Watchable())
def terminal(paths: tuple[Path, ...]) -> int:
    """Watch running nodes, a demo or a recorded run in the terminal.

    DIR is the run directory of a node, running or not, or a demo's folder (default: starling-node).
    """
    from starling.node.storage.run_dir import check_holds_node

    shown = paths or (DEFAULT_DIR,)
    if not sys.stdin.isatty() or not is_lively(sys.stdout):
        raise click.UsageError(f"the terminal UI needs a terminal; try `starling status --dir {typed(shown[0])}`")
    for path in shown:
        if path.suffix == ".jsonl" and not path.exists():
            raise click.UsageError(f"{path} is not there; a node with `--set record.every_s=1` writes one")
        if not os.access(path, os.F_OK) or path.is_dir():  # any other file is a record, whatever its name
            check_holds_node(path, "DIR", or_demo=True)
    # This process becomes the UI: it has an event loop of its own, and a signal must reach it.
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "starling.tui", *map(str, shown)])  # noqa: S606


def snapshot_of(run_dir: Path) -> tuple[StatusSnapshot, FinalStatus | None]:
    """Return the node's status, and how its last run ended if it does not run."""
    from starling.node.node_handle import Attached

    node = Attached(run_dir)
    snapshot = node.status()
    return snapshot, None if node.running else node.last


def _watch(run_dir: Path, as_json: bool) -> None:
    """Show snapshots as they come, until Ctrl-C; on a terminal each replaces the one before."""
    from rich.live import Live

    out = console()
    try:
        if as_json:
            for seen in _seen(run_dir):
                if isinstance(seen, StatusSnapshot):
                    click.echo(encode(seen), nl=False)
        elif is_lively(sys.stdout):
            with Live(console=out, auto_refresh=False, vertical_overflow="crop") as live:
                for seen in _seen(run_dir):
                    live.update(_whole(seen, run_dir), refresh=True)
        else:
            for seen in _seen(run_dir):
                out.print(_whole(seen, run_dir))
                out.print()
    except KeyboardInterrupt:
        return
    except BrokenPipeError:  # `| head`
        discard_output()


def _seen(run_dir: Path) -> Iterator[StatusSnapshot | control.ControlError]:
    """Yield snapshots without end; the reason, once, each time the node cannot be reached."""
    shown = ""
    while True:
        try:
            for snapshot in control.watch(run_dir):
                shown = ""
                yield snapshot
        except control.ControlError as error:
            if str(error) != shown:
                shown = str(error)
                yield error
        time.sleep(ATTACH_S)


def _whole(seen: StatusSnapshot | control.ControlError, run_dir: Path) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    if isinstance(seen, control.ControlError):
        return Text(f"! {show.clean(str(seen))}", style="bold red")
    problem = problem_of(seen, run_dir)
    return Group(*([Text(problem, style="bold red")] if problem else []), status_table(seen))


def print_first(out: Console, snapshot: StatusSnapshot, ended: FinalStatus | None, run_dir: Path) -> None:
    """Print how the last run ended, or the problem of a running node, if it has one."""
    from rich.text import Text

    if ended is not None:
        mark = "! " if ended.ended == "failed" else ""
        out.print(Text(mark + how_ended(ended, run_dir), style="bold"), soft_wrap=True)
    elif problem := problem_of(snapshot, run_dir):
        out.print(Text(problem, style="bold red"), soft_wrap=True)


def problem_of(snapshot: StatusSnapshot, run_dir: Path) -> str:
    """Return the line that comes first, with the next command to try: the node's own suggestion, else `invite` or `logs`."""
    if snapshot.problem is None:
        return ""
    problem = show.clean(snapshot.problem)
    if "`" in problem:
        return f"! {control.addressed(problem, run_dir)}"
    todo = "hand on `starling invite" if snapshot.members == 1 else "see `starling logs"
    return f"! {problem}; {todo} --dir {typed(run_dir)}`"


def status_table(seen: StatusSnapshot) -> RenderableType:
    """Return a row for each figure that is known."""
    alone = "" if seen.alone is None else f", {show.figure(seen.alone)} before its exchanges"
    value_round = f" (round {show.count(seen.value_round)}{alone})" if seen.value_round is not None else ""
    best = "" if seen.best_round is None else f"{show.figure(seen.best)} (round {show.count(seen.best_round)})"
    notes = (seen.state, "resumed" * seen.rejoined, "joined late" * seen.joined_late, seen.activity)
    paced = "" if seen.paced_per_s is None else f" computing, {show.speed(seen.paced_per_s)} with waiting"
    distance = "" if seen.distance is None else f"{show.small(seen.distance)} a parameter, to the peers met last"
    transfers = (f"{each.kind} with {show.short(each.peer)}: {show.progress(each)}" for each in seen.transfers)
    rows = {
        "state": ", ".join(filter(None, notes)),
        **({"seat": show.clean(seen.seat)} if seen.seat else {}),
        "swarm": f"{seen.name} ({seen.swarm})",
        "unprotected": dict(seen.agreed).get("unprotected", ""),
        "peer": seen.peer,
        "round": show.rounds(seen.round, seen.rounds),
        show.metric(seen.metric) or "value": show.figure(seen.value) + value_round,
        **{show.clean(name): show.figure(value) for name, value in seen.others},
        "best": best,
        "loss": show.figure(seen.loss),
        "members": f"{seen.members:,}, {sum(peer.edge for peer in seen.peers):,} with an edge",
        "exchanges": show.ended(seen.exchanges),
        "distance": distance,
        "sent": _traffic(seen.bytes_sent, seen.up_bytes_per_s, seen.up_limit_bytes_per_s),
        "received": _traffic(seen.bytes_received, seen.down_bytes_per_s, seen.down_limit_bytes_per_s),
        "payload": show.size(seen.payload_bytes),
        "transfers": "; ".join(transfers),
        "local steps": f"{show.count(seen.local_steps)} ({show.speed(seen.steps_per_s)}{paced})",
        "pace": show.pace(seen),
        "noise scale": "" if seen.noise_scale is None else f"{show.figure(seen.noise_scale)} samples",
        "machine": _costs(seen.resources),
        "task": seen.task or show.MISSING,
        "algorithm": f"{seen.algorithm or show.MISSING} on {seen.overlay or show.MISSING}",
        "parameters": show.count(seen.parameters),
        "device": seen.device or show.MISSING,
        "engine": f"{seen.engine_restarts} restarts",
        "up": show.duration(seen.uptime_s),
        "addresses": ", ".join(seen.addresses) or show.MISSING,
        "reached": _reached(seen),
        "privacy": "" if seen.delta is None else f"ε {show.privacy(seen.epsilon, seen.delta)}",
    }
    return listing({name: show.clean(text) for name, text in rows.items() if text})


def _reached(seen: StatusSnapshot) -> str:
    """Describe how members reach this node and this node some of them; "" while that is not known."""
    through = sum(bool(peer.relay) for peer in seen.peers)
    others = f"{through} {'member' if through == 1 else 'members'} through a relay" if through else ""
    relays = f"relays between {seen.relaying} {'pair' if seen.relaying == 1 else 'pairs'}" if seen.relaying else ""
    return "; ".join(filter(None, (show.reached(seen.reachability, seen.relays), others, relays)))


def _traffic(total: int, per_s: float | None, cap_per_s: int | None) -> str:
    cap = "" if cap_per_s is None else f" of at most {show.rate(cap_per_s)}"
    return f"{show.size(total)} ({show.rate(per_s)}{cap})"


def _costs(used: Resources) -> str:
    """Describe the resources that the node uses; unknown ones are left out."""
    parts = (
        "" if used.cpu is None else f"{used.cpu:.2f} cores",
        "" if used.threads is None else f"{used.threads} {'thread' if used.threads == 1 else 'threads'}",
        "" if used.memory_bytes is None else f"{show.size(used.memory_bytes)} memory",
        "" if used.disk_bytes is None else f"{show.size(used.disk_bytes)} disk",
        "" if used.gpu is None else f"GPU {used.gpu:.0%} busy",
        "" if used.gpu_memory_bytes is None else f"GPU memory {show.size(used.gpu_memory_bytes)}",
    )
    return ", ".join(filter(None, parts))


def peer_table(peers: tuple[PeerStatus, ...], width: int) -> RenderableType:
    """Return a row for each peer, in wide terminals with standing, inviters and whole ids."""
    from rich.text import Text

    if not peers:
        return "no peers known yet"
    invited = width >= INVITED_TOO and any(peer.inviter for peer in peers)
    full, standing = width >= WIDE, width >= WIDE_ENOUGH
    columns = ["peer", "state", "edge", ">round", ">rtt", ">sent", ">received", ">done", ">faults", ">seen"]
    columns += [">standing", ">score", ">staleness", ">clipped", ">contribution"] * standing + ["invited by"] * invited
    labels = show.labels({peer: peer for each in peers for peer in (each.peer, each.inviter) if peer})
    rows = (
        [
            show.clean(peer.peer) if full else labels[peer.peer],
            Text(peer.state, style="" if peer.state == "alive" else "yellow"),
            "yes" if peer.edge else "no",
            show.count(peer.round),
            show.latency(peer.rtt_s),
            show.size(peer.bytes_sent),
            show.size(peer.bytes_received),
            show.count(peer.committed),
            show.count(peer.faults),
            show.age(peer.last_seen_s),
            *(_standing(peer) if standing else ()),
            *([labels.get(peer.inviter, show.MISSING)] * invited),
        ]
        for peer in sorted(peers, key=lambda peer: (not peer.edge, peer.state != "alive", peer.peer))
    )
    return table(columns, rows)


def _standing(peer: PeerStatus) -> list[str]:
    """Return state and the time it still lasts, score, staleness, clipped share, contribution. `trusted` replaces the state."""
    left = f" {show.age(peer.shut_out_s)}" if peer.shut_out_s is not None else ""
    shares = [show.MISSING if share is None else f"{share:.0%}" for share in (peer.staleness, peer.clipped)]
    state = "trusted" if peer.trusted else f"{peer.standing}{left}"
    return [state, f"{peer.score:.1f}", *shares, f"{peer.contribution:.1f}"]
