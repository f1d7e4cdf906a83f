"""Speed of a node that exchanges, relative to a plain loop and to itself without exchanges, measured in a separate process.

    python -m starling.kernels.overlap MODEL D MBIT PACE DRIVER SECONDS REPEAT        JSON on standard output

Two node processes on loopback, each pinned to cores of its own, with its line capped. First each trains alone, in a swarm of its own, at
the same time as the other: so both share the machine's memory as they do later. Then they train as a swarm. Local steps are counted from
the first change of a node's count to the last one in the time, so waiting for peers counts. Before them two plain PyTorch loops of the same
model train at the same time on the same cores (`starling.kernels.plain`). With the driver script the same loops do the nodes' local
steps, as members by `starling.Swarm`, on the cores of their node.

On a busy machine a ratio of speeds measures the other processes. `undisturbed` leaves out the time in which a node's engine was ready to
run and another process had its core, as Linux tells (schedstat), but for the time that the node's own daemon ran meanwhile. Of a script it
is the same, but for the time of its daemon and its engine, and of a plain loop the time that any other process had the core.

Shapes: d parameters.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import psutil

from starling.gossip.errors import ConfigError, GossipError
from starling.kernels.child import answer
from starling.kernels.member_steps import FOLDER
from starling.kernels.memory import LEAST, Engine, manifest
from starling.kernels.schema import DRIVERS, MODELS, PACES, OverlapCase
from starling.kernels.slices import children
from starling.node import child_node, platform
from starling.node.child_node import Node
from starling.node.config.schema import NumericsSection
from starling.node.status.control import ControlError
from starling.node.status.snapshot import StatusSnapshot

POLL_S = 0.02
PATIENCE_S = 180.0  # until both train
MOST_S = 20.0  # timeout in multiples of the measured time
WARM = 3  # first steps of a plain loop, which are not counted
CHANGES = 3  # of a count of local steps, the fewest that a speed is made of
LISTEN = "/ip4/127.0.0.1/tcp/0"
SAMPLES, SIDE, TEXT = 2000, 28, 200_000
CNN_FIXED, CNN_EACH = 160 + 4640 + 10, 1568 + 1 + 10  # parameters beside the hidden layer, and of each of its units
GPT_LAYERS, GPT_HEAD, CONTEXT, BYTES = 6, 32, 64, 256
EVER = 10**6


@dataclass(slots=True)
class Watched:
    """A node, and the times at which its count of local steps changed."""

    node: Node
    script: int = 0  # the process that does its local steps; 0: its engine
    status: StatusSnapshot | None = None
    counts: list[tuple[float, int, float]] = field(default_factory=list)  # time, number of steps, seconds lost to other processes
    peak: int = 0

    def look(self) -> None:
        """Read the node's status. Raises GossipError: it has ended."""
        self.node.raise_if_ended()
        with suppress(ControlError):
            self.status = status = self.node.status()
            if not self.counts or self.counts[-1][1] != status.local_steps:
                self.counts.append((time.monotonic(), status.local_steps, self._lost()))

    @property
    def rate(self) -> float:
        """Return the local steps per second between the first and the last change."""
        (began, first, _), (ended, last, _) = self.counts[1], self.counts[-1]
        return (last - first) / (ended - began)

    @property
    def undisturbed(self) -> float:
        """Return steps per second of the time that other processes did not take."""
        (began, first, before), (ended, last, after) = self.counts[1], self.counts[-1]
        lost = after - before
        return (last - first) / (ended - began - max(lost, 0.0))  # nan stays so

    def _lost(self) -> float:
        """Return the seconds in which the node's steps waited for a core; nan if the system does not report it."""
        import psutil

        assert self.node.process is not None
        daemon = self.node.process.pid
        with suppress(psutil.Error, OSError, IndexError, ValueError):
            engine = psutil.Process(daemon).children()[0].pid
            waited = _scheduled(self.script or engine)[1]
            ran = sum(_scheduled(each)[0] for each in ((daemon, engine) if self.script else (daemon,)))
            return (waited - ran) / 1e9
        return math.nan

    def weigh(self) -> None:
        """Record the peak of the engine's resident bytes, if the system reports them."""
        import psutil

        assert self.node.process is not None
        with suppress(psutil.Error, OSError):
            for child in psutil.Process(self.node.process.pid).children():
                lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
                self.peak = max(self.peak, *(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")))


def _scheduled(process: int) -> tuple[int, int]:
    """Return nanoseconds in which a process ran, and in which it waited for a core. Raises OSError: the system does not tell."""
    ran, waited = Path(f"/proc/{process}/schedstat").read_text().split()[:2]
    return int(ran), int(waited)


def measure(model: str, d: int, mbit: float, pace: str, driver: str, seconds: float, repeat: int) -> OverlapCase:
    """Measure one case. Raises ConfigError: an unknown model, pace or driver; GossipError: a node ended, or does not train."""
    for key, name, known in (("--model", model, MODELS), ("--pace", pace, PACES), ("--driver", driver, DRIVERS)):
        if name not in known:
            raise ConfigError(f"{key}: {name!r} is unknown, choose one of {', '.join(known)}")
    before = psutil.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="starling-overlap-") as folder:
        least = _least(Path(folder))
        repetitions = [_repetition(Path(folder) / str(number), model, d, mbit, pace, driver, seconds) for number in range(repeat)]
    of = sorted(repetitions, key=lambda each: each.swarm.steps_s / each.alone.steps_s)[(repeat - 1) // 2]
    return OverlapCase(
        model=model,
        d=of.parameters,
        link=mbit,
        pace=pace,
        driver=driver,
        plain_steps_s=round(of.plain.steps_s, 4),
        alone_steps_s=round(of.alone.steps_s, 4),
        swarm_steps_s=round(of.swarm.steps_s, 4),
        kept=round(of.swarm.steps_s / of.plain.steps_s, 4),
        kept_undisturbed=_known(of.swarm.undisturbed / of.plain.undisturbed),
        ratio=round(of.swarm.steps_s / of.alone.steps_s, 4),
        undisturbed=_known(of.swarm.undisturbed / of.alone.undisturbed),
        peak_bytes_per_parameter=round((of.peak - least) / of.parameters, 1),
        cores=len(_cores(0) or ()),
        exchanges=of.exchanges,
        payload_bytes=round(of.payload),
        load=(round(before, 2), round(psutil.getloadavg()[0], 2)),
    )


def _known(share: float) -> float | None:
    return None if math.isnan(share) else round(share, 4)


@dataclass(frozen=True, slots=True)
class _Speed:
    """Mean speed of two processes that train at once."""

    steps_s: float
    undisturbed: float
    """Of the time that others did not take; nan: unknown."""


@dataclass(frozen=True, slots=True)
class _Repetition:
    """Measurements of one repetition."""

    plain: _Speed
    alone: _Speed
    swarm: _Speed
    peak: int  # resident bytes of an engine
    exchanges: int
    payload: float  # bytes of one
    parameters: int


def _repetition(folder: Path, model: str, d: int, mbit: float, pace: str, driver: str, seconds: float) -> _Repetition:
    """Measure a plain loop, lone nodes, and the swarm."""
    nodes_of = partial(_nodes, mbit=mbit, script=driver == "script")
    folder.mkdir()
    chosen = task_of(model, d, folder) | {"pace.kind": pace, "pace.rounds": EVER, "pace.evaluate_every": EVER}
    plain = _plain(chosen, seconds)
    if pace == "steps":
        chosen["pace.overlap"] = True
    with nodes_of(folder / "alone", chosen | {"pace.quorum": 1}, together=False) as nodes:
        alone = _speed(nodes, seconds, lambda _each: True)
    with nodes_of(folder / "swarm", chosen | {"pace.quorum": 2}, together=True) as nodes:
        swarm = _speed(nodes, seconds, lambda each: each.status is not None and each.status.exchanges.committed > 0)
        statuses = [each.status for each in nodes if each.status is not None]
        peak = max(each.peak for each in nodes)
    exchanges = sum(status.exchanges.committed for status in statuses)
    done = [each for status in statuses for each in status.transactions if each.outcome == "committed"]
    payload = fmean(each.bytes_sent + each.bytes_received for each in done)
    return _Repetition(plain, alone, swarm, peak, exchanges, payload, statuses[0].parameters or d)


def _plain(chosen: Mapping[str, Any], seconds: float) -> _Speed:
    """Return the speed of plain loops, each with as many threads as a node has."""
    cores = [_cores(number) for number in range(2)]
    threads = max(1, len(cores[0] or ()))
    with children("plain", "plain", keys=chosen, threads=threads, cores=cores) as loops:
        for command in (f"steps {WARM}", f"seconds {seconds}"):
            for each in loops:
                each.tell(command)
            spent = [each.answer() for each in loops]
    clear = (each.steps / (each.wall_s - (math.nan if each.waited_s is None else each.waited_s)) for each in spent)
    return _Speed(fmean(each.steps / each.wall_s for each in spent), fmean(clear))


@contextmanager
def _nodes(folder: Path, chosen: Mapping[str, Any], *, mbit: float, script: bool, together: bool) -> Iterator[list[Watched]]:
    """Yield two nodes of one swarm, or of a swarm each, with their scripts if they have any; stop them at the end."""
    nodes: list[Watched] = []
    invite = ""
    try:
        for number in range(2):
            cores, cap = _cores(number), int(mbit * 1e6 / 8)
            own = {
                "up_bytes_per_s": cap,
                "down_bytes_per_s": cap,
                "threads": max(1, len(cores or ())),
                "trust": True,
                "linger_s": 0.0,
                "checkpoint_s": 3600.0,
                "script": script,
            }
            given: dict[str, Any] = {"shard": number, "listen": LISTEN, "device": "cpu", "config": own}
            where = folder / f"node-{number}"
            node = child_node.join(where, invite, **given) if invite else child_node.create(where, set=chosen, **given)
            node.start()
            nodes.append(Watched(node))
            if cores:
                assert node.process is not None
                platform.keep_to(node.process.pid, cores)  # inherited by its engine
            if together and not invite:
                invite = node.invited().invite
        with ExitStack() as scripts:
            for number, each in enumerate(nodes if script else ()):
                each.node.wait_until_up()
                keys, cores = {**chosen, FOLDER: str(each.node.run_dir)}, _cores(number)
                (loop,) = scripts.enter_context(children("member_steps", keys=keys, threads=max(1, len(cores or ())), cores=[cores]))
                loop.tell(f"steps {EVER}")
                each.script = loop.process.pid
            yield nodes
    finally:
        for each in nodes:
            each.node.stop()


def _speed(nodes: list[Watched], seconds: float, ready: Callable[[Watched], bool]) -> _Speed:
    """Measure local steps per second over `seconds`, or longer until each count has changed often enough."""
    deadline = time.monotonic() + PATIENCE_S
    while not all(ready(each) and len(each.counts) > 2 for each in nodes):
        _look(nodes, deadline)
    for each in nodes:
        each.counts.clear()
    began = time.monotonic()
    deadline = began + MOST_S * seconds
    while time.monotonic() - began < seconds or any(len(each.counts) < CHANGES + 2 for each in nodes):
        _look(nodes, deadline)
    for each in nodes:
        each.weigh()
    return _Speed(fmean(each.rate for each in nodes), fmean(each.undisturbed for each in nodes))


def _look(nodes: list[Watched], deadline: float) -> None:
    for each in nodes:
        each.look()
    if time.monotonic() > deadline:
        raise GossipError("bench overlap: the nodes are too slow here; try a smaller model, or a longer `--seconds`")
    time.sleep(POLL_S)


def task_of(model: str, d: int, folder: Path) -> dict[str, Any]:
    """Return manifest keys of a model with about d parameters, with data that need no download."""
    chance = np.random.default_rng(0)
    if model == "cnn":
        labels = chance.integers(0, 10, SAMPLES)
        images = chance.integers(0, 64, (SAMPLES, SIDE, SIDE), np.uint8)
        for label in range(10):  # a bright bar for each class
            images[labels == label, 2 * label + 4 : 2 * label + 6, 4:24] += 128
        np.savez(folder / "images.npz", x=images, y=labels)
        hidden = min(max(1, round((d - CNN_FIXED) / CNN_EACH)), 1 << 16)
        return {
            "task": "images",
            "task.model": "cnn",
            "task.path": str(folder / "images.npz"),
            "task.hidden": hidden,
            "partition": "iid",
            "partition.shards": 2,
        }
    words = [bytes(chance.integers(97, 123, length, np.uint8)) for length in chance.integers(2, 9, 500)]
    text = b" ".join(words[word] for word in chance.integers(0, len(words), TEXT // 6))
    (folder / "text.txt").write_bytes(text)
    layers, rows = 12 * GPT_LAYERS, BYTES + CONTEXT  # parameters of width w: layers·w² + rows·w
    width = (math.sqrt(rows**2 + 4 * layers * d) - rows) / (2 * layers)
    width = max(1, round(width / GPT_HEAD)) * GPT_HEAD
    return {
        "task": "text",
        "task.path": str(folder / "text.txt"),
        "task.context": CONTEXT,
        "task.width": width,
        "task.layers": GPT_LAYERS,
        "task.heads": width // GPT_HEAD,
        "task.batch_size": 4,
        "optimizer": "adamw",
        "optimizer.lr": 3e-4,
        "partition": "iid",
        "partition.shards": 2,
        "pace.local_steps": 5,
    }


def _cores(number: int) -> set[int] | None:
    """Return the cores of one of two nodes: half of those that this process may use; None if there are fewer than two."""
    usable = sorted(platform.usable_cores())
    half = len(usable) // 2
    return set(usable[number * half : (number + 1) * half]) or None


def _least(folder: Path) -> int:
    """Return the resident bytes of an engine with a tiny model."""
    engine = Engine(manifest("default", LEAST, folder), "hub", "", NumericsSection())
    try:
        return engine.resident()[0]
    finally:
        engine.close()


if __name__ == "__main__":
    model_, d_, mbit_, pace_, driver_, seconds_, repeat_ = sys.argv[1:]
    sys.exit(answer(lambda: measure(model_, int(d_), float(mbit_), pace_, driver_, float(seconds_), int(repeat_))))
