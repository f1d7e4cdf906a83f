"""A model that is large for its machine, on real nodes: two train it, one is killed and resumes, a third joins late.

All on loopback, each node with the caps of a shaped line. In order: both train `before` rounds; the second is killed (SIGKILL) and started
again at once; when it exchanges, a third joins; the run ends when the third has done `after` rounds of its own.

Figures, of the nodes where it does not say which the worst:

    model.parameters
    round.seconds, round.local_steps_s      of both nodes before the kill: median time of a round, and of its local steps
    exchange.payload_bytes_per_parameter    both directions of a committed exchange
    exchange.committed, exchange.timeout    ends of exchanges, all nodes counted
    engine.peak_mb, engine.peak_bytes_per_parameter     most resident in 10^6 bytes; torch and the interpreter are in it
    daemon.peak_mb
    checkpoint.bytes_per_parameter          of one file
    resumed.seconds                         from the start of the killed node's process until it trains
    resumed.exchange_s                      … until its first exchange is committed
    resumed.rounds_lost                     from the round in which it was killed to the one it resumed
    late.seconds                            from the start of the third node's process until it has the swarm's model
    late.exchange_s                         … until its first exchange is committed
    late.bytes_per_parameter                received until it had the model
    loss.first, loss.last                   nats a byte: the first node's first round, mean of its last five
"""

from __future__ import annotations

import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks import facts
from benchmarks.recipes import LargeRecipe
from benchmarks.results import Figures, Run
from starling.gossip.errors import GossipError
from starling.node import child_node
from starling.node.child_node import Node
from starling.node.status.control import ControlError
from starling.node.status.snapshot import StatusSnapshot

POLL_S = 0.5
GRACE_S = 60.0  # seconds for a last checkpoint
TEXTS = ("docs/protocol.md", "docs/algorithms.md", "docs/observing.md")
LISTEN = "/ip4/127.0.0.1/tcp/0"


@dataclass(slots=True)
class Watched:
    """A node, and the peak memory of its processes."""

    node: Node
    status: StatusSnapshot | None = None
    peaks: dict[str, int] = field(default_factory=dict)  # bytes of "engine" and "daemon"
    rounds: dict[int, float] = field(default_factory=dict)  # time at which each was first seen done
    steps_per_s: list[float] = field(default_factory=list)

    def look(self) -> StatusSnapshot | None:
        """Read status and memory, as far as the node answers. Raises GossipError: it has ended."""
        self.node.raise_if_ended()
        with suppress(ControlError):
            self.status = status = self.node.status()
            self.rounds.setdefault(status.round, time.monotonic())
            if status.steps_per_s:
                self.steps_per_s.append(status.steps_per_s)
        self._weigh()
        return self.status

    def _weigh(self) -> None:
        import psutil

        assert self.node.process is not None
        with suppress(psutil.Error, OSError):
            daemon = psutil.Process(self.node.process.pid)
            for name, process in (("daemon", daemon), *(("engine", child) for child in daemon.children())):
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                peak = next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)
                self.peaks[name] = max(peak, self.peaks.get(name, 0))

    @property
    def committed(self) -> int:
        return 0 if self.status is None else self.status.exchanges.committed


@dataclass(slots=True)
class Swarm:
    """The nodes of a run."""

    recipe: LargeRecipe
    folder: Path
    nodes: list[Watched] = field(default_factory=list)
    invite: str = ""
    deadline: float = 0.0

    def start(self) -> Watched:
        """Start one more node."""
        number, cap = len(self.nodes), int(self.recipe.mbit * 1e6 / 8)
        where = self.folder / f"node-{number}"
        own = {
            "up_bytes_per_s": cap,
            "down_bytes_per_s": cap,
            "threads": 1,
            "trust": True,
            "linger_s": 600.0,
            "checkpoint_s": self.recipe.checkpoint_s,
            **_pairs(self.recipe.node),
        }
        shared: dict[str, Any] = {"shard": number, "listen": LISTEN, "device": "cpu", "config": own}
        invite = self.invite
        node = child_node.join(where, invite, **shared) if invite else child_node.create(where, set=self._agreed(), **shared)
        node.start()
        self.nodes.append(watched := Watched(node))
        if not self.invite:
            self.invite = node.invited().invite
        return watched

    def _agreed(self) -> dict[str, Any]:
        texts = self.folder / "texts"
        texts.mkdir()
        for number, name in enumerate(TEXTS):
            (texts / f"{number}.txt").write_bytes((facts.ROOT / name).read_bytes()[: self.recipe.text_bytes])
        chosen = {
            "task": "text",
            "task.path": str(texts),
            "task.batch_size": 1,
            "partition": "iid",
            "partition.shards": 3,
            "pace.rounds": 10_000,
            "pace.quorum": 2,
        }
        return chosen | _pairs(self.recipe.set)

    def until(self, there: Callable[[], bool], what: str) -> float:
        """Poll all nodes until a condition holds; return the time. Raises RuntimeError: it takes too long."""
        while True:
            for each in self.nodes:
                each.look()
            if there():
                return time.monotonic()
            if time.monotonic() > self.deadline:
                states = ", ".join("–" if it.status is None else f"{it.status.state} {it.status.round}" for it in self.nodes)
                raise RuntimeError(f"large: {what} took longer than {self.recipe.patience_s:g} s ({states})")
            time.sleep(POLL_S)


def measure(recipe: LargeRecipe, kept: Path | None = None) -> list[Run]:
    """Do one run, in a folder that is deleted afterwards, or in `kept`.

    Raises:
        RuntimeError: a node ended or did not get where it should.
    """
    with ExitStack() as stack:
        folder = kept or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="starling-large-")))
        swarm = Swarm(recipe, folder, deadline=time.monotonic() + recipe.patience_s)
        try:
            return [_run(swarm)]
        except GossipError as error:
            raise RuntimeError(f"large: {error}") from error
        finally:
            for each in swarm.nodes:
                each.node.stop(GRACE_S)


def _run(swarm: Swarm) -> Run:
    recipe, before, began = swarm.recipe, facts.load(), time.monotonic()
    first, second = swarm.start(), swarm.start()
    pair = (first, second)
    swarm.until(lambda: all(max(each.rounds, default=0) >= recipe.before for each in pair), "training")
    rounds = [spans(each.rounds) for each in pair]
    steps = [1.0 / median(each.steps_per_s) for each in pair]
    payload = _each(first)
    trained = swarm.until(lambda: _saved(second), "a checkpoint") - began

    killed_at, at_kill, done = max(second.rounds), time.monotonic(), second.committed
    assert second.node.process is not None
    second.node.process.kill()
    second.node.stop()
    second.status, second.rounds = None, {}
    second.node.start()
    resumed = swarm.until(lambda: _in(second, "training") and bool(second.status and second.status.parameters), "resuming")
    resumed_at = second.status.round if second.status else 0
    resumed_exchange = swarm.until(lambda: second.committed > 0, "an exchange of the resumed node")

    at_join = time.monotonic()
    third = swarm.start()
    late = swarm.until(lambda: third.status is not None and third.status.joined_late, "the late joiner's model")
    received = third.status.bytes_received if third.status else 0
    late_exchange = swarm.until(lambda: third.committed > 0, "an exchange of the late joiner")
    joined_at = min((number for number in third.rounds if number), default=0)
    swarm.until(lambda: max(third.rounds) >= joined_at + recipe.after, "rounds of three")
    statuses = [each.status for each in swarm.nodes if each.status is not None]
    size = max((each.node.run_dir / "checkpoint.safetensors").stat().st_size for each in pair)
    return {
        "load": [before, facts.load()],
        "wall_s": round(time.monotonic() - began, 1),
        "trained_s": round(trained, 1),
        "parameters": statuses[0].parameters,
        "round_s": [round(span, 2) for spans in rounds for span in spans],
        "local_steps_s": [round(each * recipe.local_steps, 2) for each in steps],
        "payload_bytes": payload,
        "engine_peaks": [each.peaks["engine"] for each in swarm.nodes],
        "daemon_peaks": [each.peaks["daemon"] for each in swarm.nodes],
        "checkpoint_bytes": size,
        "resumed_s": round(resumed - at_kill, 2),
        "resumed_exchange_s": round(resumed_exchange - at_kill, 2),
        "rounds_lost": killed_at - resumed_at,
        "late_s": round(late - at_join, 2),
        "late_exchange_s": round(late_exchange - at_join, 2),
        "late_bytes": received,
        "late_round": joined_at,
        "rounds": [status.round for status in statuses],
        "committed": [status.exchanges.committed for status in statuses],
        "before_kill": done,
        "timeout": [status.exchanges.timeout for status in statuses],
        "losses": [[point.round, round(point.value, 4)] for point in statuses[0].loss_curve],
        "events": [[event.name for event in status.events] for status in statuses],
    }


def figures(runs: Sequence[Run]) -> Figures:
    """Return the figures of the run."""
    (run,) = runs
    d, losses = run["parameters"], [value for _, value in run["losses"]]
    return {
        "model.parameters": d,
        "round.seconds": median(run["round_s"]),
        "round.local_steps_s": median(run["local_steps_s"]),
        "exchange.payload_bytes_per_parameter": run["payload_bytes"] / d,
        "exchange.committed": sum(run["committed"]),
        "exchange.timeout": sum(run["timeout"]),
        "engine.peak_mb": max(run["engine_peaks"]) / 1e6,
        "engine.peak_bytes_per_parameter": max(run["engine_peaks"]) / d,
        "daemon.peak_mb": max(run["daemon_peaks"]) / 1e6,
        "checkpoint.bytes_per_parameter": run["checkpoint_bytes"] / d,
        "resumed.seconds": run["resumed_s"],
        "resumed.exchange_s": run["resumed_exchange_s"],
        "resumed.rounds_lost": run["rounds_lost"],
        "late.seconds": run["late_s"],
        "late.exchange_s": run["late_exchange_s"],
        "late.bytes_per_parameter": run["late_bytes"] / d,
        "loss.first": losses[0] if losses else None,
        "loss.last": fmean(losses[-5:]) if losses else None,
    }


def _pairs(words: Sequence[str]) -> dict[str, Any]:
    """Parse KEY=VALUE, with values as in TOML, else bare words."""
    values: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        try:
            values[key] = tomllib.loads(f"it = {value}")["it"]
        except tomllib.TOMLDecodeError:
            values[key] = value
    return values


def spans(seen: dict[int, float]) -> Iterator[float]:
    """Return the seconds of each observed round; the first includes the start."""
    numbers = sorted(seen)[1:]
    for one, other in pairwise(numbers):
        yield (seen[other] - seen[one]) / (other - one)


def _each(watched: Watched) -> float:
    """Return the payload bytes of an exchange, in both directions."""
    assert watched.status is not None
    done = [each for each in watched.status.transactions if each.outcome == "committed"]
    return fmean(each.bytes_sent + each.bytes_received for each in done)


def _saved(watched: Watched) -> bool:
    return (watched.node.run_dir / "checkpoint.safetensors").exists()


def _in(watched: Watched, state: str) -> bool:
    return watched.status is not None and watched.status.state == state
