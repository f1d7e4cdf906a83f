"""The engine's half of transactions under way: what was offered, what was answered, and the effect a commit has.

One transaction at a time per peer; the daemon's edges see to the order. Nothing here touches the model: vectors come in and
`Effect`s go out, so a refused payload changes nothing.

Shapes: d parameters, D = width·d coordinates of the shared vector, k of one exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from gossip.api import Effect, Mixer, Selector
from gossip.compress.budget import plan
from gossip.compress.catalogue import quantizer
from gossip.compress.select import DriftTopK, Everything, Mask, TopK, kept, with_wish
from gossip.compress.support import Indices, Support
from gossip.errors import LocalProtocolError, RemoteProtocolError
from gossip.mix.transaction import Terms, edge
from gossip.rng import generator
from gossip.seeds import derive
from node.config import CompressSection, Manifest
from node.engine.calls import Answer, Answered, Apply, Commit, Drop, Offer, Offered
from robust.clip import clip

_ROUNDING = 1e-6  # by which two machines may differ over a gain


@dataclass(frozen=True, slots=True)
class _Offer:
    """We are the initiator. `mine` (k,) are the values offered."""

    inc: int
    seq: int
    support: Support
    theta: float
    gain: float
    mine: Tensor


@dataclass(frozen=True, slots=True)
class _Pending:
    """We are the responder. `mine` (k,) are our values when we answered."""

    inc: int
    seq: int
    effect: Effect
    mine: Tensor


class Exchanges:
    """Offers and pending answers, at most one of each per peer.

    Args:
        manifest: codecs, clip, seeds.
        node: our own label.
        like: (D,) a vector of the shared one's length, dtype and device.
        mixer: knows the gain.
        correction_lr: eta_c of the gain.
    """

    def __init__(self, manifest: Manifest, *, node: str, like: Tensor, mixer: Mixer, correction_lr: float) -> None:
        compress = manifest.compress
        self._manifest = manifest
        self._node = node
        self._dim, self._dtype, self._device = like.numel(), like.dtype, like.device
        self._mixer = mixer
        self._correction_lr = correction_lr
        self.terms = Terms(
            quantizer(compress.request, like.dtype), quantizer(compress.response, like.dtype),
            manifest.mix.clip_norm, clip,
        )  # fmt: skip
        self._select = _selection(compress, self.terms)
        self._drifts = compress.select == "drift_top_k"
        self._limit = kept(compress.ratio, self._dim)
        self._offers: dict[str, _Offer] = {}
        self._pending: dict[str, _Pending] = {}
        self._met: dict[str, Tensor] = {}  # drift_top_k: (D,) our values when last exchanged with a peer
        self._wishes: dict[str, Indices] = {}  # drift_top_k: what a responder asked for

    def offer(self, call: Offer, shared: Tensor, *, local_steps: float) -> Offered:
        """Initiator: our values on a support of our choice.

        Args:
            call: the transaction.
            shared: (D,) what to read.
            local_steps: K, done between two exchanges.
        """
        selector = self._select(call.budget_bytes, self._dim)
        seed = derive(self._manifest.seed, "mask", edge(self._node, call.peer), call.inc)
        support = selector.select(shared, self._met.get(call.peer), seed, call.seq)
        wish = self._wishes.pop(call.peer, None)
        if wish is not None and isinstance(support, Indices):
            support = with_wish(support, wish, self._limit)
        gain = self._mixer.gain(call.theta, support.ratio(self._dim), local_steps, self._correction_lr)
        payload = self.terms.ask(shared, support, self._chance(call.peer, call.inc, call.seq))
        self._offers[call.peer] = _Offer(call.inc, call.seq, support, call.theta, gain, support.take(shared))
        return Offered(payload, gain)

    def answer(self, call: Answer, shared: Tensor, *, exclusive: bool) -> Answered:
        """Responder: the difference, kept until it is committed or dropped.

        Args:
            call: with the request's payload.
            shared: (D,) what to read.
            exclusive: effects are added one by one as they are committed, so what other pending answers will take is counted as taken,
                or two of them would overshoot. Not where all exchanges of a round read one frozen vector: there the mixing weights of
                a row sum to at most 1.

        Raises:
            RemoteProtocolError: the payload, theta or gain is not what an honest initiator could send; nothing changed.
        """
        if not 0.0 < call.theta < 1.0:  # which weight it must be, the daemon knows; base_k has links above a half
            raise RemoteProtocolError(call.peer, "theta_out_of_bounds")
        if exclusive:
            shared = self._less_pending(shared, call.peer)
        try:
            support, theirs = self.terms.heard(call.payload, self._dim, self._dtype)
            if not 0.0 <= call.gain <= self._most_gain(call.theta, support.ratio(self._dim)):
                raise RemoteProtocolError(call.peer, "gain_out_of_bounds")
            mine = support.take(shared).cpu()
            chance = self._chance(call.peer, call.inc, call.seq)
            wish = self._wish(call, shared)
            payload, v = self.terms.answer(mine, theirs, support, self._dim, chance, wish)
        except ValueError as error:
            raise RemoteProtocolError(call.peer, str(error)) from error
        effect = Effect(call.peer, support, -v.to(self._device), call.theta, call.gain)
        self._pending[call.peer] = _Pending(call.inc, call.seq, effect, mine.to(self._device))
        return Answered(payload)

    def apply(self, call: Apply) -> Effect:
        """Initiator: the effect of the response; the offer is spent.

        Raises:
            RemoteProtocolError: the payload is not what an honest responder could send; nothing changed.
            LocalProtocolError: there is no such offer.
        """
        offer = self._offers.get(call.peer)
        if offer is None or (offer.inc, offer.seq) != (call.inc, call.seq):
            raise LocalProtocolError(f"nothing was offered to {call.peer} in transaction {call.seq}")
        limit = self._limit if self._drifts else 0
        try:
            v, wish = self.terms.read(call.payload, offer.support, self._dim, self._dtype, limit)
        except ValueError as error:
            raise RemoteProtocolError(call.peer, str(error)) from error
        del self._offers[call.peer]
        if wish is not None:
            self._wishes[call.peer] = wish
        effect = Effect(call.peer, offer.support, v.to(self._device), offer.theta, offer.gain)
        self._note(effect, offer.mine)
        return effect

    def commit(self, call: Commit) -> Effect:
        """Responder: the effect of what was answered; it is no longer pending.

        Raises:
            LocalProtocolError: there is no such answer.
        """
        pending = self._pending.get(call.peer)
        if pending is None or (pending.inc, pending.seq) != (call.inc, call.seq):
            raise LocalProtocolError(f"nothing is pending with {call.peer} in transaction {call.seq}")
        del self._pending[call.peer]
        self._note(pending.effect, pending.mine)
        return pending.effect

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

    def _most_gain(self, theta: float, ratio: float) -> float:
        pace = self._manifest.pace
        fewest = float(pace.local_steps) if pace.kind == "steps" else 1.0
        return self._mixer.gain(theta, ratio, fewest, self._correction_lr) * (1.0 + _ROUNDING)

    def _less_pending(self, shared: Tensor, peer: str) -> Tensor:
        others = [pending.effect for other, pending in sorted(self._pending.items()) if other != peer]
        if not others:
            return shared
        shared = shared.clone()
        for effect in others:
            shared[effect.support.index(self._dim)] += effect.theta * effect.value
        return shared

    def _wish(self, call: Answer, shared: Tensor) -> Indices | None:
        if not self._drifts:
            return None
        support = self._select(0, self._dim).select(shared, self._met.get(call.peer), 0, call.seq)
        return support if isinstance(support, Indices) else None

    def _note(self, effect: Effect, mine: Tensor) -> None:
        """Both ends now hold about the same here: what differs later has drifted."""
        if self._drifts:
            met = self._met.setdefault(effect.peer, torch.zeros(self._dim, dtype=self._dtype, device=self._device))
            met[effect.support.index(self._dim)] = mine + effect.theta * effect.value

    def _chance(self, peer: str, inc: int, seq: int) -> Generator:
        return generator(self._manifest.seed, "quantize", edge(self._node, peer), inc, seq)


def _selection(section: CompressSection, terms: Terms) -> Callable[[int, int], Selector]:
    """(budget in bytes or 0, D) -> the selector of one exchange."""

    def within(budget_bytes: int, dim: int) -> Selector:
        limits = [limit for limit in (budget_bytes, section.budget_bytes) if limit > 0]
        return Mask(plan(min(limits, default=0), dim, terms.request, terms.response))

    match section.select:
        case "budget":
            return within
        case "full":
            selector: Selector = Everything()
        case "mask":
            selector = Mask(section.ratio)
        case "top_k":
            selector = TopK(section.ratio)
        case "drift_top_k":
            selector = DriftTopK(section.ratio / 2.0)  # the other half of the ratio is for the other end's wishes
    return lambda _budget_bytes, _dim: selector
