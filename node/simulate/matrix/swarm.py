"""A swarm as matrices: thousands of nodes in one process, with the functions that engines and edges call.

    x (N, d)   ── step × K ──▶ publish ──▶ shared (N, D) ── exchanges, batched ──▶ absorb ──▶ x

Every number comes out of the same mixing, selecting and rounding functions on the same seeds as in a whole node, but sums are taken in
another order: without faults the models are those of `starling.gossip.reference` to a relative 1e-9 in float64 after 200 rounds, for every
mixing algorithm. What faults do is data (`node.simulate.matrix.faults`), who meets whom is data (`node.simulate.matrix.schedule`), and how
long it all takes is arithmetic beside it (`starling.node.simulate.matrix.clocks`).

A run is a loop of the caller's:

    swarm.change(churn(faults, seed, round, swarm.alive, swarm.used))
    meetings = schedule.at(round, swarm.alive.numpy())
    done = swarm.round(phase, step, steps, meetings, fate(faults, seed, round, len(meetings)))

Memory beside x: one copy of the shared vectors; the state of the mixing algorithm; where flows are kept one vector per edge that was
ever used and lives, and one per node.

Shapes: N rows, n of them alive, d parameters, D numbers of the shared vector, E numbers kept per edge, m meetings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.api import Mixer, Phase, Selector
from starling.gossip.mix.catalogue import gathers, swaps
from starling.gossip.mix.exchange_codec import Terms
from starling.gossip.mix.gather import Gather
from starling.gossip.reference import consensus_distance
from starling.node.simulate.matrix.average import Differences
from starling.node.simulate.matrix.batch import Sizes, Turn, in_turn
from starling.node.simulate.matrix.byzantine import Liars, Seen, lied
from starling.node.simulate.matrix.edges import Edges, Pair
from starling.node.simulate.matrix.faults import Change, Fate, kind
from starling.node.simulate.matrix.flows import Flows
from starling.node.simulate.matrix.gather import Gathers, LossesOf
from starling.node.simulate.matrix.round_stats import Done, done
from starling.node.simulate.matrix.rule_memory import Memory
from starling.node.simulate.matrix.schedule import Meetings
from starling.node.simulate.matrix.state import Rows, States, chunks
from starling.node.simulate.matrix.swap import Swaps
from starling.node.simulate.matrix.table import Table, table

Correct = Callable[[Tensor], Tensor]
"""Gradients (r, d) -> the directions that the mixing algorithm wants stepped along instead."""
Step = Callable[[Tensor, int, int, Tensor, Correct], Tensor]
"""One local step of some rows: (rows (r,) int64 ascending, on the CPU, round, step in the round, x (r, d), correct) -> new x (r, d).

It calls `correct` once, must not modify x, and may be called for any rows in any order: what it keeps (momentum, say) is its own, by row.
"""

Visited = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]
_NUMBERS = 1 << 18


@dataclass(slots=True)
class Swarm:
    """N rows, of which some are alive.

    Args:
        peers: (N) peer id of each row; of two, the lesser initiates.
        x: (N, d) float32 or float64 on any device, the models to start from, all alike where ends swap messages. Moved in place.
        mixer: mixing algorithm.
        terms: codecs and clip.
        selector: coordinates of an exchange.
        seed: the swarm's.
        alive: (N,) bool on the CPU. Rows that are not alive wait for `change`.
        atomic: a swap of messages happens at both ends or at none. False: each message has its own fate, which only an edge whose
            memory makes up for lost messages (running sums) survives.
        rows_at_once: rows given to `step` and the mixing algorithm at a time. None: some million bytes, which the cache holds.
        wish_limit: most coordinates of an exchange where the responder wishes for some as well, by the same selector; 0: it does not.
        drifts: the selector looks at what was held at the last exchange. Always so with wishes.
        settled_edges: edges closed in order whose flows can still be revoked, per node.
        losses: for rules that look at what a model is worth; None: they cannot.
        liars: rows that lie; None: everybody is honest.

    Raises:
        ValueError: shapes that do not fit, peers alike.
    """

    peers: Sequence[str]
    x: Tensor
    mixer: Mixer
    terms: Terms
    selector: Selector
    seed: int
    alive: Tensor
    atomic: bool = True
    rows_at_once: int | None = None
    wish_limit: int = 0
    drifts: bool = False
    settled_edges: int = 8
    losses: LossesOf | None = None
    liars: Liars | None = None
    used: Tensor = field(init=False)
    """(N,) bool: rows that were alive at any time."""
    _states: States = field(init=False)
    _edges: Edges = field(init=False)
    _vectors: Table = field(init=False)
    _flows: Flows | None = field(init=False)
    _exchanges: Differences | Swaps | Gathers = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.peers)
        if self.x.dim() != 2 or self.x.shape[0] != n or self.alive.shape != (n,):
            raise ValueError(
                f"x must be ({n}, d) and alive ({n},) for {n} peers, got {tuple(self.x.shape)}, {tuple(self.alive.shape)}"
            )
        self.alive = self.alive.cpu().bool().clone()
        self.used = self.alive.clone()
        self._states = States(self.mixer, self.x)
        self._edges = Edges(self.peers, self.seed)
        width, edge = self.mixer.size(self.x.shape[1]), self.mixer.edge
        self._vectors = table(n, width, self.x)
        self._flows = None
        if gathers(edge):
            assert isinstance(self.mixer, Gather)
            self._exchanges = Gathers(self.mixer, self.terms, self._edges, self._states, self.losses)
            return
        if swaps(edge):
            x, state = self._states.of(slice(0, 1))
            origin = self.mixer.shared(state, x)[0].clone()
            self._exchanges = Swaps(
                edge, self.terms, self.selector, self._edges, Memory(edge.begin(origin)), self.atomic
            )  # fmt: skip
            return
        if edge.size(width):
            self._flows = Flows(edge, table(n, width, self.x), self.settled_edges)
        met = Memory(torch.zeros_like(self._vectors.rows[0])) if self.drifts or self.wish_limit else None
        self._exchanges = Differences(
            edge, self.terms, self.selector, self._edges, self._flows, met, self.wish_limit
        )  # fmt: skip

    # --- membership ---------------------------------------------------------------------------------------

    def change(self, change: Change) -> None:
        """Nodes leave and crash, then edges are closed, then others join.

        A node that is gone voids its edges: flows and pending answers are deleted at both ends. Who leaves in order lets its neighbors
        know what it had committed before. Who joins has the model of its source, a fresh state and no edges.

        Raises:
            ValueError: a row that goes is not alive, one that joins is, or its source is not.
        """
        for row in (*change.left, *change.crashed):
            if not self.alive[row]:
                raise ValueError(f"row {row} cannot go, it is not alive")
        phase = Phase(0, 1.0, 1.0)  # nothing that is done here divides by it
        self._resolve([pair for row in change.left for pair in self._edges.of(row)], phase)
        for row in (*change.left, *change.crashed):
            pairs = self._edges.gone(row)
            for pair in pairs:
                self._exchanges.void(pair)
            if self._flows is not None:
                self._corrected(self._flows.void(row, pairs))
            self.alive[row] = False
        closed = [self._edges.pair(one, other) for one, other in change.closed]
        self._resolve(closed, phase)
        for pair in closed:
            self._exchanges.void(pair)
            self._edges.closed(pair)
            if self._flows is not None:
                self._flows.settle(pair)
                self._corrected(pair)
        for row, source in change.joined:
            if self.alive[row] or not self.alive[source]:
                raise ValueError(f"row {row} cannot join from {source}: the one must not be alive and the other must")
            self._states.join(row, source)
            self.alive[row] = self.used[row] = True

    # --- the two paces ------------------------------------------------------------------------------------

    def round(
        self,
        phase: Phase,
        step: Step | None,
        steps: int | NDArray[np.int64],
        meetings: Meetings,
        fate: Fate | None = None,
        gone: NDArray[np.int64] | None = None,
    ) -> Done:
        """Steps pace: local steps of all alive, then all exchanges on the vectors frozen after them, then absorb.

        Args:
            phase: of this round. Where `steps` are given row by row, `publish` and `absorb` are told each row's own number instead.
            step: one local step; None in a round without.
            steps: K, or for each row (N,) how many it manages this round.
            meetings: among rows alive.
            fate: of the meetings; None: kind.
            gone: (N,) where vectors are gathered, how many each row asks in vain beyond the meetings; None: nobody does.

        Raises:
            ValueError: "not_finite": the swarm has diverged.
        """
        parts, began = list(self._parts(phase, steps)), self._shared()
        for rows, at, own, count in parts:
            before = x, state = self._states.of(at)
            x, state = self._work(step, phase.round, 0, count, rows, x, state)
            x, state = self.mixer.publish(state, x, own)
            self._states.put(at, before, x, state)
            self._vectors.rows[at] = self.mixer.shared(state, x)
        turn, sizes = self._exchange(self._turn(meetings, fate, phase), self._seen(phase, began), gone)
        for _, at, own, _ in parts:
            self._absorb(at, self._states.of(at), self._vectors.rows[at], own)
        return done(turn, sizes.request, sizes.response, atomic=self._atomic)

    def slot(
        self,
        phase: Phase,
        step: Step | None,
        steps: int | NDArray[np.int64],
        visits: Meetings,
        fate: Fate | None = None,
    ) -> Done:
        """Clock pace: local steps of all alive, `publish` after each, then visits one after the other on the live vectors, absorbing each.

        Visits that share no row are computed together: the outcome is that of their order.

        Args:
            phase: of this slot; its `local_steps` are those between two exchanges of a node.
            step: one local step; None in a slot without.
            steps: K, or for each row (N,): 0 for who does not compute in this slot.
            visits: among rows alive; a pair may come more than once.
            fate: of the visits; None: kind.

        Raises:
            ValueError: "not_finite": the swarm has diverged; or the mixing algorithm is not asynchronous.
        """
        if not self.mixer.asynchronous:
            raise ValueError("this mixing algorithm needs rounds: it cannot run in clock pace")
        one, began = replace(phase, local_steps=1.0), self._shared()
        for rows, at, _, count in self._parts(phase, steps):
            before = x, state = self._states.of(at)
            for number in range(count if step is not None else 0):
                x, state = self._work(step, phase.round, number, 1, rows, x, state)
                x, state = self.mixer.publish(state, x, one)
            self._states.put(at, before, x, state)
        request, response = np.zeros(len(visits), np.int64), np.zeros(len(visits), np.int64)
        turn = self._turn(visits, fate, phase)
        for places in in_turn(turn.asking, turn.answering):
            request[places], response[places], turn.lost[places] = self._visit(turn, places, began)
        return done(turn, request, response, atomic=self._atomic)

    def _visit(self, turn: Turn, places: NDArray[np.int64], began: Tensor | None) -> Visited:
        """Some of a slot's visits, which share no row -> bytes, and which were for nothing."""
        rows = np.unique(np.concatenate((turn.asking[places], turn.answering[places])))
        at = torch.from_numpy(rows)
        before = x, state = self._states.of(at)
        vectors = table(len(rows), self._vectors.width, self.x)
        vectors.rows.copy_(self.mixer.shared(state, x))
        assert not isinstance(self._exchanges, Gathers)
        visits = self._exchanges.less_pending(turn.of(places, vectors, rows))
        visits, sizes = self._exchange(visits, self._seen(turn.phase, began, self._shared()))
        self._absorb(at, before, vectors.rows, turn.phase)
        return sizes.request, sizes.response, visits.lost

    # --- looking ------------------------------------------------------------------------------------------

    @property
    def state(self) -> Any:
        """The mixing algorithm's, all rows: None, or a dataclass of tensors (N, …)."""
        return self._states.of(slice(None))[1]

    @property
    def flows(self) -> Flows | None:
        """Of all edges, where there are any."""
        return self._flows

    @property
    def _atomic(self) -> bool:
        return self.atomic or not isinstance(self._exchanges, Swaps)

    @property
    def pending(self) -> int:
        """Answers whose responders do not know yet that they were committed."""
        return len(self._exchanges.late)

    def consensus_distance(self) -> float:
        """Xi of the models alive: Xi² = (1/n) Σ ‖x_i − x̄‖²."""
        return consensus_distance(self.x[self.alive.to(self.x.device)])

    # --- parts --------------------------------------------------------------------------------------------

    def _parts(
        self, phase: Phase, steps: int | NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], Rows, Phase, int]]:
        """Rows alive that do equally many local steps: which, where, their phase, how many."""
        alive = np.flatnonzero(self.alive.numpy())
        most = self.rows_at_once or max(1, _NUMBERS // self.x.shape[1])
        if isinstance(steps, int):
            counts, own = np.full(len(alive), steps), phase
        else:
            counts = steps[alive]
        for count in np.unique(counts).tolist():
            if not isinstance(steps, int):
                own = replace(phase, local_steps=float(count))
            for rows, at in chunks(alive[counts == count], most):
                yield rows, at, own, count

    def _work(
        self, step: Step | None, round: int, first: int, count: int, rows: NDArray[np.int64], x: Tensor, state: Any
    ) -> tuple[Tensor, Any]:
        """Local steps `first` to `first` + `count` of some rows."""
        if step is None:
            return x, state
        held = [state]

        def correct(gradient: Tensor) -> Tensor:
            direction, held[0] = self.mixer.correct(held[0], gradient)
            return direction

        named = torch.from_numpy(rows)
        for number in range(first, first + count):
            x = step(named, round, number, x, correct)
        return x, held[0]

    def _shared(self) -> Tensor | None:
        """(N, D) as they are now, where there is somebody to look at them."""
        if self.liars is None:
            return None
        x, state = self._states.of(slice(None))
        return self.mixer.shared(state, x).clone()

    def _seen(self, phase: Phase, began: Tensor | None, now: Tensor | None = None) -> Seen:
        """What liars see: vectors before and after the local steps."""
        now = self._vectors.rows if now is None else now
        return Seen(phase.round, now if began is None else began, now, self.alive.numpy())

    def _exchange(self, turn: Turn, seen: Seen, gone: NDArray[np.int64] | None = None) -> tuple[Turn, Sizes]:
        """All exchanges of a turn, with liars."""
        if isinstance(self._exchanges, Gathers):
            gone = np.zeros(len(self.peers), np.int64) if gone is None else gone
            return turn, self._exchanges.exchange(turn, gone, self.liars, seen)
        if self.liars is None:
            return turn, self._exchanges.exchange(turn)
        told = lied(turn, self.liars, seen, self._edges.rank, self.terms.request)
        if isinstance(self._exchanges, Swaps):
            return told, self._exchanges.exchange(told, turn)
        return told, self._exchanges.exchange(told)

    def _turn(self, meetings: Meetings, fate: Fate | None, phase: Phase) -> Turn:
        """The exchanges of all meetings, each begun by the lesser peer id."""
        fate = kind(len(meetings)) if fate is None else fate
        rank = self._edges.rank
        turned = rank[meetings.other] < rank[meetings.one]
        asking, answering = np.where(turned, (meetings.other, meetings.one), (meetings.one, meetings.other))
        forth, back = np.where(turned, (meetings.back, meetings.forth), (meetings.forth, meetings.back))
        pairs = list(zip(asking.tolist(), answering.tolist(), strict=True))
        lost = fate.lost.numpy()
        return Turn(
            self._vectors, self._vectors, self._vectors, np.arange(len(self.peers)), asking, answering, pairs, forth, back,
            phase, lost, fate.unproven.numpy() & ~lost, fate.forth_lost.numpy(), fate.back_lost.numpy(),
        )  # fmt: skip

    def _absorb(self, at: Rows, before: tuple[Tensor, Any], shared: Tensor, phase: Phase) -> None:
        x, state = before
        if self._flows is not None:
            state = self.mixer.corrected(state, self._flows.totals.rows[at])
        x, state = self.mixer.absorb(state, x, shared, phase)
        self._states.put(at, before, x, state)

    def _corrected(self, rows: Sequence[int]) -> None:
        """Flows of these rows were deleted."""
        if self._flows is None or not rows:
            return
        at = torch.as_tensor(rows)
        before = x, state = self._states.of(at)
        self._states.put(at, before, x, self.mixer.corrected(state, self._flows.totals.rows[at]))

    def _resolve(self, pairs: Sequence[Pair], phase: Phase) -> None:
        """Before edges are closed in order, responders hear what initiators have committed."""
        for pair in pairs:
            if pair in self._exchanges.late and self.mixer.asynchronous:
                rows = np.asarray(sorted(pair))
                met = Meetings(rows[:1], rows[1:], np.ones(1), np.ones(1))
                at = torch.from_numpy(rows)
                before = x, state = self._states.of(at)
                vectors = table(2, self._vectors.width, self.x)
                vectors.rows.copy_(self.mixer.shared(state, x))
                assert not isinstance(self._exchanges, Gathers)
                self._exchanges.hear(self._turn(met, None, phase).of(np.zeros(1, np.int64), vectors, rows))
                self._absorb(at, before, vectors.rows, phase)
