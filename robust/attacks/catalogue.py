"""All attacks by name. Torch-free; docs/attacks.md has a line on each."""

from __future__ import annotations

from dataclasses import dataclass

from starling.gossip.catalogue import Catalogue, Entry
from starling.robust.attacks.api import Attack, Target


@dataclass(frozen=True, slots=True)
class AttackFacts:
    """What is known of an attack without importing it.

    Args:
        targets: where it acts, as `Attack.targets`.
    """

    targets: Target = "vector"


ATTACKS: Catalogue[Attack, AttackFacts] = Catalogue(
    "attack",
    "starling.attacks",
    {
        "sign_flip": Entry("starling.robust.attacks.broadcast:SignFlip", AttackFacts("vector")),
        "gaussian": Entry("starling.robust.attacks.broadcast:Gaussian", AttackFacts("vector")),
        "zero": Entry("starling.robust.attacks.broadcast:Zero", AttackFacts("vector")),
        "alie": Entry("starling.robust.attacks.stealth:Alie", AttackFacts("vector")),
        "ipm": Entry("starling.robust.attacks.broadcast:ipm", AttackFacts("vector")),
        "foe": Entry("starling.robust.attacks.broadcast:foe", AttackFacts("vector")),
        "mimic": Entry("starling.robust.attacks.broadcast:Mimic", AttackFacts("vector")),
        "min_max": Entry("starling.robust.attacks.stealth:MinMax", AttackFacts("vector")),
        "min_sum": Entry("starling.robust.attacks.stealth:MinSum", AttackFacts("vector")),
        "dissensus": Entry("starling.robust.attacks.per_receiver:Dissensus", AttackFacts("vector")),
        "spectral": Entry("starling.robust.attacks.per_receiver:Spectral", AttackFacts("vector")),
        "sleeper": Entry("starling.robust.attacks.sleeper:sleeper", AttackFacts("vector")),
        "equivocation": Entry("starling.robust.attacks.per_receiver:Equivocation", AttackFacts("vector")),
        "stale": Entry("starling.robust.attacks.broadcast:Stale", AttackFacts("vector")),
        "free_rider": Entry("starling.robust.attacks.broadcast:FreeRider", AttackFacts("vector")),
        "era": Entry("starling.robust.attacks.per_receiver:EdgeRiding", AttackFacts("vector")),
        "era_max": Entry("starling.robust.attacks.per_receiver:EdgeRidingMax", AttackFacts("vector")),
        "label_flip": Entry("starling.robust.attacks.data:LabelFlip", AttackFacts("data")),
        "backdoor": Entry("starling.robust.attacks.data:Backdoor", AttackFacts("data")),
        "clones": Entry("starling.robust.attacks.data:Clones", AttackFacts("data")),
        "tracker_const": Entry("starling.robust.attacks.tracker:TrackerConst", AttackFacts("tracker")),
        "tracker_neg": Entry("starling.robust.attacks.tracker:TrackerNeg", AttackFacts("tracker")),
        "tracker_rand": Entry("starling.robust.attacks.tracker:rand", AttackFacts("tracker")),
        "tracker_small": Entry("starling.robust.attacks.tracker:small", AttackFacts("tracker")),
        "tracker_one_shot": Entry("starling.robust.attacks.tracker:one_shot", AttackFacts("tracker")),
        "nan": Entry("starling.robust.attacks.wire:nan", AttackFacts("wire")),
        "huge": Entry("starling.robust.attacks.wire:huge", AttackFacts("wire")),
        "bomb": Entry("starling.robust.attacks.wire:bomb", AttackFacts("wire")),
        "bad_indices": Entry("starling.robust.attacks.wire:bad_indices", AttackFacts("wire")),
        "wrong_length": Entry("starling.robust.attacks.wire:wrong_length", AttackFacts("wire")),
        "wrong_dtype": Entry("starling.robust.attacks.wire:wrong_dtype", AttackFacts("wire")),
    },
    AttackFacts(),
    members=("targets", "craft"),
)


def targeting(*targets: Target) -> tuple[str, ...]:
    """Names of the built-in attacks that act there."""
    return tuple(name for name in ATTACKS.built_in if ATTACKS.facts(name).targets in targets)
