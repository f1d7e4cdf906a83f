"""The engine's half of pairwise transactions: offers, pending answers, and the effects of their commits.

One transaction at a time per peer, in the order that the daemon's edges ensure. The model is not touched: vectors come in, and
`Effect`s or `Swapped`s go out, so a refused payload changes nothing.

Shapes: d parameters, D = width·d coordinates of the shared vector, k of one exchange.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from starling.gossip.api import Averaging, Drift, Effect, Swapped, Swapping, Tracking
from starling.gossip.compress.budget import Effort
from starling.gossip.compress.select.coordinates import kept, with_wish
from starling.gossip.compress.support import Blocks, Fragment, Full, Indices, Support
from starling.gossip.errors import LocalProtocolError, RemoteProtocolError
from starling.gossip.mix import directions, edge_ledger
from starling.gossip.mix.broadcast_codec import BroadcastCodec
from starling.gossip.mix.catalogue import broadcasts, pulls, swaps, tracks
from starling.gossip.mix.encoded_effects import EncodedEffect, decoded, encoded, norm
from starling.gossip.mix.exchange_codec import edge
from starling.gossip.rng import generator
from starling.gossip.seeds import derive
from starling.node.config import frame
from starling.node.config.schema import Manifest
from starling.node.engine.compression import exchange_codec, parts, selection, selector_facts
from starling.node.engine.consensus import ConsensusDistance, of_model, rms
from starling.node.engine.learner import Learner
from starling.node.rpc.calls import Answer, Answered, Apply, Commit, Drop, Offer, Offered

_ROUNDING = 1e-6  # relative difference of a gain between two machines
_APART = 8  # rounds that an honest initiator may be from us in clock pace; in steps pace none
_FULL = 0.8  # of the clip: a clipped difference is at least so long after most codecs
Done = Effect | Swapped | EncodedEffect
Misdirect = Callable[[Tensor, Tensor, Tensor | None, str], tuple[Tensor, Tensor, Tensor | None]]
"""(z (D,), N (1,), reach (1,) or None, peer) -> those to be sent."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """As initiator: `mine` (k,) values on the support, (0,) where they are not needed; where messages are swapped, no support, `mine` (D,)
    and the message `sent` (D,).

    `most` is the largest w' of an honest answer, `reach` how long its drift may make the flow.
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
    most: float = 0.0
    reach: float = math.inf


@dataclass(frozen=True, slots=True)
class _Pending:
    """As responder: `mine` (k,) our values at the answer, (0,) where they are not needed, `apart` the distance of the models."""

    inc: int
    seq: int
    done: Done
    mine: Tensor
    apart: float | None


class Exchanges:
    """Offers and pending answers, at most one of each per peer, for exchanges of what `learner` shares, as a node of this label."""

    def __init__(self, manifest: Manifest, node: str, learner: Learner, distances: ConsensusDistance) -> None:
        compress = manifest.compress
        self._manifest = manifest
        self._node = node
        self._learner = learner
        form = learner.form
        self._dim, self._dtype, self._device = form.numel(), form.dtype, form.device
        self._edge = learner.mixer.edge
        self._distances = distances
        self._model = learner.shared_layout.dim
        frame.check(manifest, self._dim)
        facts = parts(learner.shared_layout, self._dim)
        self.codec = exchange_codec(manifest, form.dtype, facts)
        self.broadcast: BroadcastCodec | None = None  # where nodes broadcast, how messages are made
        request = self.codec.response if swaps(self._edge) else self.codec.request
        chosen = selector_facts(compress, self._edge)
        self._compares = chosen.compares
        self.effort = Effort()
        self._select = selection(
            compress, request, self.codec.response, facts, wishes=chosen.wishes, directions=tracks(self._edge),
            effort=self.effort,
        )  # fmt: skip
        if broadcasts(self._edge):
            self.broadcast = BroadcastCodec(self._select(0, self._dim), self.codec.response)
        self._limit = kept(compress.ratio, self._dim) if chosen.wishes else 0
        self.misdirect: Misdirect | None = None  # what a Byzantine node sends instead
        self._offers: dict[str, _Offer] = {}
        self._pending: dict[str, _Pending] = {}
        # (D,) what we last knew of a peer's vector, where the selector compares with it
        self._known: dict[str, Tensor] = {}
        self._wishes: dict[str, Indices] = {}  # coordinates that a responder asked for
        self._tables: tuple[dict[str, Any], ...] = (self._offers, self._pending, self._known, self._wishes)

    def offer(self, call: Offer, shared: Tensor, *, local_steps: float, exclusive: bool) -> Offered:
        """Initiator: our values of `shared` (D,) on a support of our choice, or our message; K = `local_steps` between two exchanges.

        `exclusive` as in `answer`, with the same errors of our own numbers.
        """
        if swaps(self._edge):
            mine = self._less_under_way(shared, call.peer) if exclusive else shared
            payload, sent = self._encode(self._edge, call, mine)
            give, take = _weights(call)
            self._offers[call.peer] = _Offer(call.inc, call.seq, None, call.theta, 0.0, give, take, mine.clone(), sent)
            return Offered(payload, 0.0)
        assert not pulls(self._edge), "vectors are pulled"
        selector = self._select(call.budget_bytes, self._dim)
        support = selector.select(shared, self._known_of(call.peer), self._seed(call), call.seq)
        wish = self._wishes.pop(call.peer, None)
        if wish is not None and isinstance(support, Indices):
            support = with_wish(support, wish, self._limit)
        gain = self._gain(
            self._edge, call.theta, support.ratio(self._dim), local_steps, call.round, self._learner.ledger.speed,
            max(1, call.members),
        )  # fmt: skip
        chance, most, reach = self._chance(call), 0.0, math.inf
        try:
            payload = self.codec.encode_request(shared, support, chance)
            if tracks(self._edge):
                own = self._direction(self._edge, call.peer, support, exclusive=False)
                payload = directions.ask(self.codec, payload, own, self._dim, chance)
                most, reach = (call.theta if own.z is not None else 0.0), own.reach
        except ValueError as error:
            raise _ours(error) from error
        self._offers[call.peer] = _Offer(
            call.inc, call.seq, support, call.theta, gain, call.theta, call.theta, self._remembered(support, shared),
            most=most, reach=reach,
        )  # fmt: skip
        return Offered(payload, gain)

    def answer(
        self, call: Answer, shared: Tensor, *, round: int, exclusive: bool, unbooked: Sequence[Done] = ()
    ) -> Answered:
        """Responder: the difference to `shared` (D,), or our message, kept until it is committed or dropped.

        `round` is ours; `unbooked` effects are committed, and not yet in the flows. `exclusive`: effects are added one by one as they are
        committed, so those of other pending answers are anticipated, or two of them would overshoot. Not where all exchanges of a round
        read one frozen vector: its mixing weights sum to at most 1.

        Raises RemoteProtocolError: the payload, theta or gain is not what an honest initiator could send; LocalProtocolError: our own
        numbers cannot be sent. Nothing changed then.
        """
        if not 0.0 < call.theta < 1.0:  # the daemon checks the exact weight; base_k has links above a half
            raise RemoteProtocolError(call.peer, "theta_out_of_bounds")
        if exclusive:
            shared = self._less_under_way(shared, call.peer)
        try:
            if swaps(self._edge):
                return self._answer_swap(self._edge, call, shared)
            assert not pulls(self._edge), "vectors are pulled"
            return self._answer_difference(self._edge, call, shared, round, unbooked, exclusive=exclusive)
        except ValueError as error:
            raise RemoteProtocolError(call.peer, str(error)) from error

    def _answer_difference(
        self, averaging: Averaging, call: Answer, shared: Tensor, round: int, unbooked: Sequence[Done], *, exclusive: bool
    ) -> Answered:  # fmt: skip
        asked, values, noise = self.parted(call.payload)
        support, theirs = self.codec.decode_request(asked, self._dim, self._dtype)
        pace = self._manifest.pace
        credible = min(max(call.round, round - _APART), round + _APART)  # a gain is that of its exchange's round
        ratio = support.ratio(self._dim)
        # In clock pace the initiator measures K: the gain is largest for K = 1, or where a damping left open becomes larger.
        turn = max(1.0, self._learner.phase(credible, 1.0).memory * ratio)
        steps = (float(pace.local_steps),) if pace.kind == "steps" else (1.0, turn)
        most = max(self._gain(averaging, call.theta, ratio, count, credible, edge_ledger.FASTEST) for count in steps)
        if not 0.0 <= call.gain <= most * (1.0 + _ROUNDING):
            raise ValueError("gain_out_of_bounds")
        mine = (shared if isinstance(support, Full) else support.take(shared)).cpu()
        torch.sub(mine, theirs, out=theirs)  # the difference, in the memory of what came
        length, apart = self._measured(theirs, support)
        wish = self._wish(call, shared)
        chance = self._chance(call)
        payload, v = self.codec.encode_difference(theirs, support, self._dim, chance, wish)
        difference = payload
        del mine, theirs
        effect = Effect(call.peer, support, v.neg_().to(self._device), call.theta, call.gain)
        del v
        if tracks(averaging):
            own = self._direction(averaging, call.peer, support, exclusive=exclusive)
            known = self.told(values, noise, support)
            held = self._held(averaging, effect, unbooked).opposite() if known.reach < math.inf else None
            payload, drifted = directions.answer(
                self.codec, payload, own, known, support, call.theta, self._dim, chance, held
            )
            if drifted is not None:
                effect = replace(effect, drift=Drift(drifted.value.neg_().to(self._device), drifted.weight))
        done = self._seal(effect, difference, self.parted(payload)[1], -1.0)
        self._pending[call.peer] = _Pending(call.inc, call.seq, done, self._remembered(support, shared), apart)
        limit = self._manifest.mix.clip_norm
        return Answered(payload, limit / length if 0.0 < limit < length else 1.0)

    def _answer_swap(self, swapping: Swapping, call: Answer, shared: Tensor) -> Answered:
        if call.gain != 0.0:
            raise ValueError("gain_out_of_bounds")
        received = self._decode(call.payload)
        payload, sent = self._encode(swapping, call, shared)
        give, take = _weights(call)
        done = Swapped(call.peer, sent, received, shared.clone(), give, take)
        self._pending[call.peer] = _Pending(call.inc, call.seq, done, done.mine, self._swap_distance(swapping, done))
        return Answered(payload)

    def apply(self, call: Apply, unbooked: Sequence[Done] = ()) -> Done:
        """Initiator: the effect of the response; deletes the offer. `unbooked` as in `answer`.

        Raises RemoteProtocolError: the payload is not what an honest responder could send; nothing changed; LocalProtocolError: there is no
        such offer.
        """
        offer = self._offers.get(call.peer)
        if offer is None or (offer.inc, offer.seq) != (call.inc, call.seq):
            raise LocalProtocolError(f"nothing was offered to {call.peer} in transaction {call.seq}")
        wish: Indices | None = None
        done: Done
        try:
            if offer.support is None:
                done = Swapped(call.peer, offer.sent, self._decode(call.payload), offer.mine, offer.give, offer.take)
            else:
                answer, values, weight = self.parted(call.payload)
                v, wish = self.codec.decode_response(answer, offer.support, self._dim, self._dtype, self._limit)
                done = Effect(call.peer, offer.support, v.to(self._device), offer.theta, offer.gain)
                if tracks(self._edge):
                    held = self._held(self._edge, done, unbooked) if offer.reach < math.inf else None
                    drifted = directions.answered(
                        self.codec, values, weight, offer.support, offer.most, self._dim, self._dtype, held, offer.reach
                    )
                    if drifted is not None:
                        done = replace(done, drift=Drift(drifted.value.to(self._device), drifted.weight))
        except ValueError as error:
            raise RemoteProtocolError(call.peer, str(error)) from error
        del self._offers[call.peer]
        if wish is not None:
            self._wishes[call.peer] = wish
        self._note(done, offer.mine)
        if isinstance(done, Effect):
            self._distances.record(call.peer, self._measured(done.value, done.support)[1])
            at_once = self._manifest.pace.kind == "clock"  # it is booked, so its bytes need not be read again
            return done if at_once else self._seal(done, answer, values, 1.0)
        if swaps(self._edge):
            self._distances.record(call.peer, self._swap_distance(self._edge, done))
        return done

    def commit(self, call: Commit) -> Done:
        """Responder: the effect of the answer, which is no longer pending; LocalProtocolError if there is none."""
        pending = self._pending.get(call.peer)
        if pending is None or (pending.inc, pending.seq) != (call.inc, call.seq):
            raise LocalProtocolError(f"nothing is pending with {call.peer} in transaction {call.seq}")
        del self._pending[call.peer]
        self._note(pending.done, pending.mine)
        self._distances.record(call.peer, pending.apart)
        return pending.done

    def clipped(self, done: Done) -> bool:
        """Whether a difference was clipped, judged by its length, which a codec shortens a little."""
        limit = self._manifest.mix.clip_norm
        return not isinstance(done, Swapped) and limit > 0.0 and norm(done) >= _FULL * limit

    def drop(self, call: Drop) -> None:
        """Forget one transaction, if it is there."""
        for kept_by_peer in (self._offers, self._pending):
            held = kept_by_peer.get(call.peer)
            if held is not None and (held.inc, held.seq) == (call.inc, call.seq):
                del kept_by_peer[call.peer]

    def forget(self, peer: str) -> None:
        """The edge is closed or void: delete its state."""
        for kept_by_peer in self._tables:
            kept_by_peer.pop(peer, None)

    def forget_all(self) -> None:
        """Every edge is void."""
        for kept_by_peer in self._tables:
            kept_by_peer.clear()

    def _gain(
        self, averaging: Averaging, theta: float, ratio: float, local_steps: float, round: int, speed: float, members: int = 1,
    ) -> float:  # fmt: skip
        phase = self._learner.phase(round, local_steps, shared=True)
        return averaging.gain(theta, ratio, replace(phase, speed=speed, members=members))

    def _less_under_way(self, shared: Tensor, peer: str) -> Tensor:
        """The vector after the commits of transactions with others, as far as their effects are known."""
        changed = shared
        for other, pending in sorted(self._pending.items()):
            if other == peer:
                continue
            match pending.done:
                case Effect() | EncodedEffect() as done:
                    changed = changed.clone() if changed is shared else changed
                    effect = decoded(done)
                    changed[effect.support.index(self._dim)] += effect.theta * effect.support.spread(
                        effect.value, self._dim
                    )
                case Swapped(_, sent, _, mine, give, _):
                    changed = changed + self._given(other, sent, mine, give)
        if swaps(self._edge):
            for other, offer in sorted(self._offers.items()):
                if other != peer:
                    changed = changed + self._given(other, offer.sent, offer.mine, offer.give)
        return changed

    def parted(self, payload: bytes) -> tuple[bytes, bytes, float]:
        """A payload as `starling.gossip.mix.directions.split` gives it; whole where no directions are exchanged. Raises its ValueErrors."""
        return directions.split(payload) if tracks(self._edge) else (payload, b"", 0.0)

    def told(self, values: bytes, noise: float, support: Support) -> directions.Direction:
        """An initiator's direction, of what `parted` gave. Raises ValueError with a snake_case reason."""
        limited = tracks(self._edge) and self._edge.reach(self._learner.state) is not None
        return directions.asked(self.codec, values, noise, support, self._dim, self._dtype, limited=limited)

    def _direction(self, tracking: Tracking, peer: str, support: Support, *, exclusive: bool) -> directions.Direction:
        """Ours as it is now; if `exclusive`, after the commits of pending answers to others."""
        pending = [each.done for other, each in sorted(self._pending.items()) if exclusive and other != peer]
        moving = [done for done in pending if not isinstance(done, Swapped) and edge_ledger.moves(done)]
        if isinstance(support, Blocks | Fragment) and not moving and self.misdirect is None:
            return self._part_of_direction(tracking, support)
        z, noise = tracking.direction(self._learner.state)
        for done in moving:
            z[done.support.index(self._dim)] -= edge_ledger.anticipated(tracking, self._learner.ledger, decoded(done))
        reach = tracking.reach(self._learner.state)
        if self.misdirect is not None:
            z, noise, reach = self.misdirect(z, noise, reach, peer)
        return directions.on(support, z, noise, reach)

    def _part_of_direction(self, tracking: Tracking, support: Blocks | Fragment) -> directions.Direction:
        """Bit for bit that part of the whole direction, computed on the support alone: the whole one would take another vector."""
        state = self._learner.state
        part = replace(state, mean=support.take(state.mean), c=support.take(state.c))
        z, noise = tracking.direction(part)
        return directions.on(Full(), z, noise, tracking.reach(state))

    def _held(self, tracking: Tracking, effect: Effect, unbooked: Sequence[Done]) -> directions.Held:
        """Our flow of an edge, after all of an effect but its drift."""
        earlier = [decoded(done) for done in unbooked if not isinstance(done, Swapped) and done.peer == effect.peer]
        flow, rest = edge_ledger.held(tracking, self._learner.ledger, effect, earlier)
        return directions.Held(flow.cpu(), rest)

    def _wish(self, call: Answer, shared: Tensor) -> Indices | None:
        if not self._limit:
            return None
        support = self._select(0, self._dim).select(shared, self._known_of(call.peer), 0, call.seq)
        return support if isinstance(support, Indices) else None

    def _known_of(self, peer: str) -> Tensor | None:
        """(D,) what we last knew of a peer's vector, at first that all began with ours; None if the selector does not compare."""
        return self._known.get(peer, self._learner.origin) if self._compares else None

    def _note(self, done: Done, mine: Tensor) -> None:
        """An exchange tells what the peer's values are after it: the difference less the peer's step towards ours."""
        known = self._known_of(done.peer)
        if known is not None and not isinstance(done, Swapped):
            self._known[done.peer] = done.support.put(known, mine + (1.0 - done.theta) * decoded(done).value)

    def _remembered(self, support: Support, shared: Tensor) -> Tensor:
        """(k,) our values, for `_note`; (0,) where nothing is compared."""
        return support.take(shared) if self._compares else shared[:0]

    def _seal(self, effect: Effect, response: bytes, values: bytes, sign: float) -> Effect | EncodedEffect:
        """An effect as the bytes of its response's difference, and of its drift's values, times `sign`, 1 or −1."""
        support = effect.support  # not the effect, whose values would stay

        def decoded(data: bytes) -> Tensor:
            found = self.codec.decode_response(data, support, self._dim, self._dtype, self._limit)[0]
            return found.mul_(sign).to(self._device)

        return encoded(effect, lambda: decoded(response), lambda: decoded(values))

    def _measured(self, difference: Tensor, support: Support) -> tuple[float, float | None]:
        """Norm of a difference (k,), and root mean square of its model part; None where that cannot be separated from a tracker."""
        length = float(difference.norm())
        about = of_model(difference, support, self._dim, self._model)
        if about is difference:
            return length, length / math.sqrt(difference.numel())
        return length, None if about is None else rms(about)

    def _swap_distance(self, swapping: Swapping, done: Swapped) -> float | None:
        """Root mean square difference that a swapped message shows; None where it shows none."""
        if done.received is None:
            return None
        difference = swapping.difference(self._kept(swapping, done.peer), done.received, done.mine)
        return None if difference is None else rms(difference[: self._model])

    def _encode(self, swapping: Swapping, call: Offer | Answer, mine: Tensor) -> tuple[bytes, Tensor | None]:
        """The payload of our message to a peer, and the message as the peer will decode it."""
        give, _ = _weights(call)
        if give == 0.0:
            return b"", None
        message = swapping.message(self._kept(swapping, call.peer), mine, give)
        budget = call.budget_bytes if isinstance(call, Offer) else 0
        support = self._select(budget, self._dim).select(message, None, self._seed(call), call.seq)
        try:
            payload = self.codec.encode_message(message, support, self._chance(call, self._node))
            return payload, self._decode(payload)
        except ValueError as error:
            raise _ours(error) from error

    def _decode(self, payload: bytes) -> Tensor | None:
        message = self.codec.decode_message(payload, self._dim, self._dtype)
        return None if message is None else message.to(self._device)

    def _given(self, peer: str, sent: Tensor | None, mine: Tensor, give: float) -> Tensor:
        if sent is None:
            return torch.zeros_like(mine)
        assert swaps(self._edge)
        return self._edge.sent(self._kept(self._edge, peer), sent, mine, give)[1]

    def _kept(self, swapping: Swapping, peer: str) -> Tensor:
        kept_of_edge = self._learner.kept.get(peer)
        return swapping.begin(self._learner.origin) if kept_of_edge is None else kept_of_edge

    def _seed(self, call: Offer | Answer) -> int:
        return derive(self._manifest.seed, "mask", edge(self._node, call.peer), call.inc)

    def _chance(self, call: Offer | Answer, *labels: str) -> Generator:
        name = edge(self._node, call.peer)
        return generator(self._manifest.seed, "quantize", name, call.inc, call.seq, *labels)


def _ours(error: ValueError) -> LocalProtocolError:
    """Our own numbers are not finite, or too large: no peer's fault."""
    return LocalProtocolError(f"our own numbers cannot be sent: {error}")


def _weights(call: Offer | Answer) -> tuple[float, float]:
    """(give, take) of a link: the peer's weight for our message, and ours for the peer's."""
    return (call.theta if call.give is None else call.give, call.theta if call.take is None else call.take)
