"""Exchanges in which each node pulls the vectors of its peers and combines what it has by a rule.

Shapes: D numbers of the shared vector.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from starling.gossip.compress import codec
from starling.gossip.compress.budget import Effort
from starling.gossip.compress.header import HEADER, Kind
from starling.gossip.compress.support import Full
from starling.gossip.edge_memory import Committed
from starling.gossip.errors import LocalProtocolError
from starling.gossip.exchange.attestation import digest
from starling.gossip.mix.gather import message_seed
from starling.gossip.replica import Replica
from starling.node.engine.exchange.api import Frozen, Handlers, Mixed, Site
from starling.node.engine.exchange.pulled import LARGEST, Inbox, bounded, check, excluded
from starling.node.engine.exchange.terms import Terms
from starling.node.engine.exchange.transactions import fault_of, fault_of_ours
from starling.node.engine.threads import one_thread
from starling.node.rpc import calls


class Gathers:
    """Gathering: this node's vector for all peers, and each peer's vector, per round. Satisfies `Exchange`."""

    def __init__(self, replica: Replica, site: Site, effort: Effort, terms: Terms, inbox: Inbox) -> None:
        self.replica, self.effort = replica, effort
        self._site, self._terms, self._inbox = site, terms, inbox

    def handlers(self) -> Handlers:
        """Answer Publish and VerifyUpdate."""
        return {calls.Publish: one_thread()(self.publish), calls.VerifyUpdate: one_thread()(self.verify)}

    def publish(self, call: calls.Publish) -> calls.Published:
        """Return our whole vector, rounded reproducibly. Raises LocalProtocolError if our own numbers cannot be sent."""
        shared = self._site.vectors.vector("")
        chance = torch.Generator().manual_seed(message_seed(self._terms.seed, self._terms.node, call.round))
        if not bool((shared.abs() <= LARGEST).all()):
            raise LocalProtocolError("our own numbers cannot be sent: not_finite or too_large")
        with fault_of_ours():
            payload = self._terms.codec.encode_message(shared, Full(), chance)
        return calls.Published(payload, digest(payload))

    def verify(self, call: calls.VerifyUpdate) -> calls.Done:
        """Decode a peer's vector and store it until Mix, whichever round it is from; a later one replaces it.

        Raises RemoteProtocolError if it is not whole and usable.
        """
        check(self._site.vectors, call)
        with fault_of(call.peer):
            self._inbox.put(call.peer, self._decode(call.payload))
        return calls.Done()

    def mix(self, frozen: Frozen, committed: Sequence[Committed], requested: Sequence[str], *, own: bool) -> Mixed:
        """Combine the vectors of the `requested` peers with ours by the rule.

        If not `own`, the node's model is stale: the first received vector is used instead of it.
        """
        order = sorted(requested)
        received, present = self._inbox.received(requested)
        self._inbox.clear()
        self._site.distances.record_vectors(order, received, present, self.replica.shared())
        vector, replaced = self.replica.shared(), bool(order) and not own
        if replaced:
            order, vector, received = order[1:], received[0], received[1:]
            present = torch.ones(len(received), dtype=torch.bool, device=received.device)
        bad = self.replica.gather(vector, order, received, present, self._site.losses, frozen.phase)
        return Mixed(excluded(order, bad, requested), replaced=replaced)

    def forget(self, peer: str) -> None:
        """Delete the vector of a peer that is gone or banned."""
        self._inbox.pop(peer)

    def forget_all(self) -> None:
        self._inbox.clear()

    def _decode(self, payload: bytes) -> Tensor:
        if len(payload) < HEADER.size or payload[1] != Kind.FULL:  # checked before anything is allocated
            raise ValueError("not_whole")
        terms = self._terms
        _, values = codec.decode(payload, terms.form.dim, terms.form.dtype, (terms.codec.response,), device=terms.form.device)
        return bounded(values).reshape(terms.form.dim)
