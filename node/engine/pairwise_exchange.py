"""The engine's half of transactions under way: what was offered, what was answered, and what a commit does.

One transaction at a time per peer; the daemon's edges see to the order. Nothing here touches the model: vectors come in and
`Effect`s or `Swapped`s go out, so a refused payload changes nothing.

Shapes: d parameters, D = width·d coordinates of the shared vector, k of one exchange.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from starling.gossip.api import Averaging, Effect, Mixer, Phase, Swapped, Swapping
from starling.gossip.compress.select.coordinates import kept, with_wish
from starling.gossip.compress.support import Indices, Support
from starling.gossip.errors import LocalProtocolError, RemoteProtocolError
from starling.gossip.mix.catalogue import gathers, swaps
from starling.gossip.mix.exchange_codec import edge
from starling.gossip.rng import generator
from starling.gossip.seeds import derive
from starling.gossip.vector import Layout
from starling.node.config.schema import Manifest
from starling.node.engine.compression import parts, selection, terms
from starling.node.engine.consensus import ConsensusDistance, of_model, rms
from starling.node.rpc.calls import Answer, Answered, Apply, Commit, Drop, Offer, Offered

_ROUNDING = 1e-6  # by which two machines may differ over a gain
_FULL = 0.8  # of the clip: most codecs leave so much of what was clipped
Done = Effect | Swapped


@dataclass(frozen=True, slots=True)
class _Offer:
    """We are the initiator.

    Args:
        support: of the difference; None where messages are swapped.
        mine: (k,) the values offered on the support, or (D,) the vector our message was made of.
        sent: (D,) our message as the peer will decode it; None for no message.
    """

    inc: int
    seq: int
    support: Support | None
    theta: float
    gain: float
    give: float
    take: float
    mine: Tensor
    sent: Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Pending:
    """We are the responder. `mine` (k,) are our values when we answered, `apart` how far the models were apart."""

    inc: int
    seq: int
    done: Done
    mine: Tensor
    apart: float | None


class Exchanges:
    """Offers and pending answers, at most one of each per peer.

    Args:
        manifest: codecs, clip, seeds.
        node: our own label.
        origin: (D,) the shared vector that all nodes began with.
        layout: of the model.
        mixer: knows what an exchange is.
        correction_lr: eta_c of the gain.
        remembered: what is kept per edge, where messages are swapped.
        distances: records how far apart models were.
    """

    def __init__(
        self, manifest: Manifest, *, node: str, origin: Tensor, layout: Layout, mixer: Mixer, correction_lr: float,
        remembered: Callable[[], Mapping[str, Tensor]], distances: ConsensusDistance,
    ) -> None:  # fmt: skip
        compress = manifest.compress
        self._manifest = manifest
        self._node = node
        self._origin = origin
        self._dim, self._dtype, self._device = origin.numel(), origin.dtype, origin.device
        self._edge = mixer.edge
        self._correction_lr = correction_lr
        self._remembered = remembered
        self._distances = distances
        self._model = layout.dim
        facts = parts(layout, self._dim)
        self.terms = terms(manifest, origin.dtype, facts)
        request = self.terms.response if swaps(mixer.edge) else self.terms.request
        self._select = selection(compress, request, self.terms.response, facts)
        self._drifts = compress.select == "drift_top_k"
        self._limit = kept(compress.ratio, self._dim)
        self._offers: dict[str, _Offer] = {}
        self._pending: dict[str, _Pending] = {}
        self._met: dict[str, Tensor] = {}  # drift_top_k: (D,) our values when last exchanged with a peer
        self._wishes: dict[str, Indices] = {}  # drift_top_k: what a responder asked for

    # --- the four calls of a transaction ------------------------------------------------------------------

    def offer(self, call: Offer, shared: Tensor, *, local_steps: float, exclusive: bool) -> Offered:
        """Initiator: our values on a support of our choice, or our message.

        Args:
            call: the transaction.
            shared: (D,) what to read.
            local_steps: K, done between two exchanges.
            exclusive: as in `answer`.

        Raises:
            LocalProtocolError: our own numbers are not finite, or too large for a message.
        """
        if swaps(self._edge):
            mine = self._less_under_way(shared, call.peer) if exclusive else shared
            payload, sent = self._tell(self._edge, call, mine)
            give, take = _weights(call)
            self._offers[call.peer] = _Offer(
                call.inc, call.seq, None, call.theta, 0.0, give, take, mine.clone(), sent
            )  # fmt: skip
            return Offered(payload, 0.0)
        assert not gathers(self._edge), "who gathers offers nothing"
        selector = self._select(call.budget_bytes, self._dim)
        support = selector.select(shared, self._met.get(call.peer), self._seed(call), call.seq)
        wish = self._wishes.pop(call.peer, None)
        if wish is not None and isinstance(support, Indices):
            support = with_wish(support, wish, self._limit)
        gain = self._gain(self._edge, call.theta, support.ratio(self._dim), local_steps)
        try:
            payload = self.terms.ask(shared, support, self._chance(call))
        except ValueError as error:
            raise _ours(error) from error
        self._offers[call.peer] = _Offer(
            call.inc, call.seq, support, call.theta, gain, call.theta, call.theta, support.take(shared)
        )  # fmt: skip
        return Offered(payload, gain)

    def answer(self, call: Answer, shared: Tensor, *, exclusive: bool) -> Answered:
        """Responder: the difference or our message, kept until it is committed or dropped.

        Args:
            call: with the request's payload.
            shared: (D,) what to read.
            exclusive: effects are added one by one as they are committed, so what other pending answers will take is counted as taken,
                or two of them would overshoot. Not where all exchanges of a round read one frozen vector: there the mixing weights of
                a row sum to at most 1.

        Raises:
            RemoteProtocolError: the payload, theta or gain is not what an honest initiator could send; nothing changed.
            LocalProtocolError: our own numbers cannot be sent; nothing changed.
        """
        if not 0.0 < call.theta < 1.0:  # which weight it must be, the daemon knows; base_k has links above a half
            raise RemoteProtocolError(call.peer, "theta_out_of_bounds")
        if exclusive:
            shared = self._less_under_way(shared, call.peer)
        try:
            if swaps(self._edge):
                return self._answer_swap(self._edge, call, shared)
            assert not gathers(self._edge), "who gathers answers with a vector"
            return self._answer_difference(self._edge, call, shared)
        except ValueError as error:
            raise RemoteProtocolError(call.peer, str(error)) from error

    def _answer_difference(self, averaging: Averaging, call: Answer, shared: Tensor) -> Answered:
        support, theirs = self.terms.heard(call.payload, self._dim, self._dtype)
        most = self._gain(averaging, call.theta, support.ratio(self._dim), self._fewest_steps)
        if not 0.0 <= call.gain <= most * (1.0 + _ROUNDING):
            raise ValueError("gain_out_of_bounds")
        mine = support.take(shared).cpu()
        wish = self._wish(call, shared)
        payload, v = self.terms.answer(mine, theirs, support, self._dim, self._chance(call), wish)
        effect = Effect(call.peer, support, -v.to(self._device), call.theta, call.gain)
        length, apart = self._measured(mine - theirs, support)
        self._pending[call.peer] = _Pending(call.inc, call.seq, effect, mine.to(self._device), apart)
        limit = self._manifest.mix.clip_norm
        return Answered(payload, limit / length if 0.0 < limit < length else 1.0)

    def _answer_swap(self, swapping: Swapping, call: Answer, shared: Tensor) -> Answered:
        if call.gain != 0.0:
            raise ValueError("gain_out_of_bounds")
        received = self._told(call.payload)
        payload, sent = self._tell(swapping, call, shared)
        give, take = _weights(call)
        done = Swapped(call.peer, sent, received, shared.clone(), give, take)
        self._pending[call.peer] = _Pending(call.inc, call.seq, done, done.mine, self._told_apart(swapping, done))
        return Answered(payload)

    def apply(self, call: Apply) -> Done:
        """Initiator: what the response does; the offer is spent.

        Raises:
            RemoteProtocolError: the payload is not what an honest responder could send; nothing changed.
            LocalProtocolError: there is no such offer.
        """
        offer = self._offers.get(call.peer)
        if offer is None or (offer.inc, offer.seq) != (call.inc, call.seq):
            raise LocalProtocolError(f"nothing was offered to {call.peer} in transaction {call.seq}")
        wish: Indices | None = None
        done: Done
        try:
            if offer.support is None:
                done = Swapped(call.peer, offer.sent, self._told(call.payload), offer.mine, offer.give, offer.take)
            else:
                limit = self._limit if self._drifts else 0
                v, wish = self.terms.read(call.payload, offer.support, self._dim, self._dtype, limit)
                done = Effect(call.peer, offer.support, v.to(self._device), offer.theta, offer.gain)
        except ValueError as error:
            raise RemoteProtocolError(call.peer, str(error)) from error
        del self._offers[call.peer]
        if wish is not None:
            self._wishes[call.peer] = wish
        self._note(done, offer.mine)
        if isinstance(done, Effect):
            self._distances.record(call.peer, self._measured(done.value, done.support)[1])
        elif swaps(self._edge):
            self._distances.record(call.peer, self._told_apart(self._edge, done))
        return done

    def commit(self, call: Commit) -> Done:
        """Responder: what the answer does; it is no longer pending.

        Raises:
            LocalProtocolError: there is no such answer.
        """
        pending = self._pending.get(call.peer)
        if pending is None or (pending.inc, pending.seq) != (call.inc, call.seq):
            raise LocalProtocolError(f"nothing is pending with {call.peer} in transaction {call.seq}")
        del self._pending[call.peer]
        self._note(pending.done, pending.mine)
        self._distances.record(call.peer, pending.apart)
        return pending.done

    def clipped(self, done: Done) -> bool:
        """Whether a difference is about as long as the clip lets it be: a codec makes what was clipped a little shorter."""
        limit = self._manifest.mix.clip_norm
        return isinstance(done, Effect) and limit > 0.0 and float(done.value.norm()) >= _FULL * limit

    def drop(self, call: Drop) -> None:
        """Forget one transaction, if it is there."""
        for kept_by_peer in (self._offers, self._pending):
            held = kept_by_peer.get(call.peer)
            if held is not None and (held.inc, held.seq) == (call.inc, call.seq):
                del kept_by_peer[call.peer]

    def forget(self, peer: str) -> None:
        """The edge is closed or void: forget all about it."""
        for kept_by_peer in (self._offers, self._pending, self._met, self._wishes):
            kept_by_peer.pop(peer, None)

    def forget_all(self) -> None:
        """Every edge is void."""
        for kept_by_peer in (self._offers, self._pending, self._met, self._wishes):
            kept_by_peer.clear()

    # --- differences --------------------------------------------------------------------------------------

    def _gain(self, averaging: Averaging, theta: float, ratio: float, local_steps: float) -> float:
        return averaging.gain(theta, ratio, Phase(0, local_steps, self._correction_lr))

    @property
    def _fewest_steps(self) -> float:
        pace = self._manifest.pace
        return float(pace.local_steps) if pace.kind == "steps" else 1.0

    def _less_under_way(self, shared: Tensor, peer: str) -> Tensor:
        """The vector as it will be when transactions with others are committed, as far as we know what they take."""
        changed = shared
        for other, pending in sorted(self._pending.items()):
            if other == peer:
                continue
            match pending.done:
                case Effect(_, support, value, theta, _):
                    changed = changed.clone() if changed is shared else changed
                    changed[support.index(self._dim)] += theta * support.spread(value, self._dim)
                case Swapped(_, sent, _, mine, give, _):
                    changed = changed + self._given(other, sent, mine, give)
        if swaps(self._edge):
            for other, offer in sorted(self._offers.items()):
                if other != peer:
                    changed = changed + self._given(other, offer.sent, offer.mine, offer.give)
        return changed

    def _wish(self, call: Answer, shared: Tensor) -> Indices | None:
        if not self._drifts:
            return None
        support = self._select(0, self._dim).select(shared, self._met.get(call.peer), 0, call.seq)
        return support if isinstance(support, Indices) else None

    def _note(self, done: Done, mine: Tensor) -> None:
        """Both ends now hold about the same here: what differs later has drifted."""
        if self._drifts and isinstance(done, Effect):
            met = self._met.setdefault(done.peer, torch.zeros(self._dim, dtype=self._dtype, device=self._device))
            met[done.support.index(self._dim)] = mine + done.theta * done.value

    # --- distances ----------------------------------------------------------------------------------------

    def _measured(self, difference: Tensor, support: Support) -> tuple[float, float | None]:
        """Norm of a difference (k,), and root mean square of its model part; None where model and tracker cannot be separated."""
        length = float(difference.norm())
        about = of_model(difference, support, self._dim, self._model)
        if about is difference:
            return length, length / math.sqrt(difference.numel())
        return length, None if about is None else rms(about)

    def _told_apart(self, swapping: Swapping, done: Swapped) -> float | None:
        """The same of a swapped message; None where it does not show it."""
        if done.received is None:
            return None
        difference = swapping.difference(self._kept(swapping, done.peer), done.received, done.mine)
        return None if difference is None else rms(difference[: self._model])

    # --- messages -----------------------------------------------------------------------------------------

    def _tell(self, swapping: Swapping, call: Offer | Answer, mine: Tensor) -> tuple[bytes, Tensor | None]:
        """The payload of our message to a peer, and the message as it will be decoded there."""
        give, _ = _weights(call)
        if give == 0.0:
            return b"", None
        message = swapping.message(self._kept(swapping, call.peer), mine, give)
        budget = call.budget_bytes if isinstance(call, Offer) else 0
        support = self._select(budget, self._dim).select(message, None, self._seed(call), call.seq)
        try:
            payload = self.terms.tell(message, support, self._chance(call, self._node))
            return payload, self._told(payload)
        except ValueError as error:
            raise _ours(error) from error

    def _told(self, payload: bytes) -> Tensor | None:
        message = self.terms.told(payload, self._dim, self._dtype)
        return None if message is None else message.to(self._device)

    def _given(self, peer: str, sent: Tensor | None, mine: Tensor, give: float) -> Tensor:
        if sent is None:
            return torch.zeros_like(mine)
        assert swaps(self._edge)
        return self._edge.sent(self._kept(self._edge, peer), sent, mine, give)[1]

    def _kept(self, swapping: Swapping, peer: str) -> Tensor:
        kept_of_edge = self._remembered().get(peer)
        return swapping.begin(self._origin) if kept_of_edge is None else kept_of_edge

    # --- chance -------------------------------------------------------------------------------------------

    def _seed(self, call: Offer | Answer) -> int:
        return derive(self._manifest.seed, "mask", edge(self._node, call.peer), call.inc)

    def _chance(self, call: Offer | Answer, *labels: str) -> Generator:
        name = edge(self._node, call.peer)
        return generator(self._manifest.seed, "quantize", name, call.inc, call.seq, *labels)


def _ours(error: ValueError) -> LocalProtocolError:
    """What we would send is not finite, or too large: no peer's fault."""
    return LocalProtocolError(f"our own numbers cannot be sent: {error}")


def _weights(call: Offer | Answer) -> tuple[float, float]:
    """(give, take) of a link: what the peer weighs our words by, and we the peer's."""
    return (call.theta if call.give is None else call.give, call.theta if call.take is None else call.take)
