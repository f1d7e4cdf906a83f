"""Train one small model in Starling and in other frameworks, and compare accuracy, bytes and seconds.

    python -m benchmarks.peers                      all of them; 1.5 GB are installed below build/peers, minutes
    python -m benchmarks.peers starling hivemind    some
    python -m benchmarks.peers --seeds 0 1 2 --out benchmarks/peers/results

Each framework is installed from PyPI into an environment of its own, in the version that docs/comparison.md speaks of; this project's torch
serves all. Runs follow one another. Where the system lets a user have a network of his own (`unshare -rn`), a run has one, and
`bytes_per_node` is all that crossed its loopback over the number of nodes: servers, schedulers and discovery included. Elsewhere bytes are
not counted.
Exit code 1 if a framework could not be installed or a run of it did not end; the others are reported all the same. With byzfl, whose
subject they are, its rules are measured beside ours as well, by `starling bench rules`; `python -m benchmarks.run rules` has bounds, and
longer vectors.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import facts
from benchmarks.peers.world import World

RUNS = Path(__file__).parent / "scripts"
ENVIRONMENTS = facts.ROOT / "build" / "peers"


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A framework. Starling itself needs no installation and no script.

    Args:
        package: what pip installs, NAME==VERSION.
        script: of `scripts`.
        others: further words of `pip install`.
    """

    package: str = ""
    script: str = ""
    others: tuple[str, ...] = ()


PEERS = {
    "starling": Peer(),
    "flower": Peer(package="flwr[simulation]==1.42.0", script="flower.py"),
    "hivemind": Peer(package="hivemind==1.1.12", script="hivemind_.py"),
    "nvflare": Peer(package="nvflare==2.9.0", script="nvflare_.py"),
    # alone: torchvision, which only its own data sets need, would bring a second torch of gigabytes
    "byzfl": Peer(package="byzfl==0.0.11", script="byzfl_.py", others=("--no-deps", "scipy==1.17.1")),
    # its `datasets` is of 2023 and does not declare that it needs libraries of that time; without opendp the package cannot be imported
    "p2pfl": Peer(package="p2pfl[dp]==0.4.4", script="p2pfl_.py", others=("pyarrow==17.0.0", "huggingface_hub==0.25.2")),
}
RULES = ("median", "trimmed_mean", "geometric_median", "multi_krum", "nnm")
RULES_DIM = 1_000_000
LONGEST_S = 1800
_ALONE = 'ip link set lo up && "$@"; code=$?; cat /proc/net/dev > "$COUNTED"; exit $code'


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Args:
        peer: name.
        seed: of the cut of the data, the first model and the batches.
        version: what was installed.
        mean, least: accuracy of the models it ended with, on the test split.
        bytes_per_node: that crossed loopback, over the nodes; None where that cannot be counted.
        seconds: from the first process that trains to the last model, starts of its servers included.
        cpu_s: processor time of all its processes that were waited for.
        load: one-minute load average before and after.
    """

    peer: str
    seed: int
    version: str
    mean: float
    least: float
    bytes_per_node: float | None
    seconds: float
    cpu_s: float
    load: tuple[float, float]


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="One run, in several frameworks.")
    parser.add_argument("peers", nargs="*", metavar="NAME", help=f"of {', '.join(PEERS)}; default: all")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="runs of each; default: 0 1 2")
    parser.add_argument("--out", type=Path, help="folder for a result, YYYY-MM-DD-peers.json")
    given = parser.parse_args(words)
    if unknown := sorted({*given.peers} - {*PEERS}):
        parser.error(f"unknown peer {unknown[0]!r}: choose from {', '.join(PEERS)}")
    outcomes: list[Outcome] = []
    cases: list[dict[str, Any]] = []
    failed = set()
    for seed, name in product(given.seeds, given.peers or PEERS):
        try:
            outcomes.append(run(name, World(nodes=given.nodes, rounds=given.rounds, seed=seed)))
            if name == "byzfl" and not cases:
                cases = rules()
        except (RuntimeError, subprocess.SubprocessError) as error:
            failed.add(name)
            print(f"{name}, seed {seed}: {error}", file=sys.stderr)
            continue
        print(line(outcomes[-1]), flush=True)
    for case in cases:
        print(f"rule {case['rule']}: ours {case['ours_cpu_s']:.3f} s, byzfl's {case['peer_cpu_s']:.3f} s of processor")
    if given.out and outcomes:
        given.out.mkdir(parents=True, exist_ok=True)
        world = World(nodes=given.nodes, rounds=given.rounds, seed=given.seeds[0])
        document = {
            "world": world,
            "seeds": given.seeds,
            "facts": facts.gather(),
            "dense_bytes": world.bytes_of_parameters(),
            "runs": outcomes,
            "rules": cases,
        }
        path = given.out / f"{datetime.now(UTC):%Y-%m-%d}-peers.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    return 1 if failed else 0


def line(outcome: Outcome) -> str:
    """Return a table row for a person."""
    megabytes = None if outcome.bytes_per_node is None else outcome.bytes_per_node / 1e6
    sent = "not counted" if megabytes is None else f"{megabytes:,.2f} MB a node" if megabytes else "nothing sent"
    return (
        f"{outcome.peer} {outcome.version}, seed {outcome.seed}: accuracy {outcome.mean:.3f}, least {outcome.least:.3f}; {sent}; "
        f"{outcome.seconds:.0f} s, {outcome.cpu_s:.0f} s of processor (load {outcome.load[0]:.1f})"
    )


def run(name: str, world: World) -> Outcome:
    """Install missing packages, and train. Raises RuntimeError: the run failed."""
    peer = PEERS[name]
    print(f"{name}, seed {world.seed} …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="starling-peers-") as scratch:
        file = Path(scratch) / "world.npz"
        world.write(file)
        if peer.package:
            command = [str(environment(name)), str(RUNS / peer.script), str(file)]
        else:
            command = [sys.executable, "-m", "starling", *demo(world)]
        before, began, used = facts.load(), time.monotonic(), os.times()
        output, sent = counted(command, Path(scratch))
        seconds, after = time.monotonic() - began, os.times()
    values = [*map(float, values_of(name, output))]
    spent = after.children_user + after.children_system - used.children_user - used.children_system
    version = peer.package.partition("==")[2] or facts.gather().commit[:10]
    return Outcome(
        peer=name,
        seed=world.seed,
        version=version,
        mean=sum(values) / len(values),
        least=min(values),
        bytes_per_node=None if sent is None else sent / world.nodes,
        seconds=seconds,
        cpu_s=spent,
        load=(before, facts.load()),
    )


def demo(world: World) -> list[str]:
    """Run the same with this project and its defaults: difference tracking, a few percent of the coordinates in four bits."""
    settings = {
        "partition.kind": "dirichlet",
        "partition.alpha": world.alpha,
        "pace.local_steps": world.local_steps,
        "optimizer.lr": world.lr,
        "optimizer.momentum": world.momentum,
        "task.batch_size": world.batch,
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return [
        "demo",
        "--json",
        "--no-tui",
        "--no-alone",
        "--nodes",
        str(world.nodes),
        "--rounds",
        str(world.rounds),
        "--seed",
        str(world.seed),
        *sets,
    ]


def values_of(name: str, output: str) -> Sequence[float]:
    """Return the accuracy of each model. Raises RuntimeError: the last lines are not a report."""
    try:
        if name == "starling":
            return [node["value"] for node in json.loads(output)["nodes"]]
        return json.loads(output.strip().splitlines()[-1])["values"]  # type: ignore[no-any-return]
    except (ValueError, LookupError, TypeError) as error:
        raise RuntimeError(f"no report, but: {output[-500:]!r}") from error


def counted(command: Sequence[str], scratch: Path) -> tuple[str, int | None]:
    """Return the standard output of a command, and the bytes that crossed loopback if it can have its own network.

    Raises RuntimeError: its exit code is not 0. Raises subprocess.TimeoutExpired: it took longer than LONGEST_S.
    """
    file, log = scratch / "counted", scratch / "log"
    alone = ["unshare", "-rn", "sh", "-c", _ALONE, "sh"] if _may_be_alone() else []
    telling = {"COUNTED": str(file), "FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "OMP_NUM_THREADS": "1"}
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*alone, *command],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=facts.environment() | telling,
            cwd=scratch,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=LONGEST_S)
        finally:  # some leave a daemon or a worker running, which would disturb the next run
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"ended with {process.returncode}: {log.read_text()[-1000:]}")
    match = re.search(r"lo:\s*(\d+)", file.read_text()) if file.exists() else None
    return output, int(match[1]) if match else None


def _may_be_alone() -> bool:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run(["unshare", "-rn", "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode == 0


def rules() -> list[dict[str, Any]]:
    """Return `RuleCase`s of RULES, ours and those of the installed byzfl. Raises RuntimeError: the command failed."""
    (site,) = environment("byzfl").parents[1].glob("lib/python*/site-packages")
    chosen = [word for rule in RULES for word in ("--rule", rule)]
    environ = facts.environment()
    environ["PYTHONPATH"] += f"{os.pathsep}{site}"
    done = subprocess.run(
        [sys.executable, "-m", "starling", "bench", "rules", "--d", str(RULES_DIM), *chosen, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_S,
        env=environ,
    )
    if done.returncode != 0:
        raise RuntimeError(f"`starling bench rules` ended with {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout)["cases"]  # type: ignore[no-any-return]


def environment(name: str) -> Path:
    """Return the interpreter of a framework's environment, made at first use. Raises RuntimeError: pip could not install it."""
    words = [PEERS[name].package, *PEERS[name].others]
    wanted, folder = " ".join(words), ENVIRONMENTS / name
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists() or ready.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "after.pth").write_text(sysconfig.get_path("purelib") + "\n")  # this project's torch and NumPy, behind its own
        done = subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"pip could not install {wanted}: {done.stderr[-500:]}")
        ready.write_text(wanted)
    return python


if __name__ == "__main__":
    raise SystemExit(main())
