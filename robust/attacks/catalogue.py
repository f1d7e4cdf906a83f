"""All attacks by name. docs/attacks.md has a line on each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Generator, Tensor

from starling.gossip.catalogue import build
from starling.robust.attacks import broadcast, data, per_receiver, stealth, tracker, wire
from starling.robust.attacks.api import Attack, Scene, Target
from starling.robust.attacks.statistics import to_all

_AWAKE: Mapping[str, Callable[..., Attack]] = MappingProxyType(
    {
        "sign_flip": broadcast.SignFlip,
        "gaussian": broadcast.Gaussian,
        "zero": broadcast.Zero,
        "alie": stealth.Alie,
        "ipm": broadcast.ipm,
        "foe": broadcast.foe,
        "mimic": broadcast.Mimic,
        "min_max": stealth.MinMax,
        "min_sum": stealth.MinSum,
        "dissensus": per_receiver.Dissensus,
        "spectral": per_receiver.Spectral,
        "equivocation": per_receiver.Equivocation,
        "stale": broadcast.Stale,
        "free_rider": broadcast.FreeRider,
        "era": per_receiver.EdgeRiding,
        "era_max": per_receiver.EdgeRidingMax,
    }
)


@dataclass(frozen=True, slots=True)
class Sleeper:
    """Honest until a share of the run is over, then another attack: a good name is worth nothing. Honest for ever in a run without end.

    Args:
        attack: what it does then.
        after: share of the rounds, in [0, 1].
    """

    attack: Attack
    after: float
    targets: ClassVar[Target] = "vector"

    def __post_init__(self) -> None:
        if not 0.0 <= self.after <= 1.0:
            raise ValueError(f"after must be in [0, 1], got {self.after}")

    def tell(self, memory: Any, scene: Scene, chance: Generator) -> tuple[Tensor, Any]:
        """Its own vector, later the attack's."""
        if scene.rounds == 0 or scene.round < int(self.after * scene.rounds):
            return to_all(scene.own, scene), memory
        return self.attack.tell(memory, scene, chance)


def sleeper(attack: str = "foe", after: float = 0.5) -> Sleeper:
    """By name.

    Raises:
        ConfigError: no such attack on vectors.
    """
    return Sleeper(build("attack_params", _AWAKE, attack, {}), after)


ATTACKS: Mapping[str, Callable[..., Attack]] = MappingProxyType(
    {
        **_AWAKE,
        "sleeper": sleeper,
        "label_flip": data.LabelFlip,
        "backdoor": data.Backdoor,
        "clones": data.Clones,
        "tracker_const": tracker.TrackerConst,
        "tracker_neg": tracker.TrackerNeg,
        "tracker_rand": tracker.rand,
        "tracker_small": tracker.small,
        "tracker_one_shot": tracker.one_shot,
        "nan": wire.nan,
        "huge": wire.huge,
        "bomb": wire.bomb,
        "bad_indices": wire.bad_indices,
        "wrong_length": wire.wrong_length,
        "wrong_dtype": wire.wrong_dtype,
    }
)
