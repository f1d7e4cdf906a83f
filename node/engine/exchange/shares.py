"""Share of the requested gain by which flows move at both ends: from `Agreed` or `Lesser`, chosen once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from starling.node.engine.exchange.api import Vectors

_ROUNDING = 1e-6  # relative rounding difference of a gain between two machines
_APART = 8  # rounds by which an honest initiator may differ from us in pace "clock"; in pace "steps" none

_LEAST = 1e-300  # to divide by

Gain = Callable[[float, int, int], float]
"""(local steps, round, members) -> this node's gain for an exchange."""


class Shares(Protocol):
    """Decides which share of a gain a responder accepts."""

    def of(self, requested: float, round: int, members: int, gain: Gain) -> float:
        """Return the share in [0, 1] that a responder accepts of the gain that an initiator requests in its round.

        Raises ValueError with a snake_case reason.
        """


@dataclass(frozen=True, slots=True)
class Agreed:
    """Share 1 for all: every node has the manifest's rates, and the gain must be that of the exchange's round."""

    vectors: Vectors

    def of(self, requested: float, round: int, members: int, gain: Gain) -> float:
        """Return 1. Raises ValueError: "gain_out_of_bounds"."""
        vectors = self.vectors
        credible = min(max(round, vectors.round - _APART), vectors.round + _APART)
        # In pace "clock" the initiator measures K: the gain is largest for K = 1.
        most = gain(1.0 if vectors.exclusive else vectors.local_steps, credible, 1)
        if not 0.0 <= requested <= most * (1.0 + _ROUNDING):
            raise ValueError("gain_out_of_bounds")
        return 1.0


@dataclass(frozen=True, slots=True)
class Lesser:
    """Each node has its own rates: both ends use the smaller gain, which is that of the larger K·η."""

    vectors: Vectors

    def of(self, requested: float, round: int, members: int, gain: Gain) -> float:
        """Return this node's gain as a share of the requested one, at most 1."""
        own = gain(self.vectors.local_steps, self.vectors.round, max(1, members))
        return min(1.0, own / max(requested, _LEAST))
