"""Exchanges in which each node pulls a message of all others, and all add the same sum.

A message is what `starling.gossip.mix.broadcast_codec` makes of the shared vector.

Shapes: d parameters, D numbers of the shared vector, n members.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from starling.gossip.compress.budget import Effort
from starling.gossip.edge_memory import Committed
from starling.gossip.exchange.attestation import digest
from starling.gossip.exchange.relays import DEPTH
from starling.gossip.limits import keep
from starling.gossip.mix.broadcast_codec import ANCHOR_BYTES, BroadcastCodec
from starling.gossip.mix.common_outer import UNKNOWN, parted
from starling.gossip.mix.past_rounds import PastRounds
from starling.gossip.replica import Replica
from starling.node.engine.exchange.api import Frozen, Handlers, Mixed, Site
from starling.node.engine.exchange.pulled import Inbox, bounded, check, excluded, whole
from starling.node.engine.exchange.terms import Terms
from starling.node.engine.exchange.transactions import fault_of, fault_of_ours
from starling.node.engine.outer_repair import OuterRepair
from starling.node.engine.threads import one_thread
from starling.node.rpc import calls


class Broadcasts:
    """Broadcast: one message to all members, and one of each member, per round. Satisfies `Exchange`."""

    def __init__(self, replica: Replica, site: Site, effort: Effort, terms: Terms, inbox: Inbox) -> None:
        self.replica, self.effort = replica, effort
        self._vectors, self._terms, self._inbox = site.vectors, terms, inbox
        self._codec = BroadcastCodec(terms.select(0, terms.form.dim), terms.codec.response)
        self._sent: Tensor | None = None  # (D,) this node's message of the round, as decoded
        self._payloads: dict[str, bytes] = {}  # payloads of the round by peer, ours included
        self._anchors: dict[str, bytes] = {}  # digests of outer parameters in received messages, by peer
        self._told: dict[int, bytes] = {}  # those in our own messages, by round
        self._late_differ = False  # whether a late message says other ones than ours of its round
        self._past = PastRounds(replica, self._decoded, DEPTH)
        self._repair = OuterRepair(replica, self._past)

    def handlers(self) -> Handlers:
        """Answer Publish, VerifyUpdate, VerifyEarlier, and the calls that replace outer parameters."""
        alone = one_thread()
        return {
            calls.Publish: alone(self.publish),
            calls.VerifyUpdate: alone(self.verify),
            calls.VerifyEarlier: alone(self.verify_earlier),
            **self._repair.handlers(),
        }

    def publish(self, call: calls.Publish) -> calls.Published:
        """Return the message from this node's outer parameters. Raises LocalProtocolError if our own numbers cannot be sent."""
        shared, dim = self._vectors.vector(""), self._terms.form.dim
        with fault_of_ours():
            anchor = self._past.publish(call.round)
            payload = self._codec.encode(shared, anchor)
            _, sent = self._codec.decode(payload, dim, self._terms.form.dtype)
            self._sent = bounded(sent).to(self._terms.form.device)
        self._payloads[self._terms.node] = payload
        keep(self._told, call.round, anchor, DEPTH + 1)
        return calls.Published(payload, digest(payload), self._codec.longest(dim))

    def verify(self, call: calls.VerifyUpdate) -> calls.Done:
        """Decode a peer's message and store it until Mix; a later one replaces it.

        Raises RemoteProtocolError if it is not whole and usable.
        """
        check(self._vectors, call)
        with fault_of(call.peer):
            anchor, vector = self._codec.decode(call.payload, self._terms.form.dim, self._terms.form.dtype)
            self._inbox.put(call.peer, bounded(vector))
        self._anchors[call.peer], self._payloads[call.peer] = anchor, call.payload
        return calls.Done()

    def verify_earlier(self, call: calls.VerifyEarlier) -> calls.Done:
        """Store a message of a round that is already mixed until the next Mix.

        Raises RemoteProtocolError if it is not whole and usable, LocalProtocolError if it is not missing or the round is closed.
        """
        whole(call)
        with fault_of(call.peer):
            self._past.add(call.round, call.peer, call.payload)
        self._late_differ |= parted(self._told.get(call.round, UNKNOWN), call.payload[:ANCHOR_BYTES])
        return calls.Done()

    def mix(self, frozen: Frozen, committed: Sequence[Committed], requested: Sequence[str], *, own: bool) -> Mixed:
        """Step along the sum of all messages, late ones for earlier rounds first; ours counts as zeros if none was sent."""
        number = frozen.phase.round
        self._past.repair()
        order = sorted({*requested, self._terms.node})
        messages, present = self._inbox.received(order)
        sent = torch.zeros_like(messages[0]) if self._sent is None else self._sent
        ours = order.index(self._terms.node)
        messages[ours], present[ours] = sent, self._sent is not None
        differ, diverged = self._repair.compare(number, self._anchors, len(order))
        self._past.mixed(number, order, self._payloads, differ=differ or self._late_differ)
        self.forget_all()
        shortened = self.replica.advance(frozen.vector, sent, messages, present, order, frozen.phase)
        self._past.ended()
        return Mixed(excluded(order, shortened, requested), diverged)

    def forget(self, peer: str) -> None:
        """Delete the message of a peer that is gone or banned."""
        self._inbox.pop(peer)
        self._anchors.pop(peer, None)
        self._payloads.pop(peer, None)

    def forget_all(self) -> None:
        self._inbox.clear()
        self._anchors.clear()
        self._payloads.clear()
        self._sent, self._late_differ = None, False

    def _decoded(self, payload: bytes) -> Tensor:
        _, vector = self._codec.decode(payload, self._terms.form.dim, self._terms.form.dtype)
        return bounded(vector)
