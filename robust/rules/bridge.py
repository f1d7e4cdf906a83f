"""BRIDGE: combine the vectors before the local steps, then add our own steps."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from starling.gossip.api import Combined
from starling.gossip.bounds import parameters
from starling.robust.rules.api import Combination, Context, Tolerant
from starling.robust.rules.coordinate import Median, TrimmedMean
from starling.robust.rules.selection import Bulyan, Krum
from starling.robust.rules.stack import Stack

SCREENS: Mapping[str, Callable[[int], Combination]] = MappingProxyType(
    {"trimmed_mean": TrimmedMean, "median": lambda _: Median(), "krum": Krum, "bulyan": Bulyan}
)
"""The rules of BRIDGE-T, -M, -K and -B."""


@parameters
class Bridge(Tolerant):
    """R(our vector before the local steps; those of the peers) + our local steps, with R one of four rules.

    Unlike with other rules our own steps are never averaged. An absent peer counts as our vector before the steps.

    Source: Fang, Yang and Bajwa 2022, BRIDGE (arXiv:1908.08098). There peers too send their vectors before their steps.

    Args:
        which: trimmed_mean, median, krum or bulyan.
    """

    which: Literal["trimmed_mean", "median", "krum", "bulyan"] = "trimmed_mean"

    def reduce(self, stack: Stack, context: Context) -> Combined:
        screened, state, excluded = SCREENS[self.which](self.f).reduce(replace(stack, own=context.before), context)
        return screened.add_(context.own - context.before), state, excluded
