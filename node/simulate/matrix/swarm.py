"""A swarm as matrices: thousands of nodes in one process, with the functions that engines and edges call.

    x (N, d)   ── step × K ──▶ publish ──▶ shared (N, D) ── exchanges, batched ──▶ absorb ──▶ x

Every number comes out of the same mixing, selecting and rounding functions on the same seeds as in a whole node, but sums are taken in
another order: without faults the models are those of the plain loop (`tests/harness/reference.py`) to a relative 1e-9 in float64 after
200 rounds, for every mixing algorithm. Faults are data (`node.simulate.matrix.faults`), so is the schedule of exchanges
(`node.simulate.matrix.schedule`), and durations are computed separately (`node.simulate.matrix.clocks`).

Memory besides x: one copy of the shared vectors; the state of the mixing algorithm; with flows one vector per open edge that was
ever used, and one per node.

Shapes: N rows, n of them alive, d parameters, D numbers of the shared vector, m exchanges.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.api import Mixer, Phase, Selector
from starling.gossip.mix.base import origin
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.kinds import kind_of
from starling.node.simulate.matrix.average import Differences, Flows
from starling.node.simulate.matrix.batch import Batch, RoundStats, Sizes, disjoint
from starling.node.simulate.matrix.byzantine import Byzantine, View
from starling.node.simulate.matrix.distances import Defence, Undefended
from starling.node.simulate.matrix.edges import Edges, Pair
from starling.node.simulate.matrix.faults import Change, ExchangeFaults, no_faults
from starling.node.simulate.matrix.gather import LossesOf
from starling.node.simulate.matrix.kinds import Forge, RowExchanges, Settings, exchanges_of, forge_of, settled_of
from starling.node.simulate.matrix.schedule import Exchanges
from starling.node.simulate.matrix.table import Rows, States, adjacent

Correct = Callable[[Tensor], Tensor]
"""Gradients (r, d) -> the directions that the mixing algorithm wants stepped along instead."""
Step = Callable[[Tensor, int, int, Tensor, Correct], Tensor]
"""One local step of some rows: (rows (r,) int64 ascending, on the CPU, round, step in the round, x (r, d), correct) -> new x (r, d).

Each call of `correct` knows what was known before the step, and the last one is remembered. The step must not modify x, and may be called
for any rows in any order: what it keeps (momentum, say) is its own, by row.
"""

NUMBERS_AT_ONCE = 1 << 18  # numbers per call of a step and of the mixing algorithm: they fit into the processor's cache


@dataclass(slots=True)
class Swarm:
    """N rows, some of which are alive. Raises ValueError: shapes that do not match, equal peers."""

    peers: Sequence[str]  # (N) peer id of each row; of two, the lesser initiates
    x: Tensor  # (N, d) float32 or float64 on any device, updated in place; to start with alike where ends swap messages
    mixer: Mixer
    codec: ExchangeCodec
    selector: Selector
    seed: int
    alive: Tensor  # (N,) bool on the CPU. Rows that are not alive wait for `change`
    compares: bool = False  # the selector uses the last estimate of the peer's vector
    wish_limit: int = 0  # largest number of coordinates of an exchange if responders request some as well; 0: they do not
    settled_edges: int = 8  # edges closed in order whose flows can still be revoked, per node
    losses: LossesOf | None = None  # for rules that use losses of models; None: there are none
    byzantine: Byzantine | None = None  # the attackers; None: all are honest
    defence: Defence = field(default_factory=Undefended)  # limits that rows apply to peers' differences
    used: Tensor = field(init=False)  # (N,) bool: rows that were alive at any time
    flows: Flows | None = field(init=False, default=None)  # state of all edges, if there are any
    exchanges: RowExchanges = field(init=False)
    edges: Edges = field(init=False)
    _states: States = field(init=False)
    _vectors: Tensor = field(init=False)
    _forge: Forge = field(init=False)
    _settled: Callable[[Tensor, Any], Tensor] = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.peers)
        if self.x.dim() != 2 or self.x.shape[0] != n or self.alive.shape != (n,):
            raise ValueError(f"x must be ({n}, d) and alive ({n},) for {n} peers, got {tuple(self.x.shape)}, {tuple(self.alive.shape)}")
        self.alive = self.alive.cpu().bool().clone()
        self.used = self.alive.clone()
        self._states = States(self.mixer, self.x)
        self.edges = Edges(self.peers, self.seed)
        self._vectors = self.x.new_zeros(n, origin(self.mixer, self.x[0]).numel())
        self.exchanges = exchanges_of(
            self.mixer,
            self.x[0],
            self._vectors,
            Settings(
                self.codec,
                self.selector,
                self.edges,
                self._states,
                self.compares,
                self.wish_limit,
                self.settled_edges,
                self.losses,
                self.byzantine,
                self.defence,
            ),
        )
        self.flows = self.exchanges.flows if isinstance(self.exchanges, Differences) else None
        self._settled = settled_of(self.mixer)
        self._forge = forge_of(kind_of(self.mixer.edge), self.byzantine, self.edges, self.codec)

    def change(self, change: Change) -> None:
        """Nodes leave and crash, then edges are closed, then others join.

        The edges of a node that is gone are removed: flows and pending answers are deleted at both ends. Who leaves in order lets its
        neighbors know what it had committed before. Who joins has the model of its source, a fresh state and no edges.

        Raises ValueError: a row that goes is not alive, one that joins is, or its source is not.
        """
        gone = (*change.left, *change.crashed)
        for row in gone:
            if not self.alive[row]:
                raise ValueError(f"row {row} cannot go, it is not alive")
        self._resolve([pair for row in change.left for pair in self.edges.of(row)])
        for row in gone:
            pairs = self.edges.remove(row)
            for pair in pairs:
                self.exchanges.remove(pair)
            if self.flows is not None:
                self._corrected(self.flows, self.flows.revoke(row, pairs))
            self.alive[row] = False
        closed = [self.edges.pair(*pair) for pair in change.closed]
        self._resolve(closed)
        for pair in closed:
            self.exchanges.remove(pair)
            self.edges.close(pair)
            if self.flows is not None:
                self.flows.settle(pair)
                self._corrected(self.flows, pair)
        for row, source in change.joined:
            if self.alive[row] or not self.alive[source]:
                raise ValueError(f"row {row} cannot join from {source}: the one must not be alive and the other must")
            self._states.join(row, self.settled[source])
            self.alive[row] = self.used[row] = True

    def round(
        self,
        phase: Phase,
        step: Step | None,
        steps: int | NDArray[np.int64],
        exchanges: Exchanges,
        faults: ExchangeFaults | None = None,
        unreachable: NDArray[np.int64] | None = None,
    ) -> RoundStats:
        """Steps pace: local steps of all alive, then all exchanges on the vectors frozen after them, then absorb.

        `step` is one local step, None in a round without; `steps` K, or for each row (N,) how many it manages this round: then `publish`
        and `absorb` see its own number instead of that of the phase. Exchanges are among rows alive. `unreachable` (N,), where vectors are
        gathered: how many more peers each row requests in vain.

        Raises ValueError: "not_finite": the swarm has diverged.
        """
        parts, before_steps = list(self._parts(phase, steps)), self._shared()
        for rows, at, own, count in parts:
            before = x, state = self._states.of(at)
            x, state = self._work(step, phase.round, range(count), rows, x, state)
            x, state = self.mixer.publish(state, x, own)
            self._states.put(at, before, x, state)
            self._vectors[at] = self.mixer.shared(state, x)
        batch = self.exchanges.told(self._batch(exchanges, faults, phase), self.state)
        view = View(phase.round, before_steps, self._vectors, self.alive.numpy())
        batch, sizes = self._exchange(batch, view, unreachable)
        for _, at, own, _ in parts:
            self._absorb(at, self._states.of(at), self._vectors[at], own)
        return RoundStats(~batch.lost, batch.unproven, batch.ends, sizes)

    def slot(
        self, phase: Phase, step: Step | None, steps: int | NDArray[np.int64], visits: Exchanges, faults: ExchangeFaults | None = None
    ) -> RoundStats:
        """Clock pace: local steps of all alive, `publish` after each, then visits one after the other on the live vectors, absorbing each.

        Visits that share no row are computed together: the result is that of their order; a pair may come more than once. `local_steps` of
        the phase are those between two exchanges of a node. Other arguments as of `round`.

        Raises ValueError: "not_finite": the swarm has diverged; or the mixing algorithm is not asynchronous.
        """
        if not self.mixer.asynchronous:
            raise ValueError("this mixing algorithm needs rounds: it cannot run in clock pace")
        one, before_steps = replace(phase, local_steps=1.0), self._shared()
        for rows, at, _, count in self._parts(phase, steps):
            before = x, state = self._states.of(at)
            for number in range(count if step is not None else 0):
                x, state = self._work(step, phase.round, range(number, number + 1), rows, x, state)
                x, state = self.mixer.publish(state, x, one)
            self._states.put(at, before, x, state)
        sizes, batch = np.zeros((2, len(visits)), np.int64), self._batch(visits, faults, phase)
        for places in disjoint(batch.ends):
            part, before = self._live(batch, places)
            part = self.exchanges.less_pending(part)
            view = View(phase.round, before_steps, self._shared(), self.alive.numpy())
            part, sizes[:, places] = self._exchange(part, view, None)
            batch.lost[places] = part.lost
            self._absorb(torch.from_numpy(part.rows), before, part.vectors, phase)
        return RoundStats(~batch.lost, batch.unproven, batch.ends, sizes)

    @property
    def settled(self) -> Tensor:
        """Return the models (N, d) that are evaluated and sent to joining nodes: the outer parameters where nodes broadcast, else x."""
        return self._settled(*self._states.of(slice(None)))

    @property
    def state(self) -> Any:
        """The mixing algorithm's, all rows: None, or a dataclass of tensors (N, …)."""
        return self._states.of(slice(None))[1]

    def _parts(self, phase: Phase, steps: int | NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Rows, Phase, int]]:
        """Rows alive that do equally many local steps: which, where, their phase, how many."""
        alive = np.flatnonzero(self.alive.numpy())
        most = max(1, NUMBERS_AT_ONCE // self.x.shape[1])
        counts = np.full(len(alive), steps) if isinstance(steps, int) else steps[alive]
        for count in np.unique(counts).tolist():
            own = phase if isinstance(steps, int) else replace(phase, local_steps=float(count))
            alike = alive[counts == count]
            for rows in np.split(alike, range(most, len(alike), most)):
                yield rows, adjacent(torch.from_numpy(rows)), own, count

    def _work(self, step: Step | None, round: int, numbers: range, rows: NDArray[np.int64], x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the local steps of these numbers, of some rows."""
        before = state

        def correct(gradient: Tensor) -> Tensor:
            nonlocal state
            direction, state = self.mixer.correct(before, gradient)
            return direction

        if step is not None:
            for number in numbers:
                before = state
                x = step(torch.from_numpy(rows), round, number, x, correct)
        return x, state

    def _shared(self) -> Tensor:
        """Return the current vectors (N, D), if there are attackers that read them."""
        if self.byzantine is None:
            return self._vectors
        x, state = self._states.of(slice(None))
        return self.mixer.shared(state, x).clone()

    def _exchange(self, batch: Batch, view: View, unreachable: NDArray[np.int64] | None) -> tuple[Batch, Sizes]:
        """Run all exchanges of a batch -> the batch as attackers made it, and the sizes."""
        vain = np.zeros(len(self.peers), np.int64) if unreachable is None else unreachable
        sent = self._forge(batch, view)
        return sent, self.exchanges.exchange(sent, batch, view, vain)

    def _batch(self, exchanges: Exchanges, faults: ExchangeFaults | None, phase: Phase) -> Batch:
        """Return the batch of all exchanges, each initiated by the lesser peer id."""
        faults = no_faults(len(exchanges)) if faults is None else faults
        rank = self.edges.rank[exchanges.ends]
        swapped = rank[1] < rank[0]
        ends, weights = (np.where(swapped, both[::-1], both) for both in (exchanges.ends, exchanges.weights))
        pairs = [(i, j) for i, j in ends.T.tolist()]
        rows, lost = np.arange(len(self.peers)), faults.lost.copy()
        return Batch(self._vectors, (self._vectors, self._vectors), rows, ends, pairs, weights, phase, lost, faults.unproven & ~lost)

    def _live(self, batch: Batch, places: NDArray[np.int64]) -> tuple[Batch, tuple[Tensor, Any]]:
        """Some exchanges on the live vectors of their rows, and the models and states of those."""
        rows = np.unique(batch.ends[:, places])
        before = x, state = self._states.of(torch.from_numpy(rows))
        return self.exchanges.told(batch.of(places, self.mixer.shared(state, x).clone(), rows), state), before

    def _absorb(self, at: Rows, before: tuple[Tensor, Any], shared: Tensor, phase: Phase) -> None:
        x, state = before
        correction = self.exchanges.correction(at)
        if correction is not None:
            state = self.mixer.corrected(state, correction)
        x, state = self.mixer.absorb(state, x, shared, phase)
        self._states.put(at, before, x, state)

    def _corrected(self, flows: Flows, rows: Sequence[int]) -> None:
        """Flows of these rows were deleted."""
        if rows:
            at = torch.as_tensor(rows)
            before = x, state = self._states.of(at)
            self._states.put(at, before, x, self.mixer.corrected(state, flows.totals[at]))

    def _resolve(self, pairs: Sequence[Pair]) -> None:
        """Before edges are closed in order, responders learn what initiators have committed."""
        phase = Phase(0, 1.0, 1.0)  # nothing here divides by it
        for pair in pairs:
            if not self.mixer.asynchronous or pair not in self.exchanges.pending:
                continue
            batch = self._batch(Exchanges(np.asarray([pair]).T, np.ones((2, 1))), None, phase)
            part, _ = self._live(batch, np.zeros(1, np.int64))
            self.exchanges.resolve(part)
            at = torch.tensor(pair[1:])
            self._absorb(at, self._states.of(at), part.vectors[torch.from_numpy(part.rows) == pair[1]], phase)
