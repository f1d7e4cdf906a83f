"""One run with all nodes as rows of one array: faults and time beside `starling.node.simulate.matrix.swarm`, evaluated every so often.

steps   rounds in lockstep of their numbers, each node on a clock of its own: who is late for a meeting misses it.
clock   slots of fixed length: local steps by each node's speed, and visits on the live vectors.

What members do not know yet counts: until a crash has been noticed, the dead are still met, in vain.

Shapes: N rows, n of them alive, m meetings of a round, d parameters.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.api import Phase
from starling.gossip.compress.catalogue import quantizer
from starling.gossip.compress.select.coordinates import Everything, kept
from starling.gossip.mix.catalogue import gathers, swaps
from starling.gossip.mix.dsgd import Dsgd
from starling.gossip.mix.exchange_codec import Terms
from starling.gossip.overlay.periodic import stage, turn
from starling.gossip.rng import generator
from starling.node.config.overlay import overlay_of
from starling.node.config.schema import Manifest
from starling.node.engine.mixing import mixer
from starling.node.engine.optimizers import correction_lr, schedule
from starling.node.simulate import build
from starling.node.simulate.churn import faults_of, turnover
from starling.node.simulate.matrix import attackers
from starling.node.simulate.matrix.clocks import Clocks, Pace
from starling.node.simulate.matrix.faults import Change, Fate, fate
from starling.node.simulate.matrix.local import LocalSteps
from starling.node.simulate.matrix.problem import Liars, Problem, problem
from starling.node.simulate.matrix.round_stats import Done
from starling.node.simulate.matrix.schedule import Meetings, Schedule
from starling.node.simulate.matrix.slot_schedule import Visits
from starling.node.simulate.matrix.swarm import Swarm
from starling.node.simulate.measure import NOT_FINITE, Cost, Measure
from starling.node.simulate.results import Outcome, Progress, reached
from starling.node.simulate.rules import detection_s
from starling.node.simulate.schema import Scenario, manifest, without_faults
from starling.robust.clip import clip

_MESSAGES = 3  # of an exchange: request, response, proof
_FRAME_BYTES = 64  # what a message costs beyond its payload


def run(scenario: Scenario, progress: Progress) -> Outcome:
    """One run from beginning to end.

    Args:
        scenario: without a sweep, checked.
        progress: told after every round.

    Raises:
        ConfigError: the task or its data cannot be had.
    """
    began = time.monotonic()
    swarm = _Run(scenario)
    diverged = swarm.go(progress)
    measure = swarm.measure
    return Outcome(
        metric=measure.metric, higher_is_better=measure.higher_is_better, parameters=swarm.swarm.x.shape[1],
        rows=tuple(measure.rows), bad=tuple(np.flatnonzero(swarm.bad).tolist()),
        counts={key: swarm.counts[key] for key in COUNTS}, diverged=diverged,
        undone=0 if swarm.local is None else swarm.local.undone,
        target=reached(measure.rows, scenario.simulate.target, higher_is_better=measure.higher_is_better),
        wall_s=time.monotonic() - began,
    )  # fmt: skip


COUNTS = (
    "meetings", "committed", "unproven", "lost", "late", "cut", "dead", "crashed", "left", "joined", "opened", "closed", "void",
)  # fmt: skip
"""Meetings and how they ended: committed (of these unproven: the responder did not know at once), lost on the network, too late,
across a partition, with the dead. Nodes that crashed, left in order and joined. Lasting edges, where there are any: opened, closed in
order, lost with who went."""


class _Run:
    """State of one run.

    Args:
        scenario: what to simulate.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._agreed = agreed = manifest(scenario)
        count = build.rows(scenario)
        swarm_id, peers = build.identities(agreed, count)
        salt = swarm_id.encode()
        alive = torch.arange(count) < scenario.simulate.nodes
        self._graph = overlay_of(agreed)
        self._schedule = Schedule(self._graph, peers, salt, agreed.overlay.rerank_every)
        lasting = agreed.overlay.kind == "sticky" and (agreed.pace.kind == "clock" or not scenario.simulate.model)
        degree = agreed.overlay.degree
        self._visits = Visits(peers, degree, salt, agreed.mix.theta, agreed.seed) if lasting else None
        self.bad = build.bad(scenario, count)
        lie = attackers.attack(scenario.attack)
        liars = None if lie is None else (lie, self.bad)
        self._problem = problem(agreed, peers, liars=liars) if scenario.simulate.model else None
        self.swarm, self.local = _swarm(scenario, agreed, self._problem, peers, alive, liars)
        self.measure = Measure(self._problem, scenario.simulate.sample)
        self.counts: Counter[str] = Counter()
        self._faults = faults_of(scenario)
        self._splits = build.splits(scenario, count)
        self._step_s = build.step_s(scenario, count)
        least_s = agreed.pace.max_wait_s if without_faults(scenario) else agreed.pace.min_wait_s
        self._clocks = Clocks(_pace(scenario, count, self._step_s), least_s, agreed.pace.max_wait_s, _FRAME_BYTES)
        self._sent = np.zeros(count, dtype=np.int64)  # in clock pace
        self._noticed_s = np.full(count, -math.inf)  # until when a dead row is believed alive
        self._detection_s = detection_s(scenario)
        self._members = np.zeros(count, dtype=bool)  # the living, and the dead whom nobody has missed yet
        self._unproven: set[tuple[int, int]] = set()  # pairs of which the responder does not know yet
        self._rates = schedule(agreed.optimizer, agreed.pace.rounds)
        self._flows = _keeps_flows(self.swarm)
        self._lr = _reach(agreed)
        self._done = 0

    def go(self, progress: Progress) -> int | None:
        """All rounds -> after how many the swarm diverged, if it did."""
        pace = self._scenario.pace
        self._evaluate()
        while self._done < pace.rounds:
            try:
                self._one(self._done)
                self._done += 1
                if self._done % pace.evaluate_every == 0 or self._done == pace.rounds:
                    self._evaluate()
            except ValueError as error:
                if str(error) != NOT_FINITE:
                    raise
                return self._done
            progress(self._done, self.measure.line())
        return None

    def _one(self, round: int) -> None:
        self._change(turnover(self._scenario, self._faults, round, self.swarm.alive, self.swarm.used), round)
        if self._agreed.pace.kind == "steps":
            self._round(round)
        else:
            self._slot(round)

    # --- steps pace ---------------------------------------------------------------------------------------

    def _round(self, round: int) -> None:
        agreed, swarm = self._agreed, self.swarm
        alive = swarm.alive.numpy()
        members = int(self._members.sum())
        now = stage(self._graph, members, round)
        steps = agreed.pace.local_steps if now.local else 0  # without a model they take their time all the same
        named = self._schedule.at(round, self._members)
        meetings = self._met(named)
        does, late = self._clocks.begin(steps, alive, meetings)
        # The gain of flows knows neither rounds without local steps nor rates that go down: see the learner of a node.
        rate = 1.0 if self._flows else self._rates.at(round) / agreed.optimizer.lr
        phase = Phase(
            round, float(agreed.pace.local_steps if self._flows else steps), self._lr * rate,
            now.first, now.last, turn(self._graph, members, round),
        )  # fmt: skip
        fates = self._fates(round, meetings, late)
        done = swarm.round(phase, self.local if steps else None, does, meetings, fates, _in_vain(named, alive))
        self._clocks.end(meetings, done)
        self._count(done)

    # --- clock pace ---------------------------------------------------------------------------------------

    def _slot(self, slot: int) -> None:
        agreed, swarm = self._agreed, self.swarm
        if self._visits is not None:
            visits = self._visits.at(slot)
        else:
            named = self._schedule.at(slot, self._members)
            theta = np.full(len(named), agreed.mix.theta)
            visits = replace(named, forth=theta, back=theta)
        visits = self._met(visits)
        per_slot = agreed.pace.slot_s / self._step_s
        steps = (np.floor((slot + 1) * per_slot) - np.floor(slot * per_slot)).astype(np.int64)
        between = max(1.0, agreed.pace.slot_s / self._scenario.network.step_s)
        rate = 1.0 if self._flows else self._rates.at(slot) / agreed.optimizer.lr
        fates = self._fates(slot, visits, np.zeros(len(visits), dtype=bool))
        done = swarm.slot(Phase(slot, between, self._lr * rate), self.local, steps, visits, fates)
        np.add.at(self._sent, done.initiator, done.request_bytes + (_MESSAGES - 1) * _FRAME_BYTES)
        np.add.at(self._sent, done.responder, done.response_bytes + _FRAME_BYTES)
        self._count(done)

    # --- faults -------------------------------------------------------------------------------------------

    @property
    def _now_s(self) -> float:
        """Virtual time: where the living are, on average."""
        if self._agreed.pace.kind == "clock":
            return self._done * self._agreed.pace.slot_s
        return float(self._clocks.now_s[self.swarm.alive.numpy()].mean())

    def _change(self, change: Change, round: int) -> None:
        self.swarm.change(change)
        for row in change.crashed:
            self._noticed_s[row] = self._now_s + self._detection_s
        for row, source in change.joined:
            if self._agreed.pace.kind == "steps":
                self._clocks.joined(row, source)
            if self.local is not None:
                self.local.joined(row, round)
        self.counts["crashed"] += len(change.crashed)
        self.counts["left"] += len(change.left)
        self.counts["joined"] += len(change.joined)
        self._noticed_s[self._noticed_s <= self._now_s] = -math.inf
        believed = self.swarm.alive.numpy() | (self._noticed_s > -math.inf)
        if not np.array_equal(believed, self._members):
            self._members = believed
            self._close()

    def _close(self) -> None:
        """Members changed: edges that are closed in order bring their proofs, as those of nodes do that may not meet again."""
        pairs = set[tuple[int, int]]()
        if self._visits is not None:
            moved = self._visits.update(self._members)
            self.counts["opened"] += len(moved.opened)
            self.counts["closed"] += len(moved.closed)
            self.counts["void"] += len(moved.void)
            pairs |= {(min(pair), max(pair)) for pair in moved.closed}
        if self._agreed.pace.kind == "steps":
            pairs |= self._unproven
            self._unproven = set()
        alive = self.swarm.alive
        self.swarm.change(Change(closed=tuple(pair for pair in sorted(pairs) if alive[pair[0]] and alive[pair[1]])))

    def _met(self, meetings: Meetings) -> Meetings:
        """Those of two living ends."""
        alive = self.swarm.alive.numpy()
        both = alive[meetings.one] & alive[meetings.other]
        self.counts["meetings"] += len(meetings)
        self.counts["dead"] += len(meetings) - int(both.sum())
        return Meetings(meetings.one[both], meetings.other[both], meetings.forth[both], meetings.back[both])

    def _fates(self, round: int, meetings: Meetings, late: NDArray[np.bool_]) -> Fate:
        drawn = fate(self._faults, self._agreed.seed, round, len(meetings))
        cut = np.zeros(len(meetings), dtype=bool)
        for begin, end, side in self._splits:
            if begin <= round < end:
                cut |= side[meetings.one] != side[meetings.other]
        self.counts["cut"] += int(cut.sum())
        self.counts["late"] += int((late & ~cut).sum())
        missed = torch.from_numpy(late | cut)
        self.counts["lost"] += int((drawn.lost & ~missed).sum())
        return replace(drawn, lost=drawn.lost | missed)

    def _count(self, done: Done) -> None:
        self.counts["committed"] += int(done.committed.sum())
        self.counts["unproven"] += int((done.committed & done.unproven).sum())
        for row, other, unproven in zip(
            done.initiator[done.committed].tolist(), done.responder[done.committed].tolist(),
            done.unproven[done.committed].tolist(), strict=True,
        ):  # fmt: skip
            (self._unproven.add if unproven else self._unproven.discard)((min(row, other), max(row, other)))

    # --- looking ------------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        swarm = self.swarm
        sent = self._sent if self._agreed.pace.kind == "clock" else self._clocks.up_bytes
        ever = int(swarm.used.sum())
        cost = Cost(self._now_s, int(sent.sum()) / ever, 2 * self.counts["committed"] / ever)
        honest = swarm.alive & ~torch.from_numpy(self.bad)
        self.measure.add(self._done, cost, swarm.x[honest], honest.nonzero().view(-1).tolist())


def _swarm(
    scenario: Scenario, agreed: Manifest, learned: Problem | None, peers: tuple[str, ...], alive: Tensor,
    liars: Liars | None,
) -> tuple[Swarm, LocalSteps | None]:  # fmt: skip
    """All models at their beginning, and their local steps."""
    if learned is None:
        x = torch.randn((len(peers), 1), dtype=torch.float64, generator=generator(agreed.seed, "number"))
        plain = Terms(quantizer("identity", x.dtype), quantizer("identity", x.dtype), 0.0, clip)
        return Swarm(peers, x, Dsgd(), plain, Everything(), agreed.seed, alive), None
    x = learned.start.repeat(len(peers), 1)
    mixing = mixer(agreed)
    dim = mixing.size(x.shape[1])
    codecs = build.codecs(agreed, learned.layout, dim)
    drifts = agreed.compress.select == "drift_top_k"
    local = LocalSteps(
        learned,
        agreed.optimizer,
        agreed.pace,
        x,
        watched=liars is not None,
        running_mean=scenario.simulate.running_mean,
    )
    crew = None
    if liars is not None:
        attack, bad = liars
        start = mixing.shared(mixing.start(learned.start), learned.start).clone()
        crew = attackers.Crew(
            attack, bad, start, x.shape[1], agreed.pace.rounds, agreed.seed,
            lambda: local.gradients, lambda rows: attackers.thresholds(mixing, swarm.state, rows),
        )  # fmt: skip
    swarm = Swarm(
        peers, x, mixing, codecs, build.selector(scenario, codecs, mixing.edge, learned.layout, dim), agreed.seed, alive,
        drifts=drifts, losses=local.losses, liars=crew,
        wish_limit=kept(agreed.compress.ratio, dim) if drifts else 0, settled_edges=agreed.mix.settled_edges,
    )  # fmt: skip
    return swarm, local


def _in_vain(named: Meetings, alive: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(N,) how many of the dead each row would hear."""
    count = np.zeros(len(alive), np.int64)
    np.add.at(count, named.one, (named.forth > 0.0) & ~alive[named.other])
    np.add.at(count, named.other, (named.back > 0.0) & ~alive[named.one])
    return count


def _pace(scenario: Scenario, count: int, step_s: NDArray[np.float64]) -> Pace:
    rates = build.rates(scenario, count)
    return Pace(step_s, np.full(count, scenario.network.latency_s), rates, rates)


def _keeps_flows(swarm: Swarm) -> bool:
    edge = swarm.mixer.edge
    return not swaps(edge) and not gathers(edge) and edge.size(1) > 0


def _reach(agreed: Manifest) -> float:
    """Eta_c, at the highest rate."""
    section = agreed.optimizer
    unknown = section.kind == "adamw" and section.correction_lr == 0.0
    return section.lr if unknown else correction_lr(section, section.lr)
