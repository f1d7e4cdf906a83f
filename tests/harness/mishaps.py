"""Mishaps of real networks and machines, one per file (`benchmarks/mishaps`): events by time, and requirements afterwards.

Whole nodes play a file in virtual time (`play`). There a sleeping node computes nothing, and frames to and from it arrive when it wakes; a
node that moves loses its connections.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import trio

from starling.node.config.schema import Manifest, PaceSection, PartitionSection, TaskSection
from starling.node.net.faults import Deliver, Drop
from starling.node.simulate.virtual.swarm import VirtualSwarm
from tests.harness.swarms import agree, faults, rounds_done, until

FOLDER = Path(__file__).parents[2] / "benchmarks" / "mishaps"
STEP_S, LOCAL_STEPS = 0.25, 2  # a round takes half a second
BEFORE_S = 5.0  # time before the first mishap, in which the usual speed is measured
AFTER_S, MEASURED_S = 20.0, 10.0  # time after the last one until the speed must be back, and duration of the measurement


class Mishap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event that affects some nodes."""

    at_s: Annotated[float, msgspec.Meta(ge=BEFORE_S)]
    kind: Literal["cut", "mute", "sleep", "move", "clock"]
    nodes: tuple[int, ...]
    for_s: float = 0.0
    every_s: float = 0.0  # interval of repetitions, each lasting half of it; 0: it lasts `for_s`
    by_s: float = 0.0  # of a clock

    def lasts(self, now: float) -> bool:
        """Return whether it is active, `now` seconds after the beginning."""
        into = now - self.at_s
        return 0.0 <= into < self.for_s and (not self.every_s or into % self.every_s < self.every_s / 2)


class Bars(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The requirements; shares are relative to the time before the first mishap."""

    whole_s: float
    others: float = 0.0  # exchanges among unaffected nodes while it lasts
    rounds: float = 0.0  # speed of the slowest node after the last mishap


class Story(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a file."""

    name: str
    nodes: int
    mishaps: tuple[Mishap, ...]
    bars: Bars

    @property
    def begins(self) -> float:
        return min(it.at_s for it in self.mishaps)

    @property
    def ends(self) -> float:
        return max(it.at_s + it.for_s for it in self.mishaps)

    @property
    def spared(self) -> tuple[int, ...]:
        """Return the unaffected nodes."""
        return tuple(sorted(set(range(self.nodes)) - {node for it in self.mishaps for node in it.nodes}))


def read(name: str) -> Story:
    """Read a file by its name."""
    return msgspec.toml.decode((FOLDER / f"{name}.toml").read_bytes(), type=Story)


def names() -> list[str]:
    return sorted(it.stem for it in FOLDER.glob("*.toml"))


@dataclass(slots=True)
class Outcome:
    """The measurements."""

    whole_s: float  # time until every node lists all others, after the last mishap
    others: float
    rounds: float
    faults: set[tuple[str, str]] = field(default_factory=set)

    def misses(self, bars: Bars) -> list[str]:
        """Return the requirements that are not met."""
        return [
            f"{name}: {got:.2f}, must be {'at most' if name == 'whole_s' else 'at least'} {bar}"
            for name, got, bar in (
                ("whole_s", self.whole_s, bars.whole_s),
                ("others", self.others, bars.others),
                ("rounds", self.rounds, bars.rounds),
            )
            if (got > bar if name == "whole_s" else got < bar)
        ]


class _Virtual:
    """Mishaps of a virtual swarm that began at `began`."""

    def __init__(self, story: Story, seed: int, manifest: Manifest | None = None) -> None:
        self._story, self._began = story, 0.0
        self._off = dict.fromkeys(range(story.nodes), 0.0)
        self.swarm = VirtualSwarm(
            manifest or _endless(story), seed=seed, step_cost_s=lambda _index: STEP_S, rules=[self._fate], clock_off_s=self._off.__getitem__
        )

    @property
    def now(self) -> float:
        return trio.current_time() - self._began

    def begin(self) -> None:
        self._began = trio.current_time()
        for index, it in self.swarm.nodes.items():
            self._let_sleep(index, it.node.running.engine)

    def _on(self, *kinds: str) -> Iterator[Mishap]:
        return (it for it in self._story.mishaps if it.kind in kinds and self._began and it.lasts(self.now))

    def _fate(self, src: str, dst: str, _now: float) -> Deliver | Drop | None:
        on = list(self._on("cut", "mute", "sleep"))
        if not on:
            return None
        index = {it.peer_id: index for index, it in self.swarm.nodes.items()}
        ends = index.get(src, -1), index.get(dst, -1)
        for it in on:
            sent, received = (end in it.nodes for end in ends)
            if it.kind == "sleep" and (sent or received):
                return Deliver(it.at_s + it.for_s - self.now)  # it waits before being sent or read
            if (it.kind == "cut" and sent != received) or (it.kind == "mute" and sent):
                return Drop()
        return None

    def _let_sleep(self, index: int, engine: object) -> None:
        call = engine.call

        async def slept(request: object) -> object:
            for it in self._on("sleep"):
                if index in it.nodes:
                    await trio.sleep(it.at_s + it.for_s - self.now)
            return await call(request)

        engine.call = slept

    async def happen(self) -> None:
        """Apply one-time events at their times."""
        for it in sorted(self._story.mishaps, key=lambda it: it.at_s):
            await trio.sleep(max(0.0, it.at_s - self.now))
            for node in it.nodes:
                if it.kind == "clock":
                    self._off[node] += it.by_s
                elif it.kind == "move":
                    peer = self.swarm.nodes[node].peer_id
                    for other in self.swarm.nodes.values():
                        self.swarm.hub.sever(peer, other.peer_id)


def _endless(story: Story) -> Manifest:
    pace = PaceSection(kind="steps", local_steps=LOCAL_STEPS, rounds=0, quorum=story.nodes, max_wait_s=2.0, evaluate_every=10**6)
    task = TaskSection(kind="quadratic", nodes=story.nodes, dim=8)
    return Manifest(task=task, partition=PartitionSection(shards=story.nodes), pace=pace)


async def accuracy(story: Story, seed: int, rounds: int) -> list[float]:
    """Return every node's accuracy after this many rounds with the story, on randomly split digits."""
    pace = PaceSection(kind="steps", local_steps=LOCAL_STEPS, rounds=rounds, quorum=story.nodes, max_wait_s=2.0, evaluate_every=rounds)
    play = _Virtual(story, seed, Manifest(partition=PartitionSection(shards=story.nodes), pace=pace))
    async with play.swarm.running(story.nodes), trio.open_nursery() as nursery:
        await until(lambda: rounds_done(play.swarm, 2))
        play.begin()
        nursery.start_soon(play.happen)
        await until(lambda: all(it.node.progress.evaluated.round == rounds for it in play.swarm.nodes.values()), 10.0 * rounds)
        nursery.cancel_scope.cancel()
    return [it.node.progress.evaluated.value for it in play.swarm.nodes.values()]


async def play(story: Story, seed: int) -> Outcome:
    """Run the story on whole nodes in virtual time."""
    play = _Virtual(story, seed)
    swarm = play.swarm
    async with swarm.running(story.nodes), trio.open_nursery() as nursery:
        await until(lambda: rounds_done(swarm, 2))
        play.begin()
        nursery.start_soon(play.happen)

        def rounds() -> dict[int, int]:
            return {index: it.node.progress.round for index, it in swarm.nodes.items()}

        def met() -> int:
            """Return the number of exchanges among unaffected nodes."""
            spared = [swarm.nodes[index] for index in story.spared]
            return sum(one.node.running.exchange.committed(two.peer_id) for one in spared for two in spared)

        async def speeds(until_s: float) -> tuple[float, float]:
            """Measure until then, per second: exchanges of the unaffected, and rounds of the slowest."""
            began, met_before, before = play.now, met(), rounds()
            await trio.sleep(until_s - began)
            slowest = min(done - before[index] for index, done in rounds().items())
            return (met() - met_before) / (play.now - began), slowest / (play.now - began)

        usual = await speeds(story.begins)
        meanwhile = await speeds(max(story.ends, story.begins + 1.0))
        whole_s = await until(lambda: agree(swarm), AFTER_S)
        await trio.sleep(AFTER_S - whole_s)
        after = await speeds(play.now + MEASURED_S)
        nursery.cancel_scope.cancel()
    others = meanwhile[0] / usual[0] if usual[0] else 1.0
    return Outcome(whole_s, others, after[1] / usual[1], faults(swarm))
