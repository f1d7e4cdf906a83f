"""The flows of a whole swarm: what `gossip.mix.edge_ledger` keeps node by node, with one vector per edge instead of one at each end.

Both ends hold the same bits with opposite signs, so one of them is enough. (Where one end has 0 the other may have −0; totals begin at
0 and so never show it.) As long as a responder has yet to commit, its end differs and has a vector of its own.

The total of a node is summed anew wherever an exchange touched it, in order of peer id, as the ledger does. A coordinate that later
exchanges of the round do not touch has the same sum before and after them, so one summing at the end of a round gives the same bits.

Shapes: N rows, D numbers of the shared vector, g exchanges, k coordinates of each.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starling.gossip.api import Averaging
from starling.node.simulate.matrix.edges import Pair
from starling.node.simulate.matrix.sampler import indices
from starling.node.simulate.matrix.table import Picks, Table, grown, table

_FIRST_SLOTS = 64
_NUMBERS = 1 << 18
_SETTLED, _OPEN = 0, 1  # a peer's settled flow is added before its open one
_Part = tuple[int, int, int, int]  # place of the peer, which of its two, slot, sign


@dataclass(slots=True)
class Flows:
    """Args:
    edge: what an exchange does to a flow.
    rank: (N,) places of the rows in the order of peer ids.
    totals: (N, D) the sum of each row's flows, kept up to date here.
    most: settled edges that can still be revoked, per row.
    """

    edge: Averaging
    rank: NDArray[np.int64]
    totals: Table
    most: int
    slab: Table = field(init=False)
    """(slots, D): what the initiators hold."""
    _free: list[int] = field(default_factory=list)
    _slots: dict[Pair, int] = field(default_factory=dict)
    _own: dict[Pair, int] = field(default_factory=dict)
    _settled: list[dict[int, int]] = field(init=False)
    _rest: dict[int, Tensor] = field(default_factory=dict)
    _parts: list[list[_Part]] = field(init=False)
    _at: NDArray[np.int64] = field(init=False)
    _signs: NDArray[np.float32] = field(init=False)
    _counts: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.rank)
        self.slab = table(0, self.totals.width, self.totals.wide)
        self._settled = [{} for _ in range(n)]
        self._parts = [[] for _ in range(n)]
        self._at = np.zeros((n, 4), np.int64)
        self._signs = np.zeros((n, 4), np.float32)
        self._counts = np.zeros(n, np.int64)

    def move(self, pairs: Sequence[Pair], unproven: Sequence[bool], picks: Picks, moved: Tensor) -> None:
        """c[S] <- flow(c[S], moved) at the initiators of g edges, its opposite at the responders but for those `unproven`.

        Args:
            pairs: (g), each once.
            unproven: (g) the responder goes on with what it had, until `proven`.
            picks: S.
            moved: as wide as `picks`, gain·v as the initiator has it.
        """
        for pair, waits in zip(pairs, unproven, strict=True):
            if pair not in self._slots:
                self._open(pair)
            if waits:
                own = self._own[pair] = self._take()
                self.slab.wide[own] = self.slab.wide[self._slots[pair]]
                self._replace(pair[1], self._slots[pair], own)
        at = indices([self._slots[pair] for pair in pairs], moved)
        self.slab.put(at, picks, self.edge.flow(self.slab.gather(at, picks), moved))

    def proven(self, pair: Pair) -> None:
        """The responder commits as well; its total is to be summed."""
        own = self._own.pop(pair, None)
        if own is not None:
            self._replace(pair[1], own, self._slots[pair])
            self._free.append(own)

    def sum(self, rows: NDArray[np.int64], picks: Picks) -> None:
        """The totals of g rows anew, at `picks`."""
        order = np.argsort(-self._counts[rows], kind="stable")
        step = max(1, _NUMBERS // picks.width)
        for start in range(0, len(order), step):
            part = order[start : start + step]
            self._sum(rows[part], picks.of(indices(part, picks.pieces)))

    def _sum(self, rows: NDArray[np.int64], picks: Picks) -> None:
        """Of rows with ever fewer parts."""
        like, counts = self.slab.wide, self._counts[rows]
        slots, signs = torch.from_numpy(self._at[rows]).to(like.device), torch.from_numpy(self._signs[rows]).to(like)
        total = torch.zeros((len(rows), picks.width), dtype=like.dtype, device=like.device)
        for place, row in enumerate(rows.tolist()):
            if row in self._rest:
                one = Table(self._rest[row][None], self.slab.width)
                total[place] = one.gather(
                    torch.zeros(1, dtype=torch.int64, device=like.device), picks.of(slice(place, place + 1))
                )[0]
        for column in range(int(counts[0])):
            many = int(np.searchsorted(-counts, -column))
            part = self.slab.gather(slots[:many, column], picks.of(slice(many)))
            total[:many] += part.mul_(signs[:many, column, None])
        self.totals.put(indices(rows, like), picks, total)

    def void(self, row: int, pairs: Sequence[Pair]) -> list[int]:
        """A node is gone: flows of its edges, open and settled, are deleted -> rows whose totals are to be summed, all of them.

        Args:
            row: the node's.
            pairs: its open edges.
        """
        others = set()
        for pair in pairs:
            if pair in self._slots:
                others.add(pair[0] if pair[1] == row else pair[1])
                self.proven(pair)
                self._drop(pair, self._slots.pop(pair))
        for other in [*self._settled[row]]:
            self._forget(row, other)
        for other, settled in enumerate(self._settled):
            if row in settled:
                self._forget(other, row)
                others.add(other)
        self._rest.pop(row, None)
        self.totals.wide[row] = 0.0
        return sorted(others)

    def settle(self, pair: Pair) -> None:
        """An edge was closed in order, nothing pending: each end keeps its flow for itself. Totals are to be summed."""
        if pair not in self._slots:
            return
        assert pair not in self._own, "a pending answer is resolved before an edge is settled"
        slot = self._slots.pop(pair)
        for me, other, sign in ((*pair, 1), (*pair[::-1], -1)):
            flow = self.slab.wide[slot] * sign
            held = self._settled[me].pop(other, None)
            if held is None:
                held = self._take()
                self.slab.wide[held] = flow
                self._insert(me, (int(self.rank[other]), _SETTLED, held, 1))
            else:
                self.slab.wide[held] += flow
            self._settled[me][other] = held
            while len(self._settled[me]) > self.most:
                oldest = next(iter(self._settled[me]))
                rest = self._rest.get(me)
                flow = self.slab.wide[self._settled[me][oldest]]
                self._rest[me] = flow + 0.0 if rest is None else rest + flow
                self._forget(me, oldest)
        self._drop(pair, slot)

    def everywhere(self, rows: Sequence[int]) -> None:
        """Sum the totals of these rows, all coordinates."""
        if rows:
            whole = Picks(0, torch.empty(0, dtype=torch.int64), self.slab.width)
            self.sum(np.asarray(rows), whole)

    def owed(self) -> Tensor:
        """(D,) float64: what initiators have committed beyond their responders. The totals of all rows sum to it."""
        owed = torch.zeros(self.slab.width, dtype=torch.float64, device=self.slab.wide.device)
        for pair, own in self._own.items():
            owed += self.slab.rows[self._slots[pair]].double() - self.slab.rows[own].double()
        return owed

    def of(self, me: int, other: int) -> Tensor | None:
        """(D,) what `me` holds for its open edge with `other`, None without one."""
        pair = (me, other) if self.rank[me] < self.rank[other] else (other, me)
        if pair not in self._slots:
            return None
        if me == pair[0]:
            return self.slab.rows[self._slots[pair]].clone()
        return -self.slab.rows[self._own.get(pair, self._slots[pair])]

    # --- slots --------------------------------------------------------------------------------------------

    def _open(self, pair: Pair) -> None:
        slot = self._slots[pair] = self._take()
        self.slab.wide[slot] = 0.0
        for me, other, sign in ((*pair, 1), (*pair[::-1], -1)):
            self._insert(me, (int(self.rank[other]), _OPEN, slot, sign))

    def _drop(self, pair: Pair, slot: int) -> None:
        for me in pair:
            self._remove(me, slot)
        self._free.append(slot)

    def _forget(self, me: int, other: int) -> None:
        slot = self._settled[me].pop(other)
        self._remove(me, slot)
        self._free.append(slot)

    def _take(self) -> int:
        if not self._free:
            used = self.slab.wide.shape[0]
            self.slab = grown(self.slab, max(_FIRST_SLOTS, 2 * used))
            self._free = list(range(self.slab.wide.shape[0] - 1, used - 1, -1))
        return self._free.pop()

    # --- whose parts are where ----------------------------------------------------------------------------

    def _insert(self, row: int, part: _Part) -> None:
        insort(self._parts[row], part)
        self._note(row)

    def _remove(self, row: int, slot: int) -> None:
        self._parts[row] = [part for part in self._parts[row] if part[2] != slot]
        self._note(row)

    def _replace(self, row: int, slot: int, by: int) -> None:
        self._parts[row] = [(*part[:2], by, part[3]) if part[2] == slot else part for part in self._parts[row]]
        self._note(row)

    def _note(self, row: int) -> None:
        parts = self._parts[row]
        if len(parts) > self._at.shape[1]:
            more = ((0, 0), (0, self._at.shape[1]))
            self._at, self._signs = np.pad(self._at, more), np.pad(self._signs, more)
        self._counts[row] = len(parts)
        for column, (_, _, slot, sign) in enumerate(parts):
            self._at[row, column], self._signs[row, column] = slot, sign
