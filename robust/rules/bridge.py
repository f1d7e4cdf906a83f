"""BRIDGE: screen, then step.

Shapes: R rows, m vectors, D numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from starling.gossip.api import Combined
from starling.gossip.lazy_torch import Tensor
from starling.robust.rules.api import Combination, Context, nothing
from starling.robust.rules.coordinate import Median, TrimmedMean
from starling.robust.rules.krum import Bulyan, Krum
from starling.robust.rules.stack import Stack

SCREENS: Mapping[str, Callable[[int], Combination]] = MappingProxyType(
    {"trimmed_mean": TrimmedMean, "median": lambda _: Median(), "krum": Krum, "bulyan": Bulyan}
)
"""Those of BRIDGE-T, -M, -K and -B."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """R(our vector before the local steps; those of the peers) + our local steps, with R one of four rules.

    Unlike the others, our own step is never averaged. An absent peer's vector is ours before the steps.

    Source: Fang, Yang and Bajwa 2022, BRIDGE (arXiv:1908.08098). There peers too send what they had before their steps.

    Args:
        b: >= 0.
        which: trimmed_mean, median, krum or bulyan.
    """

    b: int
    which: str = "trimmed_mean"

    def __post_init__(self) -> None:
        if self.which not in SCREENS:
            raise ValueError(f"bridge: which must be one of {', '.join(SCREENS)}, got {self.which!r}")
        SCREENS[self.which](self.b)

    def tolerates(self, k: int) -> int:
        """b, of k >= 2b + 1 and of what R needs."""
        return min(self.b, SCREENS[self.which](self.b).tolerates(k)) if k > 2 * self.b else 0

    def start(self, own: Tensor) -> Tensor:
        """Nothing."""
        return nothing(own)

    def reduce(self, stack: Stack, context: Context) -> Combined:
        """(R, D), and nothing."""
        screened, kept, held = SCREENS[self.which](self.b).reduce(replace(stack, own=context.before), context)
        return screened.add_(context.own - context.before), kept, held
