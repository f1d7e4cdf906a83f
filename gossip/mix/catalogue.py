"""Mixing algorithms by name. Torch-free: a manifest is checked by what this table says."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import TypeIs

from starling.gossip.api import Averaging, Gathering, Mixer, Swapping
from starling.gossip.catalogue import Catalogue, Entry


@dataclass(frozen=True, slots=True)
class MixerFacts:
    """What is known of a mixing algorithm without building it. A test compares the table with the algorithms.

    Args:
        asynchronous: may run in clock pace.
        static: needs one symmetric mixing matrix that never changes.
        swaps: ends send messages of their own instead of applying one difference.
        exact: messages must arrive as they are: no lossy codec, no mask.
        gathers: nodes ask peers for their vectors and combine them by a rule.
        symmetric: both ends must give a link the same weight.
        rated: divides by the rate of the local optimiser, which adamw does not know by itself.
    """

    asynchronous: bool = False
    static: bool = False
    swaps: bool = False
    exact: bool = False
    gathers: bool = False
    symmetric: bool = False
    rated: bool = False


MIXERS: Catalogue[Mixer, MixerFacts] = Catalogue(
    "mix.kind",
    "starling.mixers",
    {
        "pet": Entry("starling.gossip.mix.pet:Pet", MixerFacts(asynchronous=True, rated=True)),
        "dsgd": Entry("starling.gossip.mix.dsgd:dsgd", MixerFacts(asynchronous=True)),
        "gradient_tracking": Entry(
            "starling.gossip.mix.gradient_tracking:gradient_tracking", MixerFacts(asynchronous=True)
        ),
        "k_gt": Entry("starling.gossip.mix.k_gt:KGt", MixerFacts(rated=True)),
        "quasi_global": Entry("starling.gossip.mix.quasi_global:QuasiGlobal", MixerFacts(rated=True)),
        "exact_diffusion": Entry("starling.gossip.mix.exact_diffusion:exact_diffusion", MixerFacts(static=True)),
        "d2": Entry("starling.gossip.mix.exact_diffusion:d2", MixerFacts(static=True)),
        "a2cid2": Entry("starling.gossip.mix.a2cid2:A2Cid2", MixerFacts(asynchronous=True)),
        "choco": Entry("starling.gossip.mix.dsgd:choco", MixerFacts(static=True, swaps=True)),
        "beer": Entry("starling.gossip.mix.gradient_tracking:beer", MixerFacts(static=True, swaps=True)),
        "push_sum": Entry(
            "starling.gossip.mix.push_sum:PushSum", MixerFacts(asynchronous=True, swaps=True, exact=True)
        ),
        "r_fast": Entry("starling.gossip.mix.r_fast:r_fast", MixerFacts(asynchronous=True, swaps=True, exact=True)),
        "psgd": Entry("starling.gossip.mix.all_gather:psgd", MixerFacts(static=True, swaps=True)),
        "outer": Entry("starling.gossip.mix.outer:Outer", MixerFacts()),
        "gather": Entry("starling.gossip.mix.gather:Gather", MixerFacts(gathers=True)),
        "defended_tracking": Entry(
            "starling.gossip.mix.defended_tracking:DefendedTracking", MixerFacts(swaps=True, exact=True, symmetric=True)
        ),
    },
    MixerFacts(),
    members=("edge", "size", "start", "correct", "publish", "shared", "absorb", "corrected"),
)


def swaps(edge: Averaging | Swapping | Gathering) -> TypeIs[Swapping]:
    """Whether ends swap messages of their own instead of applying one difference."""
    return hasattr(edge, "message")


def gathers(edge: Averaging | Swapping | Gathering) -> TypeIs[Gathering]:
    """Whether nodes ask peers for their vectors and combine what they were told."""
    return hasattr(edge, "rule")
