"""What exchanges carry besides a difference: nothing, or the directions of both ends (`starling.gossip.mix.directions`).

Shapes: D numbers of the shared vector, k of one exchange.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, cast

from torch import Generator, Tensor

from starling.gossip.api import Drift, Effect, Tracking
from starling.gossip.compress.support import Blocks, Fragment, Full, Support
from starling.gossip.mix import directions, edge_ledger
from starling.gossip.mix.encoded_effects import EncodedEffect, decoded
from starling.gossip.replica import Replica
from starling.node.engine.exchange.api import Vectors
from starling.node.engine.exchange.terms import Terms

Misdirect = Callable[[Tensor, Tensor, Tensor | None, str], tuple[Tensor, Tensor, Tensor | None]]
"""(z (D,), N (1,), reach (1,) or None, peer) -> those to be sent."""


class Carried(NamedTuple):
    """What a payload carries besides: the bytes of z or u, and N or w'."""

    values: bytes
    number: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Of an answer about directions: the largest w' of an honest one, and how long its drift may make the flow."""

    weight: float = 0.0
    reach: float = math.inf


class Besides(Protocol):
    """What exchanges carry besides a difference."""

    def split(self, payload: bytes) -> tuple[bytes, Carried]:
        """Part what a payload says of the difference from what it carries besides. Raises ValueError with a snake_case reason."""

    def ask(self, payload: bytes, peer: str, support: Support, theta: float, chance: Generator) -> tuple[bytes, Limits]:
        """Initiator: add to a request -> the payload, and limits of what an honest responder may answer."""

    def answer(
        self, payload: bytes, carried: Carried, effect: Effect, chance: Generator, under_way: Sequence[Effect | EncodedEffect]
    ) -> tuple[bytes, Effect]:  # fmt: skip
        """Responder: add to a response -> the payload, and all of its effect. Raises ValueError with a snake_case reason.

        `under_way`: effects of pending answers to others that are anticipated.
        """

    def answered(self, carried: Carried, effect: Effect, limits: Limits) -> Effect:
        """Initiator: return all of a response's effect. Raises ValueError with a snake_case reason."""

    def told(self, carried: Carried, support: Support) -> Tensor | None:
        """Return z (k,) of a request, if there is one. Raises ValueError with a snake_case reason."""


class DifferencesOnly:
    """Nothing."""

    def split(self, payload: bytes) -> tuple[bytes, Carried]:
        """Return the payload."""
        return payload, Carried(b"", 0.0)

    def ask(self, payload: bytes, peer: str, support: Support, theta: float, chance: Generator) -> tuple[bytes, Limits]:
        """Add nothing."""
        return payload, Limits()

    def answer(
        self, payload: bytes, carried: Carried, effect: Effect, chance: Generator, under_way: Sequence[Effect | EncodedEffect]
    ) -> tuple[bytes, Effect]:  # fmt: skip
        """Add nothing."""
        return payload, effect

    def answered(self, carried: Carried, effect: Effect, limits: Limits) -> Effect:
        """Return the effect."""
        return effect

    def told(self, carried: Carried, support: Support) -> Tensor | None:
        """Return nothing."""
        return None


class Directions:
    """A direction of each end, whose difference moves flows as well. `misdirect`: what a Byzantine node sends instead."""

    def __init__(self, replica: Replica, vectors: Vectors, terms: Terms, misdirect: Misdirect | None) -> None:
        self._replica, self._vectors, self._terms, self._misdirect = replica, vectors, terms, misdirect
        self._edge = cast("Tracking", replica.mixer.edge)

    def split(self, payload: bytes) -> tuple[bytes, Carried]:
        """Part them."""
        rest, values, number = directions.split(payload)
        return rest, Carried(values, number)

    def ask(self, payload: bytes, peer: str, support: Support, theta: float, chance: Generator) -> tuple[bytes, Limits]:
        """Add our direction."""
        own = self._own(peer, support, ())
        payload = directions.ask(self._terms.codec, payload, own, self._terms.form.dim, chance)
        return payload, Limits(theta if own.z is not None else 0.0, own.reach)

    def told(self, carried: Carried, support: Support) -> Tensor | None:
        """Return an initiator's direction."""
        return self._theirs(carried, support).z

    def _theirs(self, carried: Carried, support: Support) -> directions.Direction:
        terms, limited = self._terms, self._edge.reach(self._replica.state) is not None
        return directions.asked(terms.codec, *carried, support, terms.form.dim, terms.form.dtype, limited=limited)

    def answer(
        self, payload: bytes, carried: Carried, effect: Effect, chance: Generator, under_way: Sequence[Effect | EncodedEffect]
    ) -> tuple[bytes, Effect]:  # fmt: skip
        """Add the difference of both directions, as far as it is applied."""
        own = self._own(effect.peer, effect.support, under_way)
        known = self._theirs(carried, effect.support)
        held = self._held(effect).opposite() if known.reach < math.inf else None
        payload, drift = directions.answer(
            self._terms.codec, payload, own, known, effect.support, effect.theta, self._terms.form.dim, chance, held
        )
        return payload, effect if drift is None else self._moved(effect, drift.value.neg_(), drift.weight)

    def answered(self, carried: Carried, effect: Effect, limits: Limits) -> Effect:
        """Return the effect on the vector and on the flow."""
        terms, held = self._terms, self._held(effect) if limits.reach < math.inf else None
        drift = directions.answered(
            terms.codec, *carried, effect.support, limits.weight, terms.form.dim, terms.form.dtype, held, limits.reach
        )
        return effect if drift is None else self._moved(effect, drift.value, drift.weight)

    def _moved(self, effect: Effect, u: Tensor, weight: float) -> Effect:
        return replace(effect, drift=Drift(self._terms.form.ours(u), weight))

    def _own(
        self, peer: str, support: Support, under_way: Sequence[Effect | EncodedEffect]
    ) -> directions.Direction:  # fmt: skip
        """Ours as it is after the commits of what is under way with others."""
        moving = [done for done in under_way if edge_ledger.moves(done)]
        if isinstance(support, Blocks | Fragment) and not moving and self._misdirect is None:
            return self._part(support)
        state = self._replica.state
        z, noise = self._edge.direction(state)
        for done in moving:
            z[done.support.index(self._terms.form.dim)] -= edge_ledger.anticipated(
                self._edge, self._replica.memory.ledger, decoded(done)
            )
        reach = self._edge.reach(state)
        if self._misdirect is not None:
            z, noise, reach = self._misdirect(z, noise, reach, peer)
        return directions.on(support, z, noise, reach)

    def _part(self, support: Blocks | Fragment) -> directions.Direction:
        """Bit for bit that part of the whole direction, computed on the support alone: the whole one would take another vector."""
        state = self._replica.state
        part = replace(state, mean=support.take(state.mean), c=support.take(state.c))
        z, noise = self._edge.direction(part)
        return directions.on(Full(), z, noise, self._edge.reach(state))

    def _held(self, effect: Effect) -> directions.Held:
        """Our flow of an edge, after all of an effect but its drift, those that are committed and not in the flows yet included."""
        earlier = [
            decoded(cast("Effect | EncodedEffect", done)) for done in self._vectors.unbooked if done.peer == effect.peer
        ]
        flow, rest = edge_ledger.held(self._edge, self._replica.memory.ledger, effect, earlier)
        return directions.Held(flow.cpu(), rest)
