"""Exchanges whose two ends apply one difference of their vectors, with opposite signs.

Shapes: d parameters, D = width·d coordinates of the shared vector, k of one exchange.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from msgspec import structs
from torch import Tensor

from starling.gossip.api import Averaging, Effect
from starling.gossip.compress.select.coordinates import with_wish
from starling.gossip.compress.support import Indices, Support
from starling.gossip.mix.borne import kept
from starling.gossip.mix.encoded_effects import EncodedEffect, decoded, encoded
from starling.gossip.replica import Replica
from starling.node.engine.consensus import measured
from starling.node.engine.exchange.api import Site
from starling.node.engine.exchange.attachments import Attachments
from starling.node.engine.exchange.defence import Defence, Expected
from starling.node.engine.exchange.known_peers import Known
from starling.node.engine.exchange.shares import Shares
from starling.node.engine.exchange.table import Table
from starling.node.engine.exchange.terms import Terms
from starling.node.engine.exchange.transactions import check_weight, fault_of, fault_of_ours
from starling.node.rpc.calls import Answer, Answered, Apply, Commit, Done, Drop, Offer, Offered
from starling.robust.distances import agreed, share

_FULL = 0.8  # share of the clip that a clipped difference has at least after most codecs
_LEAST = 1e-300  # to divide by


@dataclass(frozen=True, slots=True)
class _Offer:
    """An offer of the initiator. `local` is what `Known.note` will need."""

    support: Support
    theta: float
    gain: float
    borne: float
    expected: Expected  # of which the request states the distance
    local: Tensor


@dataclass(frozen=True, slots=True)
class _Pending:
    """An answer of the responder. `length` is the difference's before any bound, `apart` the distance of the models, `progress` the
    initiator's, `reply` answers its commit.
    """

    done: Effect | EncodedEffect
    local: Tensor
    length: float
    apart: float | None
    progress: float | None
    reply: Done


def _bearing(replica: Replica, edge: Averaging) -> tuple[Callable[[], float], float]:
    """Return what gives the share of our correction that local steps confirmed, and the least of others'; 1 where all of it counts."""
    if edge.borne(replica.state) is None:
        return lambda: 1.0, 1.0
    return lambda: float(cast("Tensor", edge.borne(replica.state))), 0.0


class Differences:
    """Offers and pending answers of differences, at most one of each per peer. Satisfies `Transactions`."""

    def __init__(self, replica: Replica, site: Site, terms: Terms, attachments: Attachments, known: Known, defence: Defence) -> None:
        self._defence = defence
        self._replica, self._site, self._terms, self._attachments, self._known = replica, site, terms, attachments, known
        self._vectors = site.vectors
        self._edge = cast("Averaging", replica.mixer.edge)
        self._shares: Shares = site.rates.shares(site.vectors)
        self._borne, self._least_borne = _bearing(replica, self._edge)
        self._offers = Table[_Offer]("was offered to")
        self._pending = Table[_Pending]("is pending with")
        self._wishes: dict[str, Indices] = {}  # coordinates that a responder requested, by peer
        self._tables: tuple[Any, ...] = (self._offers, self._pending, self._known, self._wishes)

    def offer(self, call: Offer) -> Offered:
        """Initiator: send this node's values on a support of its choice."""
        shared, terms, peer = self._vectors.vector(call.peer), self._terms, call.peer
        selector = terms.select(call.budget_bytes, terms.form.dim)
        support = selector.select(shared, self._known.of(peer), terms.mask_seed(peer, call.inc), call.seq)
        wish = self._wishes.pop(peer, None)
        if wish is not None and isinstance(support, Indices):
            support = with_wish(support, wish, terms.wished)
        borne, ratio = self._borne(), support.ratio(terms.form.dim)
        gain = self._gain(call.theta, ratio, self._vectors.local_steps, call.round, max(1, call.members))
        chance = terms.chance(peer, call.inc, call.seq)
        with fault_of_ours():
            payload = self._attachments.ask(terms.codec.encode_request(shared, support, chance), support, chance)
        expected = self._defence.expected(peer, support, shared)
        local = self._known.remembered(support, shared)
        self._offers.put(call, _Offer(support, call.theta, gain, borne, expected, local))
        return Offered(payload, gain, borne, expected.reference)

    def sent_values(self, call: Answer) -> tuple[Support, Tensor]:
        """Return a request's support and values (k,). Raises ValueError with a snake_case reason."""
        payload, _ = self._attachments.split(call.payload)
        return self._terms.codec.decode_request(payload, self._terms.form.dim, self._terms.form.dtype)

    def answer(self, call: Answer) -> Answered:
        """Responder: send the difference to this node's vector.

        The effects of other pending answers are anticipated (`Vectors.under_way`).
        """
        shared, terms = self._vectors.vector(call.peer), self._terms
        for _, pending in self._vectors.under_way(self._pending.others(call.peer)):
            effect = decoded(pending.done)
            shared = effect.support.add(shared, effect.theta * effect.value)
        with fault_of(call.peer):
            check_weight(call.theta)
            requested, carried = self._attachments.split(call.payload)
            support, remote = terms.codec.decode_request(requested, terms.form.dim, terms.form.dtype)
            own_gain = partial(self._gain, call.theta, support.ratio(terms.form.dim))
            moves = self._shares.of(call.gain, call.round, call.members, own_gain)
            borne = self._borne()
            local = support.view(shared).cpu()
            torch.sub(local, remote, out=remote)  # the difference, written into the received values' memory
            length, apart = measured(remote, support, terms.form.dim, terms.form.model)
            expected = self._defence.expected(call.peer, support, shared)
            progress = expected.made(remote, 1.0)
            wish = self._wish(call, shared) if terms.wished else None
            chance = terms.chance(call.peer, call.inc, call.seq)
            payload, v = terms.codec.encode_difference(remote, terms.form.dim, chance, wish)
            difference = payload
            del local, remote
            applied, root = float(v.norm()), self._known.share_of_norm(support, terms.form.dim)
            own, credit = share(applied / root, expected.reference), expected.credit(progress)
            moves *= credit * min(own, share(applied / root, call.reference))
            gain, keeps = self._moving(call.gain * moves, borne, call.borne)
            effect = Effect(call.peer, support, v.neg_().to(terms.form.device), call.theta * own * credit, gain, keeps=keeps)
            reply = self._reply(applied)
            del v
            payload, effect = self._attachments.answer(payload, carried, effect, chance)
        done = encoded(effect, partial(self._read, support, difference, -1.0))
        self._pending.put(call, _Pending(done, self._known.remembered(support, shared), length / root, apart, progress, reply))
        limit = terms.codec.clip_norm or math.inf
        return Answered(payload, min(1.0, limit / max(length, _LEAST)), borne, moves)

    def apply(self, call: Apply) -> Done:
        """Initiator: take the effect of the response."""
        offer, terms = self._offers.get(call), self._terms
        support = offer.support
        with fault_of(call.peer):
            answer, carried = self._attachments.split(call.payload)
            v, wish = terms.codec.decode_response(answer, support, terms.form.dim, terms.form.dtype, terms.wished)
            length = float(v.norm())
            distance = length / self._known.share_of_norm(support, terms.form.dim)
            moves, own = agreed(call.share, distance, offer.expected.reference), share(distance, offer.expected.reference)
            clip = max(call.clip, _LEAST)
            progress = offer.expected.made(v, -1.0 / clip)
            own *= offer.expected.credit(progress)
            gain, keeps = self._moving(offer.gain * moves, offer.borne, call.borne)
            done = Effect(call.peer, support, v.to(terms.form.device), offer.theta * own, gain, keeps=keeps)
            done = self._attachments.answered(carried, done)
        self._offers.pop(call.peer)
        if wish is not None:
            self._wishes[call.peer] = wish
        self._known.note(done, offer.local)
        self._site.distances.record(call.peer, measured(done.value, support, terms.form.dim, terms.form.model)[1])
        at_once = self._vectors.exclusive  # applied at once, so its bytes need not be read again
        self._vectors.take(done if at_once else encoded(done, partial(self._read, support, answer, 1.0)))
        return structs.replace(self._reply(length), far=self._defence.met(call.peer, distance / clip, progress))

    def commit(self, call: Commit) -> Done:
        """Responder: take the effect of the answer."""
        pending = self._pending.get(call)
        self._pending.pop(call.peer)
        self._known.note(pending.done, pending.local)
        self._site.distances.record(call.peer, pending.apart)
        self._vectors.take(pending.done)
        return structs.replace(pending.reply, far=self._defence.met(call.peer, pending.length, pending.progress))

    def outcome(self, done: Effect) -> Done:
        """Return the report of an effect for the daemon."""
        return self._reply(float(done.value.norm()))

    def drop(self, call: Drop) -> Done:
        """Delete a transaction, if there is one."""
        self._offers.drop(call)
        self._pending.drop(call)
        return Done()

    def forget(self, peer: str) -> None:
        """Delete the state of an edge."""
        for kept_by_peer in self._tables:
            kept_by_peer.pop(peer, None)

    def forget_all(self) -> None:
        """Delete the state of all edges: the model is another one."""
        for kept_by_peer in self._tables:
            kept_by_peer.clear()
        self._defence.restart()

    def _gain(self, theta: float, ratio: float, local_steps: float, round: int, members: int = 1) -> float:
        phase = self._site.rates.shared_phase(round, local_steps)
        return self._edge.gain(theta, ratio, replace(phase, members=members))

    def _moving(self, gain: float, ours: float, remote: float) -> tuple[float, float]:
        """Return the flow's change per unit of difference, and the share of it that remains.

        Raises ValueError: "borne_out_of_bounds": no honest peer says so.
        """
        if not self._least_borne <= remote <= 1.0:
            raise ValueError("borne_out_of_bounds")
        s = min(ours, remote)
        return gain * s, kept(s)

    def _wish(self, call: Answer, shared: Tensor) -> Indices | None:
        terms = self._terms
        support = terms.select(0, terms.form.dim).select(shared, self._known.of(call.peer), 0, call.seq)
        return support if isinstance(support, Indices) else None

    def _read(self, support: Support, data: bytes, sign: float) -> Tensor:
        """Decode a response's values again, times `sign`, 1 or −1."""
        terms = self._terms
        values = terms.codec.decode_response(data, support, terms.form.dim, terms.form.dtype, terms.wished)[0]
        return values.mul_(sign).to(terms.form.device)

    def _reply(self, length: float) -> Done:
        """Return the reply, which says whether a difference was clipped, judged by its length, which a codec shortens a little."""
        limit = self._terms.codec.clip_norm
        clipped = 0.0 < _FULL * limit <= length
        return Done(clipped, clip=None if clipped else 1.0)
