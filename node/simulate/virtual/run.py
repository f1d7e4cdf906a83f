"""One run with whole nodes in virtual time: the daemon and engine that volunteers run, over a network in memory.

Nodes evaluate themselves, which costs them time as it does anywhere; a model is looked at when its node has just done so.
Trio shuffles ready tasks on purpose. Here the shuffle is seeded, so that a scenario replays bit for bit.

Shapes: N nodes that there will ever be, d parameters.
"""

from __future__ import annotations

import importlib
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import trio
from torch import Tensor
from trio.testing import MockClock

from starling.gossip.errors import GossipError
from starling.node.config.schema import NodeConfig
from starling.node.daemon.running import RunningNode
from starling.node.net.faults import Deliver, Drop, Rule, loss
from starling.node.simulate import build
from starling.node.simulate.churn import faults_of, turnover
from starling.node.simulate.matrix import attackers
from starling.node.simulate.matrix.problem import problem
from starling.node.simulate.measure import NOT_FINITE, Cost, Measure
from starling.node.simulate.results import Outcome, Progress, reached
from starling.node.simulate.schema import Scenario, manifest, without_faults
from starling.node.simulate.virtual.swarm import VirtualNode, VirtualSwarm

COUNTS = ("committed", "aborted", "busy", "timeout", "crashed", "left", "joined")
"""Exchanges by how they ended, counted once each; nodes that crashed, left in order and joined."""
_STALL_S = 3600.0  # virtual: a swarm in which nobody passes a round for so long has come to a halt
_LINGER_S = 1e9


def run(scenario: Scenario, progress: Progress) -> Outcome:
    """One run from beginning to end.

    Args:
        scenario: without a sweep, checked.
        progress: told as rounds pass.

    Raises:
        ConfigError: the task or its data cannot be had.
        GossipError: the swarm came to a halt.
    """
    began = time.monotonic()
    _seed_scheduler(scenario.simulate.seed)
    watched = trio.run(_story, scenario, progress, clock=MockClock(autojump_threshold=0))
    measure = watched.measure
    return Outcome(
        metric=measure.metric, higher_is_better=measure.higher_is_better, parameters=watched.dim, rows=tuple(measure.rows),
        counts={key: watched.counts[key] for key in COUNTS}, undone=watched.undone, diverged=watched.diverged,
        target=reached(measure.rows, scenario.simulate.target, higher_is_better=measure.higher_is_better),
        wall_s=time.monotonic() - began, bad=tuple(np.flatnonzero(watched.bad).tolist()),
    )  # fmt: skip


def _seed_scheduler(seed: int) -> None:
    """There is no public way to seed the order in which trio wakes ready tasks."""
    scheduler: Any = importlib.import_module("trio._core._run")
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # noqa: SLF001
    scheduler._r.seed(seed)  # noqa: SLF001


async def _story(scenario: Scenario, progress: Progress) -> _Watched:
    watched = _Watched(scenario)
    async with watched.swarm.running(scenario.simulate.nodes):
        await watched.watch(progress)
    return watched


@dataclass(slots=True)
class _Seen:
    """What was last seen of a node that may be gone by now."""

    bytes_sent: int = 0
    stats: Counter[str] = field(default_factory=Counter)
    undone: int = 0


class _Watched:
    """A virtual swarm with its faults, looked at from outside.

    Args:
        scenario: what to simulate.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        agreed = manifest(scenario)
        self._count = count = build.rows(scenario)
        _, self._peers = build.identities(agreed, count)
        attack = attackers.attack(scenario.attack)
        self.bad = build.bad(scenario, count)
        self._problem = problem(agreed, self._peers, liars=None if attack is None else (attack, self.bad))
        self.measure = Measure(self._problem, scenario.simulate.sample)
        self.dim = self._problem.start.numel()
        step_s = build.step_s(scenario, count)
        self._look_s = float(step_s.min()) / 2.0  # a model changes a whole local step after its node has looked at it
        self.swarm = VirtualSwarm(
            agreed, rules=self._rules(), step_cost_s=lambda index: float(step_s[index]), seed=agreed.seed,
            config=NodeConfig(linger_s=_LINGER_S, threads=scenario.simulate.threads, trust=True),
            patient=without_faults(scenario),
            attacks={} if attack is None else dict.fromkeys(np.flatnonzero(self.bad).tolist(), scenario.attack.kind),
        )  # fmt: skip
        self._faults = faults_of(scenario)
        self._churned = 0  # rounds before which churn has happened
        self._used = torch.arange(count) < scenario.simulate.nodes
        self._seen = {index: _Seen() for index in range(count)}
        self._models: dict[
            int, dict[int, Tensor]
        ] = {}  # by round, then by node: as it was when the node evaluated itself
        self._due = [
            due for due in range(1, scenario.pace.rounds + 1)
            if due % scenario.pace.evaluate_every == 0 or due == scenario.pace.rounds
        ]  # fmt: skip
        self._turnover: Counter[str] = Counter()
        self.diverged: int | None = None
        """After how many rounds figures left the finite numbers, if they did."""

    @property
    def counts(self) -> Counter[str]:
        """See COUNTS."""
        ended: Counter[str] = Counter()
        for seen in self._seen.values():
            ended += seen.stats
        return Counter({key: count // 2 for key, count in ended.items()}) + self._turnover

    @property
    def undone(self) -> int:
        """Local steps taken back."""
        return sum(seen.undone for seen in self._seen.values())

    async def watch(self, progress: Progress) -> None:
        """Until every living node has done its rounds.

        Raises:
            GossipError: the swarm came to a halt.
        """
        honest = sorted(index for index in self.swarm.nodes if not self.bad[index])
        self.measure.add(0, Cost(0.0, 0.0, 0.0), self._problem.start.repeat(len(honest), 1), honest)
        passed, moved_s = 0, trio.current_time()
        while self._due:
            for index, virtual in self.swarm.nodes.items():
                self._look(index, virtual)
            self._evaluate()
            first = max(virtual.node.progress.round for virtual in self.swarm.nodes.values())
            if first > passed:
                passed, moved_s = first, trio.current_time()
                await self._churn(passed)
                progress(self._slowest, self.measure.line())
            if trio.current_time() - moved_s > _STALL_S:
                raise GossipError(
                    f"no node passed round {passed} within an hour of virtual time; try less of [faults], or a longer pace.max_wait_s"
                )
            await trio.sleep(self._look_s)

    # --- looking ------------------------------------------------------------------------------------------

    def _look(self, index: int, virtual: VirtualNode) -> None:
        """Often, so it must be cheap: has the node just evaluated itself?"""
        measured = virtual.node.progress.value_round
        if measured is not None and self._due and measured >= self._due[0] and measured in self._due:
            held = self._models.setdefault(measured, {})
            if index not in held:
                held[index] = virtual.vector

    def _record(self, index: int) -> None:
        """What a node has sent and done: before it goes, or when somebody asks."""
        virtual, seen = self.swarm.nodes[index], self._seen[index]
        node = virtual.node
        if node.network is not None:
            seen.bytes_sent = node.network.total_traffic.bytes_sent
        if isinstance(node.phase, RunningNode):
            stats = node.phase.exchange.stats
            seen.stats = Counter({name: getattr(stats, name) for name in stats.__struct_fields__})
        if virtual.engine is not None:
            seen.undone = virtual.engine.undone

    @property
    def _slowest(self) -> int:
        return min((each.node.progress.round for each in self.swarm.nodes.values() if _takes_part(each)), default=0)

    def _evaluate(self) -> None:
        """A row for each due round that all have passed; who was elsewhere in that round is taken as it is now."""
        while self._due:
            due, taken = self._due[0], self._models.get(self._due[0], {})
            for index, virtual in self.swarm.nodes.items():
                at = virtual.node.progress
                if not _takes_part(virtual):
                    if index < self._scenario.simulate.nodes:
                        return
                    continue  # nobody waits for who is about to join
                if index not in taken and (at.round < due or (at.round == due and at.value_round != due)):
                    return
            self._due.pop(0)
            alive = sorted(
                index for index, virtual in self.swarm.nodes.items() if _takes_part(virtual) and not self.bad[index]
            )
            models = [taken[index] if index in taken else self.swarm.nodes[index].vector for index in alive]
            try:
                self.measure.add(due, self._cost(), torch.stack(models), alive)
            except ValueError as error:
                if str(error) != NOT_FINITE:
                    raise
                self.diverged, self._due = due, []
                return
            self._models = {later: held for later, held in self._models.items() if later > due}

    def _cost(self) -> Cost:
        for index in self.swarm.nodes:
            self._record(index)
        ever = int(self._used.sum())
        sent = sum(seen.bytes_sent for seen in self._seen.values())
        committed = sum(seen.stats["committed"] for seen in self._seen.values())
        return Cost(trio.current_time(), sent / ever, committed / ever)

    # --- faults -------------------------------------------------------------------------------------------

    def _rules(self) -> list[Rule]:
        scenario, count = self._scenario, self._count
        row = {peer: index for index, peer in enumerate(self._peers)}
        rates, latency_s = build.rates(scenario, count), scenario.network.latency_s
        splits = build.splits(scenario, count)

        def split(src: str, dst: str, _now: float) -> Drop | None:
            for begin, end, side in splits:
                if begin <= self._churned < end and side[row[src]] != side[row[dst]]:
                    return Drop()
            return None

        def link(src: str, dst: str, _now: float) -> Deliver:
            return Deliver(latency_s, float(min(rates[row[src]], rates[row[dst]])))

        lossy = [loss(scenario.faults.loss, scenario.simulate.seed)] if scenario.faults.loss else []
        return [split, *lossy, link]

    async def _churn(self, passed: int) -> None:
        """Crashes, leaves and joins of the rounds that have begun."""
        while self._churned <= passed:
            at = self._churned
            self._churned += 1
            alive = torch.zeros(self._count, dtype=torch.bool)
            alive[sorted(self.swarm.nodes)] = True
            change = turnover(self._scenario, self._faults, at, alive, self._used)
            for index in (*change.crashed, *change.left):
                self._record(index)
            for index in change.crashed:
                await self.swarm.crash(index)
            for index in change.left:
                await self.swarm.leave(index)
            for index, _source in change.joined:
                self._used[index] = True
                await self.swarm.start(index)
            self._turnover["crashed"] += len(change.crashed)
            self._turnover["left"] += len(change.left)
            self._turnover["joined"] += len(change.joined)


def _takes_part(virtual: VirtualNode) -> bool:
    """Its engine is open and it has begun."""
    return virtual.node.progress.state in {"training", "finished"}
