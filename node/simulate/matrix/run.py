"""One run with all nodes as rows of one array: faults and time in addition to `starling.node.simulate.matrix.swarm`, evaluated regularly.

steps   rounds in lockstep of their numbers, each node on a clock of its own: a late node misses the exchange.
clock   slots of fixed length: local steps by each node's speed, and visits on the live vectors.

What members do not know yet counts: until a crash has been detected, exchanges with the dead are scheduled, in vain.

Shapes: N rows, n of them alive, m exchanges of a round, d parameters.
"""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.api import Phase
from starling.gossip.compress.catalogue import quantizer
from starling.gossip.compress.select.coordinates import Everything, kept
from starling.gossip.mix.base import origin
from starling.gossip.mix.dsgd import Dsgd
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.kinds import kind_of
from starling.gossip.mix.moments import averages_memories
from starling.gossip.mix.personal import SHARES, Personal, chosen
from starling.gossip.mix.seeds import Seeds
from starling.gossip.overlay.stages import stage, turn
from starling.gossip.overlay.sticky import DEGREE
from starling.gossip.rng import generator
from starling.node.config.overlay import overlay_of
from starling.node.config.robustness import defended
from starling.node.config.weight import weight
from starling.node.engine.compression import memory_codec, selector_facts
from starling.node.engine.mixing import mixer_of, settled_edges
from starling.node.engine.optimizers import corrections_of
from starling.node.engine.schedules import phase, schedule
from starling.node.simulate import build
from starling.node.simulate.matrix import byzantine
from starling.node.simulate.matrix.average import Differences
from starling.node.simulate.matrix.batch import RoundStats
from starling.node.simulate.matrix.clocks import Clocks
from starling.node.simulate.matrix.distances import Defence, RowDistances, Undefended
from starling.node.simulate.matrix.faults import Change, ExchangeFaults, churn, exchange_faults
from starling.node.simulate.matrix.local import LocalSteps
from starling.node.simulate.matrix.memories import RowMemories
from starling.node.simulate.matrix.problem import TorchTask, problem
from starling.node.simulate.matrix.schedule import Exchanges, Schedule, SlotSchedule
from starling.node.simulate.matrix.swarm import Swarm
from starling.node.simulate.measure import NOT_FINITE, Measure, Seen
from starling.node.simulate.results import Outcome, Progress
from starling.node.simulate.rules import detection_s
from starling.node.simulate.schema import Scenario, manifest, without_faults
from starling.robust.clip import clip

_MESSAGES = 3  # messages of an exchange: request, response, proof
_FRAME_BYTES = 64  # bytes of a message beyond its payload


def run(scenario: Scenario, progress: Progress, seen: Seen | None = None) -> Outcome:
    """Do one run of a checked scenario without a sweep; `progress` is called after every round, `seen` at every evaluation.

    Raises ConfigError: the task or its data cannot be had.
    """
    began = time.monotonic()
    state = _Run(scenario, seen)
    diverged = state.go(progress)
    state.judge()
    return state.measure.outcome(
        parameters=state.swarm.x.shape[1],
        byzantine=state.byzantine,
        counts={key: state.counts[key] for key in COUNTS},
        refusals=state.swarm.defence.refusals,
        diverged=diverged,
        undone=0 if state.local is None else state.local.undone,
        wall_s=time.monotonic() - began,
        target=scenario.simulate.target,
    )


_EXCHANGES = ("meetings", "committed", "unproven", "lost", "late", "cut", "dead")
_NODES = ("crashed", "left", "joined", "opened", "closed", "void", "exposed", "named", "accused")
COUNTS = _EXCHANGES + _NODES
"""Exchanges that were scheduled ("meetings") and how they ended: committed (of these unproven: the responder did not know at once), lost on
the network, too late, across a partition, with the dead. Nodes that crashed, left in order and joined. Lasting edges, where there are
any: opened, closed properly, lost with a node that left. Where pairs are defended: pairs of an honest node and a Byzantine one that
exchanged, those of them whose honest node refused the other, and pairs of honest nodes of which one refused the other."""


class _Run:
    """State of one run of the matrix engine."""

    def __init__(self, scenario: Scenario, seen: Seen | None) -> None:
        self._scenario = scenario
        self._agreed = agreed = manifest(scenario)
        self._steps_pace = agreed.pace.kind == "steps"
        count = build.rows(scenario)
        swarm_id, self._peers = build.identities(agreed, count)
        salt = (scenario.simulate.salt or swarm_id).encode()
        self._graph = overlay_of(agreed)
        self._schedule = Schedule(self._graph, self._peers, salt, agreed.overlay.rerank_every)
        lasting = agreed.overlay.kind == "sticky" and not (self._steps_pace and scenario.simulate.model)
        self._visits = None
        if lasting:
            self._visits = SlotSchedule(self._peers, agreed.overlay.params().get("degree", DEGREE), salt, agreed.mix.theta, agreed.seed)
        self.byzantine = build.byzantine(scenario, count)
        self.local: LocalSteps | None
        self.swarm, self.local = self._learning() if scenario.simulate.model else (self._averaging(), None)
        self.measure = Measure(self.local.problem if self.local is not None else None, scenario.simulate.sample, seen)
        self.counts: Counter[str] = Counter()
        self._splits = build.splits(scenario, count)
        self._step_s = build.step_s(scenario, count)
        longest_s = agreed.pace.max_wait_s if self._steps_pace else agreed.pace.slot_s
        least_s = longest_s if without_faults(scenario) else min(agreed.pace.min_wait_s, longest_s)
        self._clocks = Clocks(self._step_s, build.rates(scenario, count), scenario.network.latency_s, least_s, longest_s, _FRAME_BYTES)
        self._believed_s = np.full(count, -math.inf)  # until when a dead row is believed alive
        self._detection_s = detection_s(scenario)
        self._members = np.zeros(count, dtype=bool)  # the living, and the dead that have not been detected
        self._unproven: set[tuple[int, int]] = set()  # pairs of which the responder does not know yet
        self._rates = schedule(agreed.optimizer, agreed.pace.rounds)
        self._done = 0

    def _averaging(self) -> Swarm:
        """One random number a node, averaged, without a model."""
        agreed, count = self._agreed, len(self._peers)
        x = torch.randn((count, 1), dtype=torch.float64, generator=generator(agreed.seed, "number"))
        exact = ExchangeCodec(quantizer("identity", x.dtype), quantizer("identity", x.dtype), 0.0, clip)
        alive = torch.arange(count) < self._scenario.simulate.nodes
        return Swarm(self._peers, x, Dsgd(), exact, Everything(), agreed.seed, alive)

    def _learning(self) -> tuple[Swarm, LocalSteps]:
        """Return all models at their initial values, and their local steps."""
        scenario, agreed, count = self._scenario, self._agreed, len(self._peers)
        attack = byzantine.attack(scenario.attack)
        learned = problem(agreed, self._peers, attack=attack, byzantine=self.byzantine, own=scenario.simulate.own)
        x, (mixing, shared) = learned.start.repeat(count, 1), mixer_of(agreed, learned.layout)
        codec, selector = build.exchange(scenario, agreed, mixing, learned.layout, shared)
        local = LocalSteps(
            learned,
            agreed.optimizer,
            agreed.pace,
            x,
            watched=attack is not None,
            running_mean=scenario.simulate.running_mean,
            corrections=corrections_of(agreed),
            weights=[weight(agreed, each) for each in learned.samples],
            seeds=mixing if isinstance(mixing, Seeds) else None,
        )
        attackers = None
        start = origin(mixing, learned.start)
        if attack is not None:
            attackers = byzantine.Byzantine(
                attack,
                self.byzantine,
                start,
                shared.dim,
                agreed.pace.rounds,
                agreed.seed,
                lambda: local.gradients,
                lambda rows: byzantine.thresholds(mixing, self.swarm.state, rows),
            )
        facts = selector_facts(agreed.compress, kind_of(mixing.edge))
        defence: Defence = Undefended()
        if defended(agreed):
            whole = shared.dim == x.shape[1]
            defence = RowDistances(self.byzantine, start, scenario.simulate.nodes, not facts.compares, local.losses if whole else None)
        swarm = Swarm(
            self._peers,
            x,
            mixing,
            codec,
            selector,
            agreed.seed,
            torch.arange(count) < scenario.simulate.nodes,
            losses=local.losses,
            byzantine=attackers,
            compares=facts.compares,
            wish_limit=kept(agreed.compress.ratio, start.numel()) if facts.wishes else 0,
            settled_edges=settled_edges(agreed),
            defence=defence,
        )
        if averages_memories(agreed):
            assert isinstance(swarm.exchanges, Differences)
            swarm.exchanges.memories = RowMemories(
                local, memory_codec(agreed), mixing, start.numel(), byzantine.memories(attack, self.byzantine)
            )
        if agreed.mix.own and isinstance(learned, TorchTask):
            aside = learned.aside

            def choose(rows: Sequence[int], shared: Tensor) -> Tensor:
                at = torch.as_tensor(rows)
                home = swarm.x[at][:, None].expand(-1, len(SHARES), -1)
                return chosen(aside(at, mixing.put(home, shared) if isinstance(mixing, Personal) else shared))

            assert isinstance(swarm.exchanges, Differences)
            swarm.exchanges.choose = choose
        return swarm, local

    def go(self, progress: Progress) -> int | None:
        """Run all rounds -> number of rounds after which the swarm diverged; None if it did not."""
        pace, faults, swarm = self._scenario.pace, self._scenario.faults, self.swarm
        self._evaluate()
        while self._done < pace.rounds:
            number = self._done
            try:
                self._change(churn(faults, self._scenario.simulate.seed, number, swarm.alive, swarm.used), number)
                if self._steps_pace:
                    self._round(number)
                else:
                    self._slot(number)
                self._done += 1
                if self._done % pace.evaluate_every == 0 or self._done == pace.rounds:
                    self._evaluate()
            except ValueError as error:
                if str(error) != NOT_FINITE:
                    raise
                return self._done
            progress(self._done, self.measure.line())
        return None

    def _phase(self, round: int, local_steps: float) -> Phase:
        now = phase(self._agreed.optimizer, self._rates, round, local_steps)
        return replace(now, members=max(1, int(self._members.sum())))

    def _round(self, round: int) -> None:
        """Run a round of steps pace."""
        pace, swarm = self._agreed.pace, self.swarm
        alive, members = swarm.alive.numpy(), int(self._members.sum())
        now = stage(self._graph, members, round)
        steps = pace.local_steps if now.local else 0  # without a model the local steps still take virtual time
        scheduled = self._schedule.at(round, self._members)
        exchanges = self._among_living(scheduled)
        does, late = self._clocks.begin(steps, alive, exchanges)
        phase = replace(
            self._phase(round, float(pace.local_steps if swarm.flows is not None else steps)),
            first=now.first,
            last=now.last,
            turn=turn(self._graph, members, round),
        )
        dead = ~alive[scheduled.ends[::-1]] & (scheduled.weights > 0.0)
        unreachable = np.bincount(scheduled.ends[dead], minlength=len(alive))
        faults = self._faults(round, exchanges, late)
        stats = swarm.round(phase, self.local if steps else None, does, exchanges, faults, unreachable)
        self._clocks.end(exchanges, stats)
        self._count(stats)

    def _slot(self, slot: int) -> None:
        """Run a slot of clock pace."""
        slot_s = self._agreed.pace.slot_s
        if self._visits is not None:
            visits = self._visits.at(slot)
        else:
            scheduled = self._schedule.at(slot, self._members)
            visits = replace(scheduled, weights=np.full_like(scheduled.weights, self._agreed.mix.theta))
        visits = self._among_living(visits)
        per_slot = slot_s / self._step_s
        steps = (np.floor((slot + 1) * per_slot) - np.floor(slot * per_slot)).astype(np.int64)
        phase = self._phase(slot, max(1.0, slot_s / self._scenario.network.step_s))
        faults = self._faults(slot, visits, np.zeros(len(visits), dtype=bool))
        stats = self.swarm.slot(phase, self.local, steps, visits, faults)
        frames = np.array([[_MESSAGES - 1], [1]]) * _FRAME_BYTES
        np.add.at(self._clocks.sent_bytes, stats.ends, stats.sizes + frames)
        self._count(stats)

    @property
    def _now_s(self) -> float:
        """Virtual time: the mean of the clocks of the living."""
        if not self._steps_pace:
            return self._done * self._agreed.pace.slot_s
        return float(self._clocks.now_s[self.swarm.alive.numpy()].mean())

    def _change(self, change: Change, round: int) -> None:
        self.swarm.change(change)
        self._believed_s[list(change.crashed)] = self._now_s + self._detection_s
        for row, source in change.joined:
            if self._steps_pace:
                self._clocks.joined(row, source)
            if self.local is not None:
                self.local.joined(row, round)
        for name in ("crashed", "left", "joined"):
            self.counts[name] += len(getattr(change, name))
        self._believed_s[self._believed_s <= self._now_s] = -math.inf
        believed = self.swarm.alive.numpy() | (self._believed_s > -math.inf)
        if not np.array_equal(believed, self._members):
            self._members = believed
            self._close()

    def _close(self) -> None:
        """Members changed: edges closed in order bring their proofs, as do those of nodes that may not exchange again."""
        pairs = set[tuple[int, int]]()
        if self._visits is not None:
            moved = self._visits.update(self._members)
            for name in ("opened", "closed", "void"):
                self.counts[name] += len(getattr(moved, name))
            pairs |= {(min(pair), max(pair)) for pair in moved.closed}
        if self._steps_pace:
            pairs |= self._unproven
            self._unproven = set()
        alive = self.swarm.alive
        self.swarm.change(Change(closed=tuple(pair for pair in sorted(pairs) if alive[list(pair)].all())))

    def _among_living(self, exchanges: Exchanges) -> Exchanges:
        """Return the exchanges with two living ends, and count the others."""
        both = np.logical_and(*self.swarm.alive.numpy()[exchanges.ends])
        self.counts["meetings"] += len(both)
        self.counts["dead"] += int((~both).sum())
        return exchanges.of(both)

    def _faults(self, round: int, exchanges: Exchanges, late: NDArray[np.bool_]) -> ExchangeFaults:
        drawn = exchange_faults(self._scenario.faults, self._agreed.seed, round, len(exchanges))
        cut = np.zeros(len(exchanges), dtype=bool)
        for begin, end, side in self._splits:
            if begin <= round < end:
                cut |= side[exchanges.ends[0]] != side[exchanges.ends[1]]
        self.counts["cut"] += int(cut.sum())
        self.counts["late"] += int((late & ~cut).sum())
        self.counts["lost"] += int((drawn.lost & ~late & ~cut).sum())
        return replace(drawn, lost=drawn.lost | late | cut)

    def judge(self) -> None:
        """Count whom the defence of pairs has named."""
        refused = {(each.node, each.peer) for each in self.swarm.defence.refusals}
        named = sum(bool(self.byzantine[peer]) for _, peer in refused)
        self.counts += Counter(exposed=len(self.swarm.defence.exposed), named=named, accused=len(refused) - named)

    def _count(self, stats: RoundStats) -> None:
        self.counts["committed"] += int(stats.committed.sum())
        self.counts["unproven"] += int((stats.committed & stats.unproven).sum())
        pairs = np.sort(stats.ends, axis=0).T
        for (one, other), unproven in zip(pairs[stats.committed].tolist(), stats.unproven[stats.committed], strict=True):
            (self._unproven.add if unproven else self._unproven.discard)((one, other))

    def _evaluate(self) -> None:
        swarm = self.swarm
        honest = swarm.alive & ~torch.from_numpy(self.byzantine)
        self.measure.add(
            self._done,
            swarm.settled[honest],
            honest.nonzero().view(-1).tolist(),
            seconds=self._now_s,
            nodes=int(swarm.used.sum()),
            sent_bytes=int(self._clocks.sent_bytes.sum()),
            exchanges=2 * self.counts["committed"],
        )
