"""All attacks by name. Torch-free; docs/attacks.md has a line on each."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from starling.gossip.catalogue import Catalogue, Entry
from starling.robust.attacks.api import Attack, Target


@dataclass(frozen=True, slots=True)
class AttackFacts:
    """Facts about an attack that are known without importing it.

    Args:
        targets: where it acts, as `Attack.targets`.
    """

    targets: Target = "vector"


_WHERE: Mapping[Target, Mapping[str, str]] = MappingProxyType(
    {
        "vector": {
            "sign_flip": "broadcast:sign_flip",
            "gaussian": "broadcast:gaussian",
            "zero": "broadcast:zero",
            "alie": "stealth:alie",
            "ipm": "broadcast:ipm",
            "foe": "broadcast:foe",
            "mimic": "broadcast:Mimic",
            "min_max": "stealth:min_max",
            "min_sum": "stealth:min_sum",
            "dissensus": "per_receiver:dissensus",
            "spectral": "per_receiver:spectral",
            "sleeper": "broadcast:sleeper",
            "equivocation": "per_receiver:equivocation",
            "stale": "broadcast:Stale",
            "free_rider": "broadcast:free_rider",
            "era": "per_receiver:edge_riding",
            "era_max": "per_receiver:edge_riding_max",
        },
        "data": {"label_flip": "data:LabelFlip", "backdoor": "data:Backdoor", "clones": "data:Clones"},
        "tracker": {
            "tracker_const": "tracker:constant",
            "tracker_neg": "tracker:negative",
            "tracker_rand": "tracker:rand",
            "tracker_small": "tracker:small",
            "tracker_one_shot": "tracker:one_shot",
        },
        "memory": {"memory_reversed": "memory:Reversed"},
        "wire": {
            "nan": "wire:nan",
            "huge": "wire:huge",
            "bomb": "wire:bomb",
            "bad_indices": "wire:bad_indices",
            "wrong_length": "wire:wrong_length",
            "wrong_dtype": "wire:wrong_dtype",
        },
    }
)
ATTACKS: Catalogue[Attack, AttackFacts] = Catalogue(
    "attack",
    "starling.attacks",
    {
        name: Entry(f"starling.robust.attacks.{where}", AttackFacts(target))
        for target, names in _WHERE.items()
        for name, where in names.items()
    },
    AttackFacts(),
    members=("targets", "craft"),
)
