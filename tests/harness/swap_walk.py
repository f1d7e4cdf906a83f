"""Swarms that swap messages, with production functions and faults for every message: the table values of such algorithms.

`Ends` is a swarm in rounds, with all ends of all edges as rows of one batch. `Mailboxes` is one without rounds, a node at a time.

Shapes: n nodes, d parameters, D numbers of the shared vector, m ends of edges (two per edge), E numbers stored per end.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from starling.gossip.api import Mixer, Phase
from starling.gossip.mix.kinds import ALIKE, SWAPPED, EdgeKind, kind_of

PHASE = Phase(0, 1.0, 0.1)
"""Looked at by psgd with control variates alone."""


def top(k: int) -> Callable[[Tensor], Tensor]:
    """Return a function that keeps the k largest of each row of (…, D), with zeros elsewhere."""

    def compress(message: Tensor) -> Tensor:
        index = message.abs().topk(k, dim=-1, sorted=False).indices
        return torch.zeros_like(message).scatter(-1, index, message.gather(-1, index))

    return compress


def halves(k: int) -> Callable[[Tensor], Tensor]:
    """Return a function that keeps the k largest of each half of each row."""

    def compress(message: Tensor) -> Tensor:
        return torch.cat([top(k)(half) for half in message.tensor_split(2, dim=-1)], dim=-1)

    return compress


class Ends:
    """A swarm in rounds.

    Args:
        mixer: any with swaps.
        x: (n, d) the initial models.
        links: (n, n) bool, symmetric: the edges.
    """

    def __init__(self, mixer: Mixer, x: Tensor, links: Tensor) -> None:
        assert kind_of(mixer.edge) in SWAPPED
        self.mixer, self.edge, self.x = mixer, mixer.edge, x
        self.state: Any = mixer.start(x)
        self.src, self.dst = (links & ~torch.eye(len(x), dtype=torch.bool)).nonzero(as_tuple=True)
        number = torch.zeros(links.shape, dtype=torch.int64)
        number[self.src, self.dst] = torch.arange(len(self.src))
        self.other = number[self.dst, self.src]
        self.kept = self.edge.begin(self.shared[self.src])

    @property
    def shared(self) -> Tensor:
        """Return the shared vectors (n, D)."""
        return self.mixer.shared(self.state, self.x)

    def step(self, gradient: Callable[[Tensor], Tensor], lr: float) -> None:
        """Do one local step of all nodes."""
        direction, self.state = self.mixer.correct(self.state, gradient(self.x))
        self.x = self.x - lr * direction

    def swap(
        self,
        take: Tensor,
        *,
        give: Tensor | None = None,
        lost: Tensor | None = None,
        atomic: bool = False,
        compress: Callable[[Tensor], Tensor] = lambda message: message,
        phase: Phase = PHASE,
    ) -> None:
        """Do a round's exchanges.

        Args:
            take: (n, n), take[i, j] is the weight i gives to what j sends; the diagonal is ignored.
            give: (n, n), give[i, j] is the weight that counts for what i sends to j, 0 for nothing; by default take transposed.
            lost: (m,) bool: lost messages, by the end that sends them.
            atomic: swaps happen at both ends or at neither.
            compress: (m, D) -> (m, D) as decoded.
            phase: of the round.
        """
        src, dst, other = self.src, self.dst, self.other
        self.x, self.state = self.mixer.publish(self.state, self.x, phase)
        shared = self.shared
        weight = (take.T if give is None else give)[src, dst][:, None]
        says = weight[:, 0] != 0.0
        hears = says[other]
        if lost is not None:
            hears = hears & ~lost[other]
            if atomic:
                broken = (says & lost) | (says & lost)[other]
                says, hears = says & ~broken, hears & ~broken
        mine = shared[src]
        message = compress(self.edge.message(self.kept, mine, weight))
        kept, given = self.edge.sent(self.kept, message, mine, weight)
        kept = torch.where(says[:, None], kept, self.kept)
        after, taken = self.edge.received(kept, message[other], mine, take[src, dst][:, None])
        self.kept = torch.where(hears[:, None], after, kept)
        change = torch.where(says[:, None], given, 0.0) + torch.where(hears[:, None], taken, 0.0)
        if kind_of(self.edge) in ALIKE:
            shared = self.edge.base(shared)
        shared = shared.index_add(0, src, change)
        if kind_of(self.edge) is EdgeKind.CONTROLS:
            flows = torch.stack([self.edge.flows(self.kept[src == node]) for node in range(len(self.x))])
            self.state = self.mixer.corrected(self.state, flows)
        self.x, self.state = self.mixer.absorb(self.state, self.x, shared, phase)

    def on_the_way(self) -> Tensor:
        """Return the total of running sums that was given and not yet received."""
        given, seen = self.kept.tensor_split(2, dim=-1)
        return (given - seen[self.other]).sum(0)


class Mailboxes:
    """A swarm without rounds: a node wakes, steps, reads new messages, and writes to all its neighbors. A message may be lost, and a
        newer one replaces an older.

    Args:
        mixer: any with swaps.
        x: (d,) the initial model.
        neighbors: of each node, by number; symmetric.
    """

    def __init__(self, mixer: Mixer, x: Tensor, neighbors: Sequence[Sequence[int]]) -> None:
        assert kind_of(mixer.edge) in SWAPPED
        self.mixer, self.edge = mixer, mixer.edge
        self.x = [x.clone() for _ in neighbors]
        self.state: list[Any] = [mixer.start(x) for _ in neighbors]
        self.origin = mixer.shared(self.state[0], x)
        self.kept: dict[tuple[int, int], Tensor] = {}
        self.mail: dict[tuple[int, int], Tensor] = {}
        self.neighbors = [list(each) for each in neighbors]

    def wake(self, i: int, gradient: Callable[[int, Tensor], Tensor], lr: float, arrives: Callable[[], bool]) -> None:
        """Do one turn of node i; every weight is 1/(neighbors + 1)."""
        mixer, near = self.mixer, self.neighbors[i]
        direction, state = mixer.correct(self.state[i], gradient(i, self.x[i]))
        x, state = mixer.publish(state, self.x[i] - lr * direction, PHASE)
        mine = mixer.shared(state, x)
        shared, weight = mine, 1.0 / (len(near) + 1)
        if near:
            kept = torch.stack([self.kept_of(i, j) for j in near])
            many = mine.expand(len(near), -1)
            message = self.edge.message(kept, many, weight)
            kept, change = self.edge.sent(kept, message, many, weight)
            shared = shared + change.sum(0)
            came = [k for k, j in enumerate(near) if (j, i) in self.mail]
            if came:
                letters = torch.stack([self.mail.pop((near[k], i)) for k in came])
                kept[came], change = self.edge.received(kept[came], letters, many[came], weight)
                shared = shared + change.sum(0)
            for k, j in enumerate(near):
                self.kept[i, j] = kept[k]
                if arrives():
                    self.mail[i, j] = message[k]
        self.x[i], self.state[i] = mixer.absorb(state, x, shared, PHASE)

    def off(self) -> Tensor:
        """Return the error of gradient tracking with running sums: Σ y and what is in flight, minus Σ g; (d,), zero without crashes."""
        sums = sum(state.y - state.previous for i, state in enumerate(self.state) if self.neighbors[i])
        for i, j in self.kept:
            given, _ = self.kept[i, j].tensor_split(2)
            _, seen = self.kept_of(j, i).tensor_split(2)
            sums = sums + given - seen
        return sums

    def tell(self, i: int, j: int, give: float) -> None:
        """Let i push to j alone, without delay; neither model moves."""
        mine = self.mixer.shared(self.state[i], self.x[i])
        message = self.edge.message(self.kept_of(i, j), mine, give)
        self.kept[i, j], change = self.edge.sent(self.kept_of(i, j), message, mine, give)
        self.x[i], self.state[i] = self.mixer.absorb(self.state[i], self.x[i], mine + change, PHASE)
        theirs = self.mixer.shared(self.state[j], self.x[j])
        self.kept[j, i], change = self.edge.received(self.kept_of(j, i), message, theirs, 0.0)
        self.x[j], self.state[j] = self.mixer.absorb(self.state[j], self.x[j], theirs + change, PHASE)

    def kept_of(self, i: int, j: int) -> Tensor:
        """Return the state of i's edge with j (E,)."""
        return self.kept[i, j] if (i, j) in self.kept else self.edge.begin(self.origin)

    def remove(self, i: int) -> None:
        """Remove node i with all its edges."""
        for j in self.neighbors[i]:
            self.neighbors[j].remove(i)
            for end in ((i, j), (j, i)):
                self.kept.pop(end, None)
                self.mail.pop(end, None)
        self.neighbors[i] = []


def tensors(value: Any) -> list[Tensor]:
    """Return all tensors of a state, a ledger, or a tuple or dict of such."""
    if isinstance(value, Tensor):
        return [value]
    if hasattr(value, "__slots__"):
        value = [getattr(value, name) for name in value.__slots__]
    parts = value.values() if isinstance(value, dict) else value
    return [tensor for part in parts for tensor in tensors(part)] if isinstance(value, dict | tuple | list) else []
