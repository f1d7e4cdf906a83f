"""Rounds in which nodes request their peers' vectors: every row's message through the codec, then each row's rule over what it received.

A message is made once a round and row, the same for all who request it; only attackers send each something else. What is lost, late, not
finite or larger than any message may be is absent: it counts among those requested, and as no vector.

Shapes: N rows, m exchanges, a requests, r rows that made k requests each, D numbers of the shared vector.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from starling.gossip.compress import codec
from starling.gossip.compress.support import Full
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.gather import Gather, Gathered, message_seed
from starling.gossip.mix.rule_memory import assign_slots
from starling.node.simulate.matrix.batch import Batch, Sizes
from starling.node.simulate.matrix.byzantine import Byzantine, View, transmitted
from starling.node.simulate.matrix.edges import Edges, Pair, index
from starling.node.simulate.matrix.table import Rows, States, check_finite, through

LossesOf = Callable[[Tensor, Tensor], Tensor]
"""Rows (r,) int64 and models (r, m, D) -> (r, m): the loss of each on the data that its row has just learned from."""

_NUMBERS = 1 << 22


class Requests(NamedTuple):
    """Rows (a,) that request the vectors of peers (a,) in a round, sorted by row and then by the peer's id, and which arrive (a,)."""

    row: NDArray[np.int64]
    peer: NDArray[np.int64]
    arrives: NDArray[np.bool_]


def requests(batch: Batch, rank: NDArray[np.int64]) -> Requests:
    """Return a request for each direction of an exchange that has a weight; rank (N,) is each row's place in the order of peer ids."""
    end, place = np.nonzero(batch.weights > 0.0)
    row, peer = batch.ends[end, place], batch.ends[1 - end, place]
    order = np.lexsort((rank[peer], row))
    return Requests(row[order], peer[order], ~batch.lost[place[order]])


class Pulled:
    """Exchanges that change nothing at the node that answers: edges have no state, and nothing is pending."""

    __slots__ = ()
    pending: ClassVar[Mapping[Pair, object]] = MappingProxyType({})

    def less_pending(self, batch: Batch) -> Batch:
        return batch

    def resolve(self, batch: Batch) -> None: ...

    def remove(self, pair: Pair) -> None: ...

    def told(self, batch: Batch, state: Any) -> Batch:
        return batch

    def correction(self, rows: Rows) -> Tensor | None:
        return None


@dataclass(slots=True)
class Gathers(Pulled):
    """Exchanges of gathering algorithms, with the states of rules stored between rounds."""

    mixer: Gather  # whose rule combines
    codec: ExchangeCodec  # codecs; messages go through `response`
    edges: Edges
    states: States
    losses: LossesOf | None = None  # for rules that use losses of models; None: there are none
    byzantine: Byzantine | None = None  # rows that send a different message to each receiver
    _slots: dict[int, dict[int, int]] = field(default_factory=dict)  # by row: slots of a rule's memory by peer

    def exchange(self, batch: Batch, honest: Batch, view: View, unreachable: NDArray[np.int64]) -> Sizes:
        """Serve all requests of a round: set the vectors to what the rules make of them, and update the rules' states.

        `unreachable` (N,) is the number of requests per row to dead peers that are not yet known to be dead.

        Raises ValueError: "not_finite": the swarm has diverged.
        """
        requested, vectors = requests(batch, self.edges.rank), batch.vectors
        messages = self._messages(vectors, requested, view.round)
        false = [] if self.byzantine is None else list(self._falsified(self.byzantine, requested, view))
        combined = vectors.clone()
        for rows, places, absent in _alike(requested, unreachable, vectors.shape[1]):
            peers = requested.peer[places]
            received, present = messages[index(peers, vectors)], torch.from_numpy(requested.arrives[places])
            present = present.to(vectors.device)
            for where, sent, arrives in false:
                row, slot = np.nonzero(np.isin(places, where))
                which = np.searchsorted(where, places[row, slot])
                received[row, slot] = sent[which]
                present[row, slot] &= arrives[which]
            received = torch.nn.functional.pad(received, (0, 0, 0, absent)) if absent else received
            self._combine(rows, peers, received, torch.nn.functional.pad(present, (0, absent)), combined)
        vectors.copy_(combined)
        size = codec.size(Full(), self.codec.response, vectors.shape[1])
        sizes = size * (batch.weights[::-1] > 0.0)  # lost messages of a responder do not count
        sizes[1, batch.lost] = 0
        return sizes.astype(np.int64)

    def _messages(self, vectors: Tensor, requested: Requests, round: int) -> Tensor:
        """Return (N, D), the message of each row that is requested by a peer, as it arrives."""
        senders = np.unique(requested.peer)
        at = index(senders, vectors)
        check_finite(vectors[at])
        messages = torch.zeros_like(vectors)
        messages[at] = through(self.codec.response, vectors[at], [self._generator(row, round) for row in senders])
        return messages

    def _generator(self, row: int, round: int) -> Generator:
        return Generator().manual_seed(message_seed(self.edges.seed, self.edges.peers[row], round))

    def _falsified(self, byzantine: Byzantine, requested: Requests, view: View) -> Iterator[tuple[NDArray[np.int64], Tensor, Tensor]]:
        """Yield per attacker: ascending places (l,) of honest rows' requests to it, its messages (l, D), and which arrive (l,) bool."""
        false = np.flatnonzero(byzantine.rows[requested.peer] & ~byzantine.rows[requested.row])
        for attacker in np.unique(requested.peer[false]).tolist():
            places = false[requested.peer[false] == attacker]
            messages = byzantine.messages(view, attacker, requested.row[places].tolist())
            if messages is not None:
                generators = [self._generator(attacker, view.round) for _ in places]
                yield places, *transmitted(messages, self.codec.response, generators)

    def _combine(self, rows: NDArray[np.int64], peers: NDArray[np.int64], received: Tensor, present: Tensor, combined: Tensor) -> None:
        """The rule of rows (r,) that made equally many requests, over what they received (r, k, D) and what is present (r, k), into
        `combined`. The first columns are those of `peers` (r, ·).
        """
        at = index(rows, combined)
        before = x, state = self.states.of(at)
        state, slots = self._assigned(rows, peers, present, state)
        losses = None if self.losses is None else partial(self.losses, torch.from_numpy(rows))
        combined[at], state, _ = self.mixer.combine(state, combined[at], received, present, losses, slots)
        self.states.put(at, before, x, state)

    def _assigned(
        self, rows: NDArray[np.int64], peers: NDArray[np.int64], present: Tensor, state: Gathered
    ) -> tuple[Gathered, Tensor | None]:
        """Return the state with cleared memory slots for newcomers, and the slots (r, k) of those present; for rules that have any."""
        count = self.mixer.rule.memory_slots
        if not count:
            return state, None
        kept, slots = state.kept.clone(), present.new_full(present.shape, -1, dtype=torch.int64)
        for row, (me, requested) in enumerate(zip(rows.tolist(), peers.tolist(), strict=True)):
            here = present[row, : len(requested)]
            self._slots[me], kept[row], slots[row, : len(requested)] = assign_slots(
                self._slots.get(me, {}), requested, here.tolist(), kept[row], count
            )
        return replace(state, kept=kept), slots


def _alike(requested: Requests, unreachable: NDArray[np.int64], width: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], int]]:
    """Yield groups of rows (r,) with equal numbers of requests and of failed ones: rows, places (r, k) of requests, failed per row.

    A group has at most some million numbers of `width`.
    """
    rows, first, counts = np.unique(requested.row, return_index=True, return_counts=True)
    kinds, kind = np.unique(np.stack((counts, unreachable[rows])), axis=1, return_inverse=True)
    for number, (count, absent) in enumerate(kinds.T.tolist()):
        alike = np.flatnonzero(kind.ravel() == number)
        places = first[alike][:, None] + np.arange(count)
        step = max(1, _NUMBERS // (width * count))
        for start in range(0, len(alike), step):
            yield rows[alike[start : start + step]], places[start : start + step], absent
