"""The trajectory that whole nodes must reproduce: a swarm in steps pace without faults, as one loop over its nodes.

It calls the same mixing, selecting and coding functions with the same seeds in the same order as engines do, so with the same local steps
it gives the same bits as any shell around them: engines called by hand, nodes in virtual time, real processes.

Shapes: n nodes, d parameters, D = width·d coordinates of the shared vector.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from starling.gossip.api import Averaging, Common, Controlling, Effect, Losses, Mixer, Phase, Selector, Swapped, Swapping
from starling.gossip.compress.support import Full, Support
from starling.gossip.mix import borne, common_draw, edge_ledger
from starling.gossip.mix.base import origin
from starling.gossip.mix.edge_ledger import Ledger
from starling.gossip.mix.exchange_codec import ExchangeCodec, edge
from starling.gossip.mix.gather import Gather, message_seed
from starling.gossip.mix.kinds import SWAPPED, EdgeKind, kind_of
from starling.gossip.mix.rule_memory import assign_slots
from starling.gossip.rng import generator
from starling.gossip.seeds import derive

Correct = Callable[[Tensor], Tensor]
"""A gradient (d,) -> the direction that the mixing algorithm wants stepped along instead."""
Local = Callable[[int, int, Tensor, Correct], Tensor]
"""(node, round, x (d,), correct) -> x after the round's local steps; `correct` is to be called once a step."""
Incarnation = Callable[[str, str], int]
"""(initiator, responder) -> the edge's incarnation."""
Meeting = tuple[int, int, float, float]
"""(i, j, w_ij, w_ji): w_ij is the weight i gives to what it receives from j."""


@dataclass(slots=True)
class Reference:
    """A swarm without faults.

    Args:
        peers: peer id of each node; the smaller of two initiates.
        x: (n, d) the initial models, all equal for swaps; modified.
        mixer: mixing algorithm.
        codec: codecs and clip.
        selector: coordinates of an exchange; responders' requests are not reproduced.
        seed: the swarm's.
        incarnation: of each edge.
        losses: losses of models on a node, for rules that use them; None: there are none.
        compares: the selector uses the last known peer vector.
    """

    peers: Sequence[str]
    x: Tensor
    mixer: Mixer
    codec: ExchangeCodec
    selector: Selector
    seed: int
    incarnation: Incarnation = lambda _initiator, _responder: 0
    losses: Callable[[int], Losses] | None = None
    compares: bool = False
    states: list[Any] = field(init=False)
    ledgers: list[Ledger] = field(init=False)
    kept: list[dict[str, Tensor]] = field(init=False)
    turns: dict[tuple[int, int], int] = field(init=False, default_factory=dict)
    taken: list[dict[int, int]] = field(init=False)
    known: dict[tuple[int, int], Tensor] = field(init=False, default_factory=dict)
    origin: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.states = [self.mixer.start(row) for row in self.x]
        self.origin = origin(self.mixer, self.x[0])
        self.ledgers = [edge_ledger.opened(self.origin) for _ in self.peers]
        self.kept = [{} for _ in self.peers]
        self.taken = [{} for _ in self.peers]

    def round(self, phase: Phase, local: Local | None, meetings: Iterable[Meeting]) -> None:
        """Do the local steps of every node, then all exchanges on the vectors frozen after them.

        Args:
            phase: of this round.
            local: the local steps; None in a round without.
            meetings: each pair at most once.
        """
        for node in range(len(self.peers)):
            if local is not None:
                self.x[node] = local(node, phase.round, self.x[node].clone(), self.correct(node))
            self.x[node], self.states[node] = self.mixer.publish(self.states[node], self.x[node].clone(), phase)
        frozen = [self.mixer.shared(state, x.clone()) for state, x in zip(self.states, self.x, strict=True)]
        kind = kind_of(self.mixer.edge)
        if kind is EdgeKind.GATHERS:
            mixed = self._gathered(frozen, meetings, phase)
        elif kind in SWAPPED:
            mixed = self._swapped(cast("Swapping", self.mixer.edge), frozen, meetings, phase.round)
        else:
            mixed = self._averaged(cast("Averaging", self.mixer.edge), frozen, meetings, phase)
        for node, shared in enumerate(mixed):
            self.x[node], self.states[node] = self.mixer.absorb(self.states[node], self.x[node], shared, phase)

    def correct(self, node: int) -> Correct:
        def correct(gradient: Tensor) -> Tensor:
            direction, self.states[node] = self.mixer.correct(self.states[node], gradient)
            return direction

        return correct

    def _averaged(self, averaging: Averaging, frozen: Sequence[Tensor], meetings: Iterable[Meeting], phase: Phase) -> list[Tensor]:
        """Exchange differences; return the shared vectors after them."""
        gathered: list[list[Effect]] = [[] for _ in self.peers]
        for one, other, forth, back in meetings:
            i, j = sorted((one, other), key=lambda node: self.peers[node])
            for node, effect in zip((i, j), self._exchange(i, j, (forth + back) / 2.0, frozen, phase), strict=True):
                gathered[node].append(effect)
        mixed = []
        for node, effects in enumerate(gathered):
            ordered = sorted(effects, key=lambda effect: effect.peer)
            shared, self.ledgers[node] = edge_ledger.average(averaging, self.ledgers[node], frozen[node], ordered)
            mixed.append(shared)
            if averaging.size(1):
                self.states[node] = self.mixer.corrected(self.states[node], self.ledgers[node].total)
        return mixed

    def _exchange(self, i: int, j: int, theta: float, frozen: Sequence[Tensor], phase: Phase) -> tuple[Effect, Effect]:
        """Run one transaction with initiator i; return its effects on i and j."""
        dim, dtype = frozen[i].numel(), frozen[i].dtype
        name, inc, seq = self.begin(i, j)
        known = self.known.get((i, j), self.origin) if self.compares else None
        support = self.selector.select(frozen[i], known, derive(self.seed, "mask", name, inc), seq)
        averaging = cast("Averaging", self.mixer.edge)
        s = self.borne_out(i, j)
        gain = s * averaging.gain(theta, support.ratio(dim), phase)
        asking, answering = (generator(self.seed, "quantize", name, inc, seq) for _ in range(2))
        request = self.codec.encode_request(frozen[i], support, asking)
        asked, theirs = self.codec.decode_request(request, dim, dtype)
        response, _ = self.codec.encode_difference(asked.take(frozen[j]).cpu() - theirs, dim, answering)
        v, _ = self.codec.decode_response(response, support, dim, dtype)
        if known is not None:
            self.known[i, j] = support.put(known, support.take(frozen[i]) + (1.0 - theta) * v)
        effect = Effect(self.peers[j], support, v, theta, gain, keeps=borne.kept(s))
        return effect, effect.opposite(self.peers[i])

    def borne_out(self, i: int, j: int) -> float:
        """Return the share of their corrections that both ends confirm."""
        averaging = cast("Averaging", self.mixer.edge)
        sent = [averaging.borne(self.states[node]) for node in (i, j)]
        return min(1.0 if each is None else float(each) for each in sent)

    def _swapped(self, swapping: Swapping, frozen: Sequence[Tensor], meetings: Iterable[Meeting], round: int) -> list[Tensor]:
        """Swap messages; return the shared vectors after them."""
        gathered: list[list[Swapped]] = [[] for _ in self.peers]
        for one, other, w_one, w_other in meetings:
            i, j, w_i, w_j = (one, other, w_one, w_other)
            if self.peers[other] < self.peers[one]:
                i, j, w_i, w_j = (other, one, w_other, w_one)
            name, inc, seq = self.begin(i, j)
            turn = (name, inc, seq, round)
            sent = {i: self._message(swapping, i, j, w_j, frozen[i], turn), j: self._message(swapping, j, i, w_i, frozen[j], turn)}
            gathered[i].append(Swapped(self.peers[j], sent[i], sent[j], frozen[i], w_j, w_i, self.peers[i]))
            gathered[j].append(Swapped(self.peers[i], sent[j], sent[i], frozen[j], w_i, w_j, self.peers[j]))
        mixed = []
        for node, done in enumerate(gathered):
            ordered = sorted(done, key=lambda swapped: swapped.peer)
            swap: Any = edge_ledger.swap_common if isinstance(swapping, Common) else edge_ledger.swap
            shared, self.kept[node] = swap(swapping, self.kept[node], frozen[node], self.origin, ordered)
            if isinstance(swapping, Controlling):
                of_all = [kept for _, kept in sorted(self.kept[node].items())]
                self.states[node] = self.mixer.corrected(self.states[node], swapping.flows(torch.stack(of_all)))
            mixed.append(shared)
        return mixed

    def _message(self, swapping: Swapping, me: int, peer: int, give: float, mine: Tensor, turn: tuple[str, int, int, int]) -> Tensor | None:
        """Return the message of `me` to `peer`, as decoded."""
        name, inc, seq, number = turn
        if give == 0.0:
            return None
        kept = self.kept[me].get(self.peers[peer])
        message = swapping.message(swapping.begin(self.origin) if kept is None else kept, mine, give)
        seed, chance = (derive(self.seed, "mask", name, inc), generator(self.seed, "quantize", name, inc, seq, self.peers[me]))
        if isinstance(swapping, Common):
            seed, seq = common_draw.mask_seed(self.seed, self.peers[me]), number
            chance = common_draw.chance(self.seed, self.peers[me], number)
        support: Support = self.selector.select(message, None, seed, seq)
        return self.codec.decode_message(self.codec.encode_message(message, support, chance), mine.numel(), mine.dtype)

    def _gathered(self, frozen: Sequence[Tensor], meetings: Iterable[Meeting], phase: Phase) -> list[Tensor]:
        """Pull and combine vectors; return the shared vectors after that."""
        assert isinstance(self.mixer, Gather)
        asked: list[list[int]] = [[] for _ in self.peers]
        for one, other, forth, back in meetings:
            asked[one] += [other] if forth else []
            asked[other] += [one] if back else []
        mixed = list(frozen)
        for node, peers in enumerate(asked):
            if not peers:
                continue
            order = sorted(peers, key=lambda peer: self.peers[peer])
            received = [self._vector(frozen, peer, phase.round) for peer in order]
            losses = None if self.losses is None else self.losses(node)
            present = torch.ones(len(received), dtype=torch.bool)
            kept, slots = self.states[node].kept, None
            if count := self.mixer.rule.memory_slots:
                self.taken[node], kept, slots = assign_slots(self.taken[node], order, [True] * len(order), kept, count)
            mixed[node], self.states[node], _ = self.mixer.combine(
                replace(self.states[node], kept=kept), frozen[node], torch.stack(received), present, losses, slots
            )
        return mixed

    def _vector(self, frozen: Sequence[Tensor], peer: int, round: int) -> Tensor:
        """Return the vector of `peer` as decoded by every node that pulls it."""
        mine = frozen[peer]
        chance = torch.Generator().manual_seed(message_seed(self.seed, self.peers[peer], round))
        vector = self.codec.decode_message(self.codec.encode_message(mine, Full(), chance), mine.numel(), mine.dtype)
        assert vector is not None
        return vector

    def begin(self, i: int, j: int) -> tuple[str, int, int]:
        """Return name, incarnation and sequence number of the next transaction on an edge."""
        seq = self.turns[i, j] = self.turns.get((i, j), 0) + 1
        return edge(self.peers[i], self.peers[j]), self.incarnation(self.peers[i], self.peers[j]), seq


def descent(gradient: Callable[[int, Tensor, int, int], Tensor], *, steps: int, lr: float) -> Local:
    """Return plain local steps x <- x − lr · correct(g).

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
