"""One run with whole nodes in virtual time: the daemon and engine of real nodes, over a network in memory.

Nodes evaluate themselves, which takes time as on real ones; a model is read when its node has just evaluated.
Trio shuffles ready tasks on purpose. Here the shuffle is seeded, so that a scenario replays bit for bit.

Shapes: N nodes that ever exist, d parameters.
"""

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
from starling.node.simulate.matrix import byzantine
from starling.node.simulate.matrix.faults import churn
from starling.node.simulate.matrix.problem import problem
from starling.node.simulate.measure import NOT_FINITE, Measure, Seen
from starling.node.simulate.results import Outcome, Progress
from starling.node.simulate.schema import Scenario, manifest, without_faults
from starling.node.simulate.virtual.swarm import VirtualNode, VirtualSwarm

COUNTS = ("committed", "aborted", "busy", "timeout", "crashed", "left", "joined")
"""Exchanges by how they ended, counted once each; nodes that crashed, left in order and joined."""
_STALL_S = 3600.0  # virtual seconds after which a swarm without progress counts as stopped
_LINGER_S = 1e9


def run(scenario: Scenario, progress: Progress, seen: Seen | None = None) -> Outcome:
    """Do one run of a checked scenario without a sweep; `progress` is called as rounds pass, `seen` at every evaluation.

    Raises ConfigError: the task or its data are not available; GossipError: the swarm stopped making progress.
    """
    began = time.monotonic()
    scheduler: Any = importlib.import_module("trio._core._run")  # the order of ready tasks has no public seed
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # noqa: SLF001
    scheduler._r.seed(scenario.simulate.seed)  # noqa: SLF001
    state = trio.run(_all_rounds, scenario, progress, seen, clock=MockClock(autojump_threshold=0))
    counts = state.counts
    return state.measure.outcome(
        parameters=state.dim,
        byzantine=state.byzantine,
        counts={key: counts[key] for key in COUNTS},
        diverged=state.diverged,
        undone=sum(last.undone for last in state.last.values()),
        wall_s=time.monotonic() - began,
        target=scenario.simulate.target,
    )


async def _all_rounds(scenario: Scenario, progress: Progress, seen: Seen | None) -> "_Run":
    state = _Run(scenario, seen)
    async with state.swarm.running(scenario.simulate.nodes):
        await state.watch(progress)
    return state


@dataclass(slots=True)
class _Last:
    """The last figures of a node that may have ended."""

    bytes_sent: int = 0
    stats: Counter[str] = field(default_factory=Counter)
    undone: int = 0


class _Run:
    """A virtual swarm with its faults, observed from outside."""

    def __init__(self, scenario: Scenario, seen: Seen | None) -> None:
        self._scenario = scenario
        agreed = manifest(scenario)
        self._count = count = build.rows(scenario)
        _, self._peers = build.identities(agreed, count)
        attack = byzantine.attack(scenario.attack)
        self.byzantine = build.byzantine(scenario, count)
        learned = problem(agreed, self._peers, attack=attack, byzantine=self.byzantine, own=scenario.simulate.own)
        self.measure = Measure(learned, scenario.simulate.sample, seen)
        self._start, self.dim = learned.start, learned.start.numel()
        step_s = build.step_s(scenario, count)
        self._poll_s = float(step_s.min()) / 2.0  # a model changes a whole local step after its node has evaluated it
        self.swarm = VirtualSwarm(
            agreed,
            rules=self._rules(),
            step_cost_s=lambda index: float(step_s[index]),
            seed=agreed.seed,
            config=NodeConfig(linger_s=_LINGER_S, threads=scenario.simulate.threads, trust=True),
            fixed_deadlines=without_faults(scenario),
            attacks={} if attack is None else dict.fromkeys(np.flatnonzero(self.byzantine).tolist(), scenario.attack.kind),
        )
        self._churned = 0  # rounds before which churn has happened
        self._used = torch.arange(count) < scenario.simulate.nodes
        self.last = {index: _Last() for index in range(count)}
        self._models: dict[int, dict[int, Tensor]] = {}  # models by round, then by node, as evaluated
        every, rounds = scenario.pace.evaluate_every, scenario.pace.rounds
        self._samples = scenario.pace.kind == "sampled"
        self._due = [due for due in range(1, rounds + 1) if due % every == 0 or due == rounds]
        self._churn_counts: Counter[str] = Counter()
        self.diverged: int | None = None  # number of rounds after which figures were no longer finite, if so

    @property
    def counts(self) -> Counter[str]:
        ended = sum((last.stats for last in self.last.values()), Counter[str]())
        return Counter({key: count // 2 for key, count in ended.items()}) + self._churn_counts

    async def watch(self, progress: Progress) -> None:
        """Wait until every live node has done its rounds. Raises GossipError: the swarm stopped making progress."""
        honest = sorted(index for index in self.swarm.nodes if not self.byzantine[index])
        start = self._start.repeat(len(honest), 1)
        self.measure.add(0, start, honest, seconds=0.0, sent_bytes=0, exchanges=0, nodes=len(self.swarm.nodes))
        passed, moved_s = 0, trio.current_time()
        while self._due:
            for index, virtual in self.swarm.nodes.items():
                self._keep_model(index, virtual)
            self._evaluate()
            first = max(virtual.node.progress.round for virtual in self.swarm.nodes.values())
            if first > passed:
                passed, moved_s = first, trio.current_time()
                await self._churn(passed)
                rounds = (each.node.progress.round for each in self.swarm.nodes.values() if _takes_part(each))
                progress(min(rounds, default=0), self.measure.line())
            if trio.current_time() - moved_s > _STALL_S:
                longer = "slot_s" if self.swarm.manifest.pace.kind == "clock" else "max_wait_s"
                raise GossipError(
                    f"no node passed round {passed} within an hour of virtual time; try less of [faults], or a longer pace.{longer}"
                )
            await trio.sleep(self._poll_s)

    def _keep_model(self, index: int, virtual: VirtualNode) -> None:
        """Store the model of a node that has just evaluated itself in a due round. Called often, so it must be cheap."""
        measured = virtual.node.progress.evaluated.round
        if measured is not None and self._due and measured >= self._due[0] and measured in self._due:
            models = self._models.setdefault(measured, {})
            if index not in models:
                models[index] = virtual.vector

    def _record(self, index: int) -> None:
        """Record a node's traffic and counts: before it leaves, and at evaluations."""
        virtual, last = self.swarm.nodes[index], self.last[index]
        node = virtual.node
        if node.network is not None:
            last.bytes_sent = node.network.total_traffic.bytes_sent
        if isinstance(node.phase, RunningNode):
            stats = node.phase.exchange.stats
            last.stats = Counter({name: getattr(stats, name) for name in stats.__struct_fields__})
        if virtual.engine is not None:
            last.undone = virtual.engine.undone

    def _evaluate(self) -> None:
        """Add a row for each due round that all nodes have passed; a node without a model of that round counts with its current one."""
        while self._due:
            due = self._due[0]
            # a sleeping node has no model of this round
            averaged = self._samples and due != self._due[-1]
            models = self._averaged(due) if averaged else self._all_models(due)
            if models is None:
                return
            self._due.pop(0)
            if models or not averaged:  # else no node averaged in this round
                self._add(due, models)

    def _averaged(self, due: int) -> dict[int, Tensor] | None:
        """Models of honest nodes that averaged in a due round, by node; None: it is not over."""
        if not any(self._models.values()):
            return None
        return {index: model for index, model in self._models.get(due, {}).items() if not self.byzantine[index]}

    def _all_models(self, due: int) -> dict[int, Tensor] | None:
        """Models of all honest nodes once all have passed a due round, by node; None: some have not."""
        taken, nodes = self._models.get(due, {}), self.swarm.nodes
        if not all(self._passed(index, due) for index in nodes):
            return None
        alive = sorted(index for index, each in nodes.items() if _takes_part(each) and not self.byzantine[index])
        return {index: taken[index] if index in taken else nodes[index].vector for index in alive}

    def _passed(self, index: int, due: int) -> bool:
        """Return whether a node has evaluated in a due round, or need not; a node that is about to join is not awaited."""
        virtual = self.swarm.nodes[index]
        if not _takes_part(virtual):
            return index >= self._scenario.simulate.nodes
        at = virtual.node.progress
        # in clock pace the last slot of a node may end before the last one of the swarm
        evaluated = at.state == "finished" or at.round > due or (at.round == due and at.evaluated.round == due)
        return evaluated or index in self._models.get(due, {})

    def _add(self, due: int, models: dict[int, Tensor]) -> None:
        """A row of a due round from these models, by node."""
        for index in self.swarm.nodes:
            self._record(index)
        try:
            self.measure.add(
                due,
                torch.stack(list(models.values())),
                list(models),
                seconds=trio.current_time(),
                nodes=int(self._used.sum()),
                sent_bytes=sum(last.bytes_sent for last in self.last.values()),
                exchanges=sum(last.stats["committed"] for last in self.last.values()),
            )
        except ValueError as error:
            if str(error) != NOT_FINITE:
                raise
            self.diverged, self._due = due, []
            return
        self._models = {later: models for later, models in self._models.items() if later > due}

    def _rules(self) -> list[Rule]:
        """Return the rules for partitions, losses, and the delays of links."""
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
        """Apply crashes, leaves and joins of the rounds that have begun."""
        faults, seed = self._scenario.faults, self._scenario.simulate.seed
        while self._churned <= passed:
            alive = torch.zeros(self._count, dtype=torch.bool)
            alive[sorted(self.swarm.nodes)] = True
            change = churn(faults, seed, self._churned, alive, self._used)
            self._churned += 1  # partitions use it too
            for index in (*change.crashed, *change.left):
                self._record(index)
            for index in change.crashed:
                await self.swarm.crash(index)
            for index in change.left:
                await self.swarm.leave(index)
            for index, _source in change.joined:
                self._used[index] = True
                await self.swarm.start(index)
            for name in ("crashed", "left", "joined"):
                self._churn_counts[name] += len(getattr(change, name))


def _takes_part(virtual: VirtualNode) -> bool:
    """Return whether a node's engine is open and it trains or has finished."""
    return virtual.node.progress.state in {"training", "finished"}
