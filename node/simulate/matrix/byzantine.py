"""Byzantine rows: the messages that an attack of `starling.robust.attacks` makes them send, and their knowledge.

Attackers know everything: all honest vectors and gradients of the round, before they send, and each other's. Where messages are gathered
an attacker sends each receiver something else. Where both ends apply one difference, or swap messages, it acts as if its vector were
another, which for one round is one: made for the first of those it exchanges with. Otherwise it behaves as honest nodes do; what a
swap does to itself it computes from its true vector.

Shapes: N rows, d parameters, D numbers of the shared vector, r receivers, m samples.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from starling.gossip.api import Mixer, Quantizer
from starling.gossip.errors import ConfigError
from starling.gossip.mix.defended_tracking import DefendedTracking
from starling.gossip.mix.gather import Gather
from starling.gossip.mix.memories import Forged
from starling.gossip.rng import generator
from starling.node.simulate.matrix.batch import Batch
from starling.node.simulate.matrix.table import through
from starling.node.simulate.schema import AttackSection
from starling.node.tasks.api import Data
from starling.node.tasks.labelled import Batch as Samples
from starling.node.tasks.labelled import LabelledData, Poisoned
from starling.robust.attacks.api import Attack, Poison, Scene
from starling.robust.attacks.catalogue import ATTACKS
from starling.robust.attacks.data import Backdoor, Clones, LabelFlip
from starling.robust.attacks.memory import Reversed
from starling.robust.rules.api import Composed
from starling.robust.rules.clipping import Sac

_CLAIM = 1e9  # a norm that no gradient has, so that a threshold from peers' claims alone does not bind
_LARGEST = 1e12  # largest number in a vector that nodes accept


def attack(section: AttackSection) -> Attack | None:
    """Return the attack of Byzantine rows; None: they behave. Raises ConfigError: a parameter that the attack does not take."""
    return ATTACKS.build("attack.params", section.kind, section.params, trusted=True) if section.kind else None


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A moment at which messages are made, as attackers see it."""

    round: int
    before: Tensor  # (N, D) vectors before the local steps
    now: Tensor  # (N, D) after them; only rows alive mean anything
    alive: NDArray[np.bool_]  # (N,)


@dataclass(slots=True)
class Byzantine:
    """The attackers of a swarm."""

    attack: Attack
    rows: NDArray[np.bool_]  # (N,) true for Byzantine rows
    start: Tensor  # (D,) the shared vector that all began with
    # d: a shared vector is a model (d), then perhaps a tracker (d) and norms, which an attacker on trackers claims to be huge
    dim: int
    rounds: int
    seed: int
    gradients: Callable[[], Tensor]  # () -> (N, d) gradients of all last local steps
    tau: Callable[[Sequence[int]], Tensor | None]  # rows -> (r,) the last thresholds of their rules, or None
    _memory: dict[int, Any] = field(default_factory=dict)

    def messages(self, view: View, attacker: int, receivers: Sequence[int]) -> Tensor:
        """Return (r, D): what `attacker` sends each of `receivers`."""
        tracker = self.attack.targets == "tracker"
        part = slice(self.dim, 2 * self.dim) if tracker else slice(0, self.dim)
        now = view.now[:, part]
        honest, crew = (torch.from_numpy(np.flatnonzero(view.alive & who)) for who in (~self.rows, self.rows))
        index, gradients = torch.tensor(receivers), self.gradients()[honest]
        scene = Scene(
            own=now[attacker],
            before=view.before[attacker, part],
            start=self.start[part],
            honest=now[honest],
            members=honest,
            receivers=now[index],
            index=index,
            gradient=gradients.mean(0),
            round=view.round,
            rounds=self.rounds,
            attackers=int(self.rows.sum()),
            nodes=len(self.rows),
            seed=self.seed,
            tau=self.tau(receivers),
            crew=now[crew],
            gradients=gradients,
        )
        rng = generator(self.seed, "attack", attacker, view.round)
        crafted, self._memory[attacker] = self.attack.craft(self._memory.get(attacker), scene, rng)
        message = view.now[attacker].expand(len(receivers), -1).clone()
        message[:, part] = crafted
        if tracker:
            message[:, 2 * self.dim :] = _CLAIM
        return message


def transmitted(messages: Tensor, quantizer: Quantizer, generators: Sequence[Generator]) -> tuple[Tensor, Tensor]:
    """Messages (r, D) as they arrive, and (r,) bool which do: no node accepts what is not finite, or larger than any model."""
    valid = _valid(messages)
    arrived = torch.zeros_like(messages)
    if bool(valid.any()):
        used = [each for each, sent in zip(generators, valid.tolist(), strict=True) if sent]
        arrived[valid] = through(quantizer, messages[valid], used)
    return arrived, valid & _valid(arrived)


def _valid(messages: Tensor) -> Tensor:
    return (messages.abs() <= _LARGEST).all(dim=1)


def falsified(batch: Batch, byzantine: Byzantine, view: View, rank: NDArray[np.int64], quantizer: Quantizer) -> Batch:
    """Return the batch with attackers' messages instead of their own vectors. An exchange whose message a receiver refuses is lost.

    `rank` (N,) is the place of each row in the order of peer ids, `quantizer` that of requests.
    """
    initiators, responders = (vectors.clone() for vectors in batch.read)
    lost = batch.lost.copy()
    for attacker, honest in _met(batch, byzantine):
        messages = byzantine.messages(view, attacker, [min(honest, key=lambda row: int(rank[row]))])
        if bool(transmitted(messages, quantizer, [generator(0)])[1]):
            row = int(np.searchsorted(batch.rows, attacker))
            initiators[row] = responders[row] = messages[0]
        else:
            lost[list(honest.values())] = True
    return replace(batch, read=(initiators, responders), lost=lost)


def _met(batch: Batch, byzantine: Byzantine) -> list[tuple[int, dict[int, int]]]:
    """Yield each attacker with a dict of honest rows that it exchanges with -> place of the exchange."""
    met: dict[int, dict[int, int]] = {}
    for place, (i, j) in enumerate(batch.pairs):
        if byzantine.rows[i] != byzantine.rows[j]:
            attacker, other = (i, j) if byzantine.rows[i] else (j, i)
            met.setdefault(attacker, {})[other] = place
    return sorted(met.items())


def thresholds(mixer: Mixer, state: Any, rows: Sequence[int]) -> Tensor | None:
    """Return (r,), the distances up to which the rules of some rows did not clip in their last round; None: they have no such threshold."""
    match mixer:
        case Gather(rule=Composed(rule=Sac(kappa=kappa))):
            steps: Tensor = state.kept[list(rows), 0]
            return kappa * steps
        case DefendedTracking(step_clip=kappa) if kappa:
            ours: Tensor = state.step[list(rows), 0]
            return kappa * ours
    return None


def poisoned(attack: Attack, rows: NDArray[np.bool_], data: Sequence[Data]) -> list[Data]:
    """Return each row's data; that of `rows` (N,) is poisoned if the attack targets data.

    Raises ConfigError: the attack needs labels that are not there, or names a class that is not.
    """
    if attack.targets != "data":
        return list(data)
    return [_poisoned(cast("Poison", attack), own) if bad else own for own, bad in zip(data, rows, strict=True)]


def _poisoned(attack: Poison, own: Data) -> Poisoned:
    if not isinstance(own, LabelledData):
        raise ConfigError("attack.kind: poisons labels, which this task's samples have not; try `--set task.kind=digits`")
    changed = Poisoned(own, int(torch.cat((own.y, own.test_y)).max()) + 1, attack.poison)
    try:
        changed.batch(1, generator(0, "poison"))
    except ValueError as error:
        raise ConfigError(f"attack.params: {error}") from error
    return changed


def memories(attack: Attack | None, rows: NDArray[np.bool_]) -> Mapping[int, Forged]:
    """Return the forged optimiser memory of each of `rows` (N,), if the attack targets memories."""
    if attack is None or attack.targets != "memory":
        return {}
    return dict.fromkeys(np.flatnonzero(rows).tolist(), cast("Reversed", attack).forged)


Hits = Callable[[nn.Module, Any], tuple[int, int]]
"""A model and a held-out batch -> how often it does what an attack wants, and of how many samples."""


def success(attack: Attack) -> Hits | None:
    """Return a function that counts an attack's successes on samples; None: its success cannot be counted.

    Of triggered samples of other classes, how many are classified as the target; of a source class, how many.
    """
    match attack:
        case Backdoor(target=target):
            trigger: Backdoor | None = attack
            source = -1
        case LabelFlip(source=source, target=target) | Clones(source=source, target=target) if source >= 0:
            trigger = None
        case _:
            return None

    def hits(model: nn.Module, batch: Samples) -> tuple[int, int]:
        x, y = batch
        which = y != target if trigger is not None else y == source
        if not bool(which.any()):
            return 0, 0
        x = x[which]
        classified = model(x if trigger is None else trigger.triggered(x, len(x))).argmax(dim=1)
        return int((classified == target).sum()), len(x)

    return hits
