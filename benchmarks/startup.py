"""Time until `starling` answers and a node listens, and memory of its daemon while it trains.

Figures; a time is given as the median and the worst of the repetitions:

    help_s        `starling --help`, from before the process to after it
    help_cpu_s    its processor time, which a busy machine does not change much
    listening_s   from before `starling run` until the node's status names an address it listens on
    listening_cpu_s   processor time of the daemon up to then
    opened_s      from before `starling run` until its engine (a process of its own, with torch) has opened model and data
    daemon_mb.begin, daemon_mb.end, daemon_mb.peak   resident memory of the daemon without its engine, in 10^6 bytes: the largest
                  of a swarm's nodes when training has begun, at the end of the run, and at any time

A time has a granularity of POLL_S.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from benchmarks import facts
from benchmarks.recipes import StartupRecipe
from benchmarks.results import Run
from starling.node.config import manifest, toml
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.demo.swarm import Demo, Member, Plan
from starling.node.identity import Identity
from starling.node.status import control
from starling.node.status.snapshot import StatusSnapshot
from starling.node.storage.run_dir import RunDir

POLL_S = 0.01
PATIENCE_S = 60.0
LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
TIMES = ("help_s", "help_cpu_s", "listening_s", "listening_cpu_s", "opened_s")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Resident memory of one daemon, in bytes."""

    begin: int
    end: int
    peak: int


def measure(recipe: StartupRecipe) -> list[Run]:
    """Measure the repetitions first, then the swarm's memory."""
    runs: list[Run] = []
    for repetition in range(recipe.repeats + 1):
        with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
            run = {"load": facts.load(), **time_help(), **time_node(Path(folder))}
        if repetition > 0:  # the first one compiled byte code and filled the machine's file cache
            runs.append(run)
    return [*runs, {"memory": [msgspec.to_builtins(each) for each in memory(recipe)]}]


def figures(runs: Sequence[Run]) -> dict[str, float]:
    """Return the figures of the runs."""
    table: dict[str, float] = {}
    for name in TIMES:
        values = [run[name] for run in runs if name in run]
        table |= {f"{name}.median": median(values), f"{name}.worst": max(values)}
    daemons = [daemon for run in runs for daemon in run.get("memory", ())]
    for name in Memory.__struct_fields__:
        table[f"daemon_mb.{name}"] = max(daemon[name] for daemon in daemons) / 1e6
    return table


def time_help() -> Run:
    """Time `starling --help` once."""
    began = time.monotonic()
    process = subprocess.Popen([Path(sys.executable).with_name("starling"), "--help"], stdout=subprocess.DEVNULL, env=facts.environment())
    _, code, usage = os.wait4(process.pid, 0)
    wall_s = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(code)  # reaped above, for its processor time
    if process.returncode != 0:
        raise RuntimeError(f"`starling --help` ended with {process.returncode}")
    return {"help_s": round(wall_s, 4), "help_cpu_s": round(usage.ru_utime + usage.ru_stime, 4)}


def time_node(folder: Path) -> Run:
    """Return a creator of a digits swarm, from process start to engine opened, alone."""
    import psutil

    run_dir = RunDir.create(folder)
    run_dir.write_config(NodeConfig(listen=LOOPBACK))
    creator = Identity.load_or_create(run_dir.key)
    run_dir.write_manifest(manifest.create(Manifest(), creator, time.time_ns() // 1_000_000))
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "starling.node.cli.main", "run", "--dir", str(folder), "--until-stdin-closes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=facts.environment(),
        cwd=facts.ROOT,
    )
    with process:  # closes its standard input, upon which it ends, and waits
        _wait(process, folder, lambda status: bool(status.addresses))
        listening_s = time.monotonic() - began
        used = psutil.Process(process.pid).cpu_times()
        _wait(process, folder, lambda status: status.parameters is not None)
        opened_s = time.monotonic() - began
    return {"listening_s": round(listening_s, 4), "listening_cpu_s": round(used.user + used.system, 4), "opened_s": round(opened_s, 4)}


def _wait(process: subprocess.Popen[bytes], folder: Path, there: Callable[[StatusSnapshot], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if there(control.status(folder)):
                return
        except control.ControlError:
            if process.poll() is not None:
                raise RuntimeError(f"`starling run` ended with {process.returncode}") from None
        time.sleep(POLL_S)
    raise RuntimeError(f"`starling run` was not up after {PATIENCE_S:.0f} s")


def memory(recipe: StartupRecipe) -> list[Memory]:
    """Return the memory of every daemon of a demo swarm."""
    chosen = [f"pace.quorum={recipe.nodes}", f"partition.shards={recipe.nodes}", f"pace.rounds={recipe.rounds}"]
    begin: dict[int, int] = {}
    end: dict[int, tuple[int, int]] = {}
    with Demo(Plan(manifest=toml.apply_set(Manifest(), chosen), nodes=recipe.nodes)) as demo:

        def look(_fraction: float, _line: str) -> None:
            for member in demo.members:
                if (sizes := _resident(member)) is not None:
                    begin.setdefault(member.index, sizes[0])
                    end[member.index] = sizes

        demo.run(look)
    return [Memory(begin=begin[index], end=now, peak=peak) for index, (now, peak) in sorted(end.items())]


def _resident(member: Member) -> tuple[int, int] | None:
    """Return (now, at most so far) in bytes, of a node that has trained."""
    if member.process is None or member.down or member.snapshot is None or member.snapshot.local_steps == 0:
        return None
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{member.process.pid}/status").read_text().splitlines())
    now, peak = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now, peak
