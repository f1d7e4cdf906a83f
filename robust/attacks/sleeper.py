"""An attack that begins late, after its node has earned a good name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from starling.gossip.errors import ConfigError
from starling.gossip.lazy_torch import Generator, Tensor
from starling.robust.attacks.api import Attack, Scene, Target
from starling.robust.attacks.catalogue import ATTACKS
from starling.robust.attacks.statistics import to_all


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

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """Its own vector, later the attack's."""
        if scene.rounds == 0 or scene.round < int(self.after * scene.rounds):
            return to_all(scene.own, scene), memory
        return self.attack.craft(memory, scene, generator)


def sleeper(attack: str = "foe", after: float = 0.5) -> Sleeper:
    """By name.

    Raises:
        ConfigError: no such attack on vectors.
    """
    return Sleeper(_awake(attack), after)


def _awake(name: str) -> Attack:
    ATTACKS.check(name, "attack_params.attack")
    if name == "sleeper" or ATTACKS.facts(name).targets != "vector":
        raise ConfigError(f"attack_params.attack: must be another attack on vectors, got {name!r}; see docs/attacks.md")
    return ATTACKS.build("attack_params", name, {})
