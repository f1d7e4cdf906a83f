"""The flows of a whole swarm: what `gossip.mix.edge_ledger` keeps node by node, with one vector per edge instead of one at each end.

Both ends hold the same flow with opposite signs, so one of them is enough. As long as a responder has yet to commit, its end differs and
has a vector of its own. The total of a node moves by what its flows move by; a node's ledger sums them anew, which rounds differently.

Shapes: N rows, D numbers of the shared vector, g exchanges, k coordinates of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.api import Averaging
from starling.node.simulate.matrix.edges import Pair
from starling.node.simulate.matrix.sampler import indices
from starling.node.simulate.matrix.table import Picks, Table, grown, table

_FIRST_SLOTS = 64


@dataclass(slots=True)
class Flows:
    """Args:
    edge: what an exchange does to a flow.
    totals: (N, D) the sum of each row's flows, kept up to date here.
    most: settled edges that can still be revoked, per row.
    """

    edge: Averaging
    totals: Table
    most: int
    slab: Table = field(init=False)
    """(slots, D): what the initiators hold."""
    _free: list[int] = field(default_factory=list)
    _slots: dict[Pair, int] = field(default_factory=dict)
    _own: dict[Pair, int] = field(default_factory=dict)  # what responders hold that have yet to commit
    _settled: list[dict[int, Tensor]] = field(init=False)  # by row: the other end -> the flow, oldest first

    def __post_init__(self) -> None:
        self.slab = table(0, self.totals.width, self.totals.wide)
        self._settled = [{} for _ in range(self.totals.wide.shape[0])]

    def move(self, pairs: Sequence[Pair], unproven: NDArray[np.bool_], picks: Picks, moved: Tensor) -> None:
        """c[S] <- flow(c[S], moved) at the initiators of g edges, its opposite at the responders but for those `unproven`.

        Args:
            pairs: (g), each once.
            unproven: (g) the responder goes on with what it had, until `proven`.
            picks: S.
            moved: as wide as `picks`, gain·v as the initiator has it.
        """
        for pair, waits in zip(pairs, unproven.tolist(), strict=True):
            if pair not in self._slots:
                slot = self._slots[pair] = self._take()
                self.slab.wide[slot] = 0.0
            if waits:
                own = self._own[pair] = self._take()
                self.slab.wide[own] = self.slab.wide[self._slots[pair]]
        at = indices([self._slots[pair] for pair in pairs], moved)
        before = self.slab.gather(at, picks)
        after = self.edge.flow(before, moved)
        self.slab.put(at, picks, after)
        change = after - before
        self.totals.add(indices([pair[0] for pair in pairs], moved), picks, change, 1)
        know = np.flatnonzero(~unproven)
        if know.size:
            of = indices(know, moved)
            self.totals.add(indices([pairs[place][1] for place in know.tolist()], moved), picks.of(of), change[of], -1)

    def proven(self, pair: Pair) -> None:
        """The responder commits as well."""
        own = self._own.pop(pair, None)
        if own is not None:
            self.totals.wide[pair[1]] += self.slab.wide[own] - self.slab.wide[self._slots[pair]]
            self._free.append(own)

    def void(self, row: int, pairs: Sequence[Pair]) -> list[int]:
        """A node is gone: flows of its edges, open and settled, are deleted -> the rows at the other ends, ascending.

        Args:
            row: the node's.
            pairs: its open edges.
        """
        others = set()
        for pair in pairs:
            if pair in self._slots:
                self.proven(pair)
                slot = self._slots.pop(pair)
                other, sign = (pair[1], -1) if pair[0] == row else (pair[0], 1)
                others.add(other)
                self.totals.wide[other].sub_(self.slab.wide[slot], alpha=sign)
                self._free.append(slot)
        for other, settled in enumerate(self._settled):
            if row in settled:
                others.add(other)
                self.totals.wide[other] -= settled.pop(row)
        self._settled[row] = {}
        self.totals.wide[row] = 0.0
        return sorted(others)

    def settle(self, pair: Pair) -> None:
        """An edge was closed in order, nothing pending: each end keeps its flow, the latest `most` of them revocable."""
        if pair not in self._slots:
            return
        assert pair not in self._own, "a pending answer is resolved before an edge is settled"
        slot = self._slots.pop(pair)
        for me, other, sign in ((*pair, 1), (*pair[::-1], -1)):
            settled, flow = self._settled[me], self.slab.wide[slot] * sign
            settled[other] = flow + settled.pop(other, 0.0)
            while len(settled) > self.most:
                del settled[next(iter(settled))]
        self._free.append(slot)

    def _take(self) -> int:
        if not self._free:
            used = self.slab.wide.shape[0]
            self.slab = grown(self.slab, max(_FIRST_SLOTS, 2 * used))
            self._free = list(range(self.slab.wide.shape[0] - 1, used - 1, -1))
        return self._free.pop()
