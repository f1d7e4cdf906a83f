"""The trajectory that whole nodes must reproduce: a swarm in steps pace without faults, as one loop over its nodes.

It calls the same mixing, selecting and coding functions on the same seeds in the same order as engines do, so with the same local
steps it gives the same bits as any shell around them: engines called by hand, nodes in virtual time, real processes.

Shapes: n nodes, d parameters, D = width·d coordinates of the shared vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gossip.api import Effect, Mixer, Selector
from gossip.mix.transaction import Terms, edge
from gossip.rng import generator
from gossip.seeds import derive

Correct = Callable[[Tensor], Tensor]
"""A gradient (d,) -> the direction that the mixing algorithm wants stepped along instead."""
Local = Callable[[int, int, Tensor, Correct], Tensor]
"""(node, round, x (d,), correct) -> x after the round's local steps; `correct` is to be called once a step."""
Gain = Callable[[float, float], float]
"""(theta, ratio of the support) -> flow per unit of difference."""
Incarnation = Callable[[str, str], int]
"""(initiator, responder) -> the edge's incarnation."""


@dataclass(slots=True)
class Reference:
    """A swarm without faults.

    Args:
        peers: peer id of each node; of two, the lesser initiates.
        x: (n, d) the models to start from; moved.
        mixer: mixing algorithm.
        terms: codecs and clip.
        selector: coordinates of an exchange; one that looks at earlier exchanges is not reproduced.
        gain: the mixer's, with this swarm's rate and local steps.
        seed: the swarm's.
        incarnation: of each edge.
    """

    peers: Sequence[str]
    x: Tensor
    mixer: Mixer
    terms: Terms
    selector: Selector
    gain: Gain
    seed: int
    incarnation: Incarnation = lambda _initiator, _responder: 0
    states: list[Any] = field(init=False)
    turns: dict[tuple[int, int], int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.states = [self.mixer.start(row) for row in self.x]

    def round(self, round: int, local: Local, links: Iterable[tuple[int, int, float]]) -> None:
        """Local steps of every node, then all exchanges on the vectors frozen after them.

        Args:
            round: >= 0.
            local: the local steps.
            links: (node, node, theta), each pair at most once.
        """
        for node in range(len(self.peers)):
            self.x[node] = local(node, round, self.x[node].clone(), self._correct(node))
        frozen = [self.mixer.shared(state, x.clone()) for state, x in zip(self.states, self.x, strict=True)]
        gathered: list[list[Effect]] = [[] for _ in self.peers]
        for one, other, theta in links:
            i, j = sorted((one, other), key=lambda node: self.peers[node])
            for node, effect in zip((i, j), self._exchange(i, j, theta, frozen), strict=True):
                gathered[node].append(effect)
        for node, effects in enumerate(gathered):
            if effects:
                ordered = sorted(effects, key=lambda effect: effect.peer)
                self.x[node], self.states[node] = self.mixer.absorb(self.states[node], self.x[node], ordered)

    def _correct(self, node: int) -> Correct:
        def correct(gradient: Tensor) -> Tensor:
            direction, self.states[node] = self.mixer.correct(self.states[node], gradient)
            return direction

        return correct

    def _exchange(self, i: int, j: int, theta: float, frozen: Sequence[Tensor]) -> tuple[Effect, Effect]:
        """One transaction with initiator i -> what it does to i, and to j."""
        dim, dtype = frozen[i].numel(), frozen[i].dtype
        name, inc = edge(self.peers[i], self.peers[j]), self.incarnation(self.peers[i], self.peers[j])
        seq = self.turns[i, j] = self.turns.get((i, j), 0) + 1
        support = self.selector.select(frozen[i], None, derive(self.seed, "mask", name, inc), seq)
        gain = self.gain(theta, support.ratio(dim))
        chance = generator(self.seed, "quantize", name, inc, seq)
        request = self.terms.ask(frozen[i], support, chance)
        heard, theirs = self.terms.heard(request, dim, dtype)
        chance = generator(self.seed, "quantize", name, inc, seq)
        response, _ = self.terms.answer(heard.take(frozen[j]).cpu(), theirs, heard, dim, chance)
        v, _ = self.terms.read(response, support, dim, dtype)
        return Effect(self.peers[j], support, v, theta, gain), Effect(self.peers[i], support, -v, theta, gain)


def descent(gradient: Callable[[int, Tensor, int, int], Tensor], *, steps: int, lr: float) -> Local:
    """Plain local steps x <- x − lr · correct(g).

    Args:
        gradient: (node, x (d,), round, step) -> (d,).
        steps: K.
        lr: > 0.
    """

    def local(node: int, round: int, x: Tensor, correct: Correct) -> Tensor:
        for step in range(steps):
            x = x - lr * correct(gradient(node, x, round, step))
        return x

    return local


def consensus_distance(x: Tensor) -> float:
    """Xi of models (n, d): Xi² = (1/n) Σ ‖x_i − x̄‖²."""
    return float(torch.sqrt((x - x.mean(0)).double().square().sum(1).mean()))
