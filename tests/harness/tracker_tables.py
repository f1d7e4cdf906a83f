"""Trackers against Byzantine nodes: test accuracy of honest nodes in percent, measured by another implementation (seed 0).

The swarm of `robust_tables`, one peer per round on the hypercube, 300 rounds, no momentum; attackers send honest models. Columns are an
attack and the number of attackers among 16; in `none` all are honest. Here a figure is the mean of seeds 0, 1 and 2, of data, positions of
the attackers and all other random numbers.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor

from starling.gossip.api import Mixer
from starling.gossip.mix.defended_tracking import Bounded, Defended, DefendedTracking
from starling.node.config import toml as settings
from starling.node.simulate import rules
from starling.node.simulate.engines import check
from starling.node.simulate.matrix import byzantine, run
from starling.node.simulate.matrix.byzantine import Byzantine, View
from starling.node.simulate.schema import Scenario
from starling.node.simulate.sweep import cells
from starling.robust.attacks.tracker import negative
from tests.harness.robust_tables import COMMON, NODES, ONE_PEER

ATTACKS = ("const", "neg", "rand", "small", "one_shot")
COLUMNS = (("none", 0), *((attack, 1) for attack in ATTACKS), *((attack, 3) for attack in ATTACKS), ("const", 4), ("rand", 4))
BOTH_COLUMNS = tuple((attack, bad) for bad in (1, 2, 3, 4) for attack in ("foe", "era"))
"""Attacks on the model, while the tracker sent is −ȳ."""
TRACKING = (*COMMON, *ONE_PEER, "mix=defended_tracking", "optimizer.lr=0.102", "optimizer.momentum=0.0", "simulate.running_mean=false")
SHORT = ("pace.rounds=200",)
SEEDS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Selfish:
    """The tracker's edge if each end used its own threshold instead of the smaller of both. Used only for this measurement."""

    edge: Bounded
    exact = True
    static = False

    def begin(self, origin: Tensor) -> Tensor:
        """Do the same as the tracker's edge."""
        return self.edge.begin(origin)

    def message(self, kept: Tensor, mine: Tensor, give: float | Tensor) -> Tensor:
        """Do the same as the tracker's edge."""
        return self.edge.message(kept, mine, give)

    def sent(self, kept: Tensor, message: Tensor, mine: Tensor, give: float | Tensor) -> tuple[Tensor, Tensor]:
        """Do the same as the tracker's edge."""
        return self.edge.sent(kept, message, mine, give)

    def received(self, kept: Tensor, message: Tensor, mine: Tensor, take: float | Tensor) -> tuple[Tensor, Tensor]:
        """Receive as if the peer claimed any gradient."""
        message = message.clone()
        message[..., -2] = 1e30
        return self.edge.received(kept, message, mine, take)

    def difference(self, kept: Tensor, message: Tensor, mine: Tensor) -> Tensor | None:
        return self.edge.difference(kept, message, mine)


class PerNode(DefendedTracking):
    """The tracker with such an edge and the norm of the last gradient only: a running mean lags, and at 1 hardly ever clips the honest."""

    @property
    def edge(self) -> Any:
        """Return a `Selfish` edge."""
        return Selfish(Bounded(self.tracker_clip, self.step_clip))

    def correct(self, state: Defended, gradient: Tensor) -> tuple[Tensor, Defended]:
        """Discard earlier norms."""
        y, after = DefendedTracking.correct(self, state, gradient)
        return y, replace(after, gradient=gradient.norm(dim=-1, keepdim=True))


class Smaller(PerNode):
    """The same norms, with the smaller of both ends' thresholds."""

    @property
    def edge(self) -> Any:
        """Return the tracker's usual edge."""
        return Bounded(self.tracker_clip, self.step_clip)


@dataclass(frozen=True, slots=True)
class Design:
    """One row of a table.

    Args:
        name: of it.
        settings: settings in addition to TRACKING.
        accuracy: percent, by column.
        mixer: one that is not in the catalogue.
    """

    name: str
    settings: tuple[str, ...]
    accuracy: tuple[float, ...]
    mixer: Mixer | None = None


def row(name: str, mixer: DefendedTracking, figures: str, *more: str) -> Design:
    """Return a row; an algorithm outside the catalogue replaces the catalogue's."""
    keys = ("tracker_clip", "tracker_leak", "tracker_cap", "step_clip")
    return Design(
        name,
        (*TRACKING, *more, *(f"mix.{key}={getattr(mixer, key)}" for key in keys)),
        tuple(float(figure) for figure in figures.split()),
        None if type(mixer) is DefendedTracking else mixer,
    )


NOTHING = DefendedTracking(0.0, 0.0, 0.0, 0.0)


def defended(clip: float, leak: float, cap: float, step_clip: float = 0.0) -> DefendedTracking:
    """Return a tracker with parameters in the order of the published columns."""
    return DefendedTracking(clip, leak, cap, step_clip)


TRACKERS = (
    row("plain", NOTHING, "96.1 3.7 52.5 8.7 16.3 9.4 4.1 45.2 8.6 10.1 8.8 4.1 8.6"),
    row("1", defended(1.0, 0.0, 0.0), "96.1 0.9 60.2 11.3 16.3 91.8 2.6 51.5 9.2 10.1 64.0 2.6 9.0"),
    row("1, leak .05", defended(1.0, 0.05, 0.0), "95.7 0.2 92.9 50.6 84.0 95.4 2.7 88.2 15.1 29.8 95.0 3.0 12.7"),
    row("1, leak .05, cap 1", defended(1.0, 0.05, 1.0), "95.7 0.2 92.9 67.1 84.5 95.5 1.2 88.2 42.1 50.5 95.2 1.4 38.7"),
    row("1, leak .2, cap 1", defended(1.0, 0.2, 1.0), "96.0 94.8 95.6 94.4 95.3 96.1 51.9 94.5 77.7 92.2 96.0 10.1 64.0"),
    row("1/2, leak .1, cap 1", defended(0.5, 0.1, 1.0), "96.1 94.7 95.6 94.1 94.3 96.2 28.6 94.4 72.6 74.9 96.1 1.5 57.2"),
    row("1/2, leak .2, cap 1", defended(0.5, 0.2, 1.0), "96.1 95.8 96.0 95.5 95.5 96.1 93.8 95.5 92.6 92.9 96.2 89.4 89.1"),
    row("1/4, leak .1, cap 1", defended(0.25, 0.1, 1.0), "96.1 95.8 96.0 95.4 95.4 96.1 93.5 95.4 91.5 91.5 96.2 86.4 87.2"),
    row("1/4, leak .2, cap 1", defended(0.25, 0.2, 1.0), "96.1 96.0 96.0 96.0 96.0 96.1 95.4 96.0 95.2 95.2 96.1 95.0 94.6"),
    row("1/4, leak .4, cap 1", defended(0.25, 0.4, 1.0), "96.1 96.1 96.1 96.1 96.1 96.1 96.0 96.0 96.0 96.0 96.1 95.9 95.7"),
)
BOTH = (
    row("mean, plain", NOTHING, "10.9 3.9 10.8 0.8 11.0 1.9 11.0 2.4", *SHORT),
    row("sac 3, plain", defended(0.0, 0.0, 0.0, 3.0), "10.9 1.4 10.8 0.9 11.0 2.6 10.9 3.1", *SHORT),
    row("sac 3, 1/2, leak .2", defended(0.5, 0.2, 1.0, 3.0), "92.9 92.2 86.7 85.1 11.9 37.7 12.6 0.4", *SHORT),
    row("sac 3, 1/4, leak .4, cap 1/2", defended(0.25, 0.4, 0.5, 3.0), "93.5 92.9 89.8 88.2 76.1 79.6 13.6 0.5", *SHORT),
)


PER_NODE = row("1, per node", PerNode(1.0, 0.0, 0.0, 0.0), "75.0")
SMALLER = row("1, the smaller of both", Smaller(1.0, 0.0, 0.0, 0.0), "96.1")
UNTRACKED = (
    Design("dsgd, momentum", (*COMMON, *ONE_PEER, "mix=dsgd"), (96.2,)),
    Design(
        "quasi-global momentum", (*COMMON, *ONE_PEER, "mix=quasi_global", "optimizer.momentum=0.0", "simulate.running_mean=false"), (93.5,)
    ),
)
"""Where all are honest; there is no tracker to attack."""


@dataclass(frozen=True, slots=True)
class Channels:
    """Attackers on the model and on the tracker at once; has the methods of `Byzantine`."""

    model: Byzantine
    tracker: Byzantine

    @property
    def rows(self) -> Any:
        """Return the attackers."""
        return self.model.rows

    @property
    def attack(self) -> Any:
        """Return the attack on models."""
        return self.model.attack

    def messages(self, view: View, attacker: int, receivers: Any) -> Tensor | None:
        """Return one attack's model with the other's tracker."""
        message, other = (each.messages(view, attacker, receivers) for each in (self.model, self.tracker))
        assert message is not None
        assert other is not None
        return torch.cat((message[:, : self.model.dim], other[:, self.model.dim :]), dim=1)


def channels(attack: Any, *rest: Any) -> Channels:
    """Make `Channels` in place of `Byzantine`."""
    return Channels(Byzantine(attack, *rest), Byzantine(negative(), *rest))


def bad(count: int, seed: int = 0) -> list[int]:
    """Return the positions of attackers: the first of the permutation that `tests.harness.robust_tables` uses."""
    return torch.randperm(NODES, generator=torch.Generator().manual_seed(11 + seed))[:count].tolist()


def scenario(design: Design, attack: str, count: int, seed: int = 0) -> Scenario:
    """Return the scenario of a cell, checked as `starling simulate` does."""
    attacked = (f"attack.kind={attack}", f"attack.rows={bad(count, seed)}") if count else ()
    made = settings.apply_set(Scenario(), (*design.settings, *attacked, f"simulate.seed={seed}"))
    rules.check(cells(made))
    check(made)
    return made


@lru_cache(maxsize=1024)
def percent(design: Design, attack: str, count: int, seed: int, *, both: bool = False) -> float:
    """Return the honest nodes' final mean; 0 if they diverge."""
    made = scenario(design, attack, count, seed)
    with pytest.MonkeyPatch.context() as patch:
        if design.mixer is not None:
            patch.setattr(run, "mixer_of", lambda _agreed, layout: (design.mixer, layout))
        if both:
            patch.setattr(byzantine, "Byzantine", channels)
        outcome = run.run(made, lambda _round, _line: None)
    return 0.0 if outcome.diverged is not None else 100.0 * outcome.rows[-1].mean


def of_seeds(design: Design, column: tuple[str, int], *, both: bool = False) -> tuple[float, ...]:
    """Return one figure for each of SEEDS; `both`: attackers lie about models and trackers."""
    attack, count = column
    name = attack if both or not count else f"tracker_{attack}"
    return tuple(percent(design, name, count, seed, both=both) for seed in SEEDS)


def tracker_cell(design: Design, column: tuple[str, int]) -> float:
    """Return a cell of the first table."""
    return fmean(of_seeds(design, column))


def both_cell(design: Design, column: tuple[str, int]) -> float:
    """Return a cell of the second table."""
    return fmean(of_seeds(design, column, both=True))
