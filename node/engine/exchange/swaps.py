"""Exchanges in which each end sends its own message.

Shapes: D numbers of the shared vector, E numbers stored per edge.
"""

from dataclasses import dataclass
from typing import cast

from torch import Tensor

from starling.gossip.api import Swapped, Swapping
from starling.gossip.edge_memory import PublicCopies
from starling.gossip.replica import Replica
from starling.node.engine.consensus import rms
from starling.node.engine.exchange.api import Site
from starling.node.engine.exchange.messages import Encoding
from starling.node.engine.exchange.table import Table
from starling.node.engine.exchange.terms import Terms
from starling.node.engine.exchange.transactions import check_weight, fault_of, fault_of_ours
from starling.node.rpc.calls import Answer, Answered, Apply, Commit, Done, Drop, Offer, Offered


@dataclass(frozen=True, slots=True)
class _Offer:
    """An offer of the initiator: `local` (D,), and the message `sent` (D,) if there is one."""

    give: float
    take: float
    local: Tensor
    sent: Tensor | None


@dataclass(frozen=True, slots=True)
class _Pending:
    """An answer of the responder. `apart` is the distance of the models."""

    done: Swapped
    apart: float | None


class Swaps:
    """Offers and pending answers of swaps, at most one of each per peer. Satisfies `Transactions`."""

    def __init__(self, replica: Replica, site: Site, terms: Terms, encoding: Encoding) -> None:
        self._replica, self._terms, self._encoding = replica, terms, encoding
        self._vectors, self._distances = site.vectors, site.distances
        self._edge = cast("Swapping", replica.mixer.edge)
        self._offers = Table[_Offer]("was offered to")
        self._pending = Table[_Pending]("is pending with")

    def offer(self, call: Offer) -> Offered:
        """Initiator: send this node's message."""
        local = self._after_others(self._vectors.vector(call.peer), call.peer)
        payload, sent = self._encode(call, local, call.budget_bytes)
        give, take = _weights(call)
        self._offers.put(call, _Offer(give, take, local.clone(), sent))
        return Offered(payload, 0.0)

    def answer(self, call: Answer) -> Answered:
        """Responder: send this node's message."""
        shared = self._after_others(self._vectors.vector(call.peer), call.peer)
        with fault_of(call.peer):
            check_weight(call.theta)
            if call.gain != 0.0:
                raise ValueError("gain_out_of_bounds")
            received = self._decode(call.payload)
            payload, sent = self._encode(call, shared)
            give, take = _weights(call)
            done = Swapped(call.peer, sent, received, shared.clone(), give, take, self._terms.node)
            self._pending.put(call, _Pending(done, self._distance(done)))
            return Answered(payload)

    def apply(self, call: Apply) -> Done:
        """Initiator: take the effect of both messages."""
        offer = self._offers.get(call)
        with fault_of(call.peer):
            received = self._decode(call.payload)
        done = Swapped(call.peer, offer.sent, received, offer.local, offer.give, offer.take, self._terms.node)
        self._offers.pop(call.peer)
        self._distances.record(call.peer, self._distance(done))
        self._vectors.take(done)
        return self.outcome(done)

    def commit(self, call: Commit) -> Done:
        """Responder: take the effect of both messages."""
        pending = self._pending.get(call)
        self._pending.pop(call.peer)
        self._distances.record(call.peer, pending.apart)
        self._vectors.take(pending.done)
        return self.outcome(pending.done)

    def outcome(self, done: Swapped) -> Done:
        """Return an empty report for the daemon, as messages are not clipped."""
        return Done(False)

    def drop(self, call: Drop) -> Done:
        """Delete a transaction, if there is one."""
        self._offers.drop(call)
        self._pending.drop(call)
        return Done()

    def forget(self, peer: str) -> None:
        """Delete the state of an edge."""
        self._offers.pop(peer)
        self._pending.pop(peer)

    def forget_all(self) -> None:
        """Delete the state of all edges."""
        self._offers.clear()
        self._pending.clear()

    def _after_others(self, shared: Tensor, peer: str) -> Tensor:
        """Return the vector after the pending transactions with others that are to be anticipated, as far as their effects are known."""
        pending: list[tuple[str, _Offer | Swapped]] = [(other, answer.done) for other, answer in self._pending.others(peer)]
        for other, it in self._vectors.under_way([*pending, *self._offers.others(peer)]):
            if it.sent is not None:
                shared = shared + self._edge.sent(self._kept(other), it.sent, it.local, it.give)[1]
        return shared

    def _encode(self, call: Offer | Answer, local: Tensor, budget: int = 0) -> tuple[bytes, Tensor | None]:
        """Return the payload of our message to a peer, and the message as the peer will decode it."""
        give, _ = _weights(call)
        if give == 0.0:
            return b"", None
        message = self._edge.message(self._kept(call.peer), local, give)
        with fault_of_ours():
            payload = self._encoding.encode(call, message, budget)
            return payload, self._decode(payload)

    def _decode(self, payload: bytes) -> Tensor | None:
        message = self._terms.codec.decode_message(payload, self._terms.form.dim, self._terms.form.dtype)
        return None if message is None else message.to(self._terms.form.device)

    def _distance(self, done: Swapped) -> float | None:
        """Return the root mean square difference that a swapped message shows; None where it shows none."""
        if done.received is None:
            return None
        difference = self._edge.difference(self._kept(done.peer), done.received, done.local)
        return None if difference is None else rms(difference[: self._terms.form.model])

    def _kept(self, peer: str) -> Tensor:
        """Return (E,) the state of an edge."""
        return cast("PublicCopies", self._replica.memory).of(peer)


def _weights(call: Offer | Answer) -> tuple[float, float]:
    """Return (give, take) of an edge: the peer's weight for our message, and our weight for the peer's message."""
    return (call.theta if call.give is None else call.give, call.theta if call.take is None else call.take)
