"""A Byzantine node's exchanges, for experiments: an adversary between an honest node and its peers.

The node trains like every other, and an exchange changes its own model as an honest exchange would have.

Shapes: D numbers of the shared vector, k of one exchange.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import structs
from torch import Tensor

from starling.gossip.api import Swapped
from starling.gossip.compress.support import Support
from starling.gossip.edge_memory import Committed
from starling.gossip.exchange.attestation import digest
from starling.gossip.mix.encoded_effects import decoded
from starling.gossip.replica import Replica
from starling.node.engine.drift import Drift
from starling.node.engine.exchange.adversary import Adversary
from starling.node.engine.exchange.api import Exchange, Frozen, Handlers, Mixed, T, Vectors
from starling.node.rpc import calls

Answer = Callable[[Any], Any]


class ForgedVectors:
    """Vectors that a Byzantine node sends, with the effects that honest exchanges would have had on it. Satisfies `Vectors`."""

    def __init__(self, vectors: Vectors, adversary: Adversary) -> None:
        self._vectors, self._adversary = vectors, adversary
        self.examine = vectors.examine
        self.taken: Committed | None = None  # effect of the last exchange

    @property
    def round(self) -> int:
        return self._vectors.round

    @property
    def ready(self) -> bool:
        return self._vectors.ready

    @property
    def exclusive(self) -> bool:
        return self._vectors.exclusive

    @property
    def drift(self) -> Drift:
        return self._vectors.drift

    @property
    def local_steps(self) -> float:
        return self._vectors.local_steps

    def vector(self, peer: str) -> Tensor:
        """Return a forged vector (D,) for a peer."""
        return self._adversary.forge(self._vectors.vector(peer), self._vectors.round, peer)

    def take(self, done: Committed) -> None:
        """Add the effect of the honest exchange."""
        self.taken = self._adversary.correct(done if isinstance(done, Swapped) else decoded(done))
        self._vectors.take(self.taken)

    def under_way(self, others: Sequence[T]) -> Sequence[T]:
        return self._vectors.under_way(others)


SentValues = tuple[Support, Tensor | None] | None


@dataclass(frozen=True, slots=True)
class Overheard:
    """How an adversary reads one kind of exchange."""

    values: Callable[[calls.Answer], SentValues] = lambda _: None
    """(k,) of the initiator's vector on a support, as its request tells them. Raises ValueError if it cannot be decoded."""
    vectors: Callable[[Sequence[str]], Mapping[str, Tensor]] = lambda _: {}
    """The vector (D,) of each requested peer that answered, in order of peer id."""
    outcome: Callable[[Any], calls.Done] = lambda _: calls.Done()
    """Report of an effect to the daemon."""


class Byzantine:
    """Exchanges with an adversary between them and the peers. Satisfies `Exchange`."""

    def __init__(self, exchange: Exchange, adversary: Adversary, vectors: ForgedVectors, overheard: Overheard) -> None:
        """Wrap `exchange`; `vectors` are those that it was made with."""
        self.effort = exchange.effort
        self._exchange, self._adversary, self._vectors, self._overheard = exchange, adversary, vectors, overheard
        self._told = overheard.values

    @property
    def replica(self) -> Replica:
        return self._exchange.replica

    def handlers(self) -> Handlers:
        """Return handlers that answer like the exchange, forged by the adversary."""
        around: dict[type[calls.Call], Callable[[Answer, Any], Any]] = {
            calls.Publish: self._publish,
            calls.Offer: self._offer,
            calls.Answer: self._answer,
            calls.Apply: self._take,
            calls.Commit: self._take,
        }
        honest = self._exchange.handlers()
        return {kind: partial(around[kind], it) if kind in around else it for kind, it in honest.items()}

    def mix(self, frozen: Frozen, committed: Sequence[Committed], requested: Sequence[str], *, own: bool) -> Mixed:
        """Combine; the attacker then knows what it received."""
        for peer, vector in self._overheard.vectors(requested).items():
            self._adversary.record(peer, vector)
        mixed = self._exchange.mix(frozen, committed, requested, own=own)
        self._adversary.start_round(self.replica.shared())
        return mixed

    def forget(self, peer: str) -> None:
        """Delete a peer's pending state; knowledge of it stays."""
        self._exchange.forget(peer)

    def forget_all(self) -> None:
        """Delete the pending state of all peers."""
        self._exchange.forget_all()

    def _publish(self, honest: Answer, call: calls.Publish) -> calls.Published:
        """Return a forged vector, with the digest of the sent bytes: an attacker signs what it sends."""
        published: calls.Published = honest(call)
        reply = self._adversary.distort(published)
        return structs.replace(reply, digest=digest(reply.payload))

    def _offer(self, honest: Answer, call: calls.Offer) -> calls.Offered:
        """Initiator: offer forged values."""
        offered: calls.Offered = honest(call)
        return self._adversary.distort(offered)

    def _answer(self, honest: Answer, call: calls.Answer) -> calls.Answered:
        """Responder: answer with a forged difference, made once the request is known. One that cannot be decoded is refused."""
        with suppress(ValueError):
            if (told := self._told(call)) is not None and told[1] is not None:
                self._adversary.record_values(call.peer, told[0], told[1])
        answered: calls.Answered = honest(call)
        return self._adversary.distort(answered)

    def _take(self, honest: Answer, call: calls.Apply | calls.Commit) -> calls.Done:
        """Return the effect of the honest exchange, and its report to the daemon."""
        honest(call)
        return self._overheard.outcome(self._vectors.taken)
