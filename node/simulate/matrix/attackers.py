"""Bad rows of a simulation: what an attack of `starling.robust.attacks` makes them tell, and learn from.

Attackers know everything: all honest vectors and gradients of the round, before they speak, and each other's.

Shapes: N rows, d parameters, D numbers of the shared vector, m samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from starling.gossip.api import Mixer
from starling.gossip.errors import ConfigError
from starling.gossip.mix.defended_tracking import DefendedTracking
from starling.gossip.mix.gather import Gather
from starling.gossip.rng import generator
from starling.node.simulate.matrix.byzantine import Seen
from starling.node.simulate.schema import AttackSection
from starling.node.tasks.api import Data
from starling.node.tasks.labelled import Batch, LabelledData
from starling.robust.attacks.api import Attack, Poison, Scene
from starling.robust.attacks.catalogue import ATTACKS
from starling.robust.attacks.data import Backdoor, Clones, LabelFlip
from starling.robust.rules.api import Composed
from starling.robust.rules.clipping import Sac

_CLAIM = 1e9  # gradients that nobody has: a threshold that minds only what others claim is none


def attack(section: AttackSection) -> Attack | None:
    """What bad rows do; None: they behave.

    Raises:
        ConfigError: a parameter that the attack does not take, or refuses.
    """
    return ATTACKS.build("attack.params", section.kind, section.params, trusted=True) if section.kind else None


@dataclass(slots=True)
class Crew:
    """Satisfies `starling.node.simulate.matrix.byzantine.Liars`.

    Args:
        attack: what they do.
        bad: (N,) who they are.
        start: (D,) the shared vector that all began with.
        dim: d: models are the first d numbers of a shared vector, a tracker the next d, and then come norms, which who lies about
            its tracker claims to be huge.
        rounds: of the run.
        seed: of their chance.
        gradients: () -> (N, d) those of everybody's last local step.
        tau: rows -> (r,) the thresholds that their rules had last, or None.
    """

    attack: Attack
    bad: NDArray[np.bool_]
    start: Tensor
    dim: int
    rounds: int
    seed: int
    gradients: Callable[[], Tensor]
    tau: Callable[[Sequence[int]], Tensor | None]
    _memory: dict[int, Any] = field(default_factory=dict)

    def tell(self, seen: Seen, liar: int, receivers: Sequence[int]) -> Tensor | None:
        """What `liar` tells each of `receivers`, (r, D)."""
        tracker = self.attack.targets == "tracker"
        part = slice(self.dim, 2 * self.dim) if tracker else slice(0, self.dim)
        now = seen.now[:, part]
        honest, crew = (torch.from_numpy(np.flatnonzero(seen.alive & who)) for who in (~self.bad, self.bad))
        asking, gradients = torch.tensor(receivers), self.gradients()[honest]
        scene = Scene(
            own=now[liar], before=seen.before[liar, part], start=self.start[part], honest=now[honest], members=honest,
            receivers=now[asking], index=asking, gradient=gradients.mean(0), round=seen.round, rounds=self.rounds,
            bad=int(self.bad.sum()), nodes=len(self.bad), seed=self.seed,
            tau=self.tau(receivers), crew=now[crew], gradients=gradients,
        )  # fmt: skip
        chance = generator(self.seed, "attack", liar, seen.round)
        lies, self._memory[liar] = self.attack.craft(self._memory.get(liar), scene, chance)
        message = seen.now[liar].expand(len(receivers), -1).clone()
        message[:, part] = lies
        if tracker:
            message[:, 2 * self.dim :] = _CLAIM
        return message


def thresholds(mixer: Mixer, state: Any, rows: Sequence[int]) -> Tensor | None:
    """(r,) up to where the rules of some rows let pass whole what they are told, by their last round; None: that has no name.

    Args:
        mixer: all rows'.
        state: of all rows.
        rows: whose.
    """
    match mixer:
        case Gather(rule=Composed(rule=Sac(kappa=kappa))):
            steps: Tensor = state.kept[list(rows), 0]
            return kappa * steps
        case DefendedTracking(step_clip=kappa) if kappa:
            ours: Tensor = state.step[list(rows), 0]
            return kappa * ours
    return None


@dataclass(frozen=True, slots=True)
class Poisoned:
    """Labelled samples as an attacker learns from them; satisfies `starling.node.tasks.api.Data`."""

    data: LabelledData
    attack: Poison
    classes: int

    @property
    def samples(self) -> int:
        """Training samples held here."""
        return self.data.samples

    def batch(self, size: int, generator: torch.Generator) -> Batch:
        """Drawn as by the honest, then poisoned."""
        return self.attack.poison(*self.data.batch(size, generator), self.classes)

    def held_out(self, size: int) -> Iterator[Batch]:
        """The test split as it is."""
        return self.data.held_out(size)


def poisoned(attack: Attack, bad: NDArray[np.bool_], data: Sequence[Data]) -> list[Data]:
    """Each row's data, those of bad rows as the attack wants them.

    Raises:
        ConfigError: the attack needs labels that are not there, or names a class that is not.
    """
    if attack.targets != "data":
        return list(data)
    given: list[Data] = []
    for row, own in enumerate(data):
        if not bad[row]:
            given.append(own)
            continue
        if not isinstance(own, LabelledData):
            raise ConfigError(
                "attack.kind: poisons labels, which this task's samples have not; try `--set task.kind=digits`"
            )
        classes = int(torch.cat((own.y, own.test_y)).max()) + 1
        changed = Poisoned(own, cast("Poison", attack), classes)
        try:
            changed.batch(1, generator(0, "poison"))
        except ValueError as error:
            raise ConfigError(f"attack.params: {error}") from error
        given.append(changed)
    return given


Hits = Callable[[nn.Module, Any], tuple[int, int]]
"""A model and a held-out batch -> how often it does what an attack wants, and of how many samples."""


def success(attack: Attack) -> Hits | None:
    """What is counted of an attack on some samples.

    Of triggered samples of other classes, how many are named the target; of a source class, how many. None: the attack has no such aim.
    """
    match attack:
        case Backdoor(target=target):
            trigger: Backdoor | None = attack
            source = -1
        case LabelFlip(source=source, target=target) | Clones(source=source, target=target) if source >= 0:
            trigger = None
        case _:
            return None

    def hits(model: nn.Module, batch: Batch) -> tuple[int, int]:
        x, y = batch
        which = y != target if trigger is not None else y == source
        if not bool(which.any()):
            return 0, 0
        x = x[which]
        named = model(x if trigger is None else trigger.triggered(x, len(x))).argmax(dim=1)
        return int((named == target).sum()), len(x)

    return hits
