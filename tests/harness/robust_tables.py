"""Rules against attacks: test accuracy of honest nodes in percent, measured by another implementation of generator, rules and attacks.

16 nodes, 3 of them Byzantine, softmax regression on the synthetic task split by Dirichlet(0.5), batches of 32, momentum .9 as a running
mean, rate .1 (cosine + 2 %), weight decay 1e-3; mean over 13 honest nodes and seeds 0 and 1. In the column `none` all are honest.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

from starling.node.config import toml as settings
from starling.node.simulate import rules
from starling.node.simulate.engines import check
from starling.node.simulate.matrix import run
from starling.node.simulate.schema import Scenario
from starling.node.simulate.sweep import cells
from tests.harness.texts import words

NODES, BAD, SEEDS = 16, 3, (0, 1)
COLUMNS = words("none sign_flip gaussian label_flip ipm foe alie min_max mimic dissensus era era_max stale sleeper")
COMMON = (
    f"simulate.nodes={NODES}",
    "simulate.sample=0",
    "simulate.running_mean=true",
    "task=synthetic",
    "partition=dirichlet",
    "partition.alpha=0.5",
    "optimizer.lr=0.0102",
    "optimizer.momentum=0.9",
    "optimizer.weight_decay=0.001",
    "optimizer.floor=0.0196078",
    "mix=gather",
    "compress.select=full",
    "compress.response=identity",
    "pace.local_steps=1",
    "pace.evaluate_every=100000",
)
COMPLETE = ("overlay=complete", "pace.rounds=100", "robust.f=3")
"""Everybody asks everybody in every round."""
ONE_PEER = ("overlay=hypercube", "overlay.rerank_every=4", "pace.rounds=300")
"""One peer a round, ranked anew as soon as all bits of a rank had their turn."""
PULL_6 = ("overlay=pull", "overlay.k=6", "pace.rounds=200", "robust.f=2")
"""Six peers in every round, six times the bytes."""


def bursts(k: int, b: int) -> tuple[str, ...]:
    return ("overlay=pull", f"overlay.k={k}", f"robust.f={b}", f"pace.local_steps={k}", f"pace.rounds={300 // k}")


@dataclass(frozen=True, slots=True)
class Design:
    """One row of a table.

    Args:
        name: of the rule.
        settings: settings in addition to COMMON.
        accuracy: percent, by COLUMNS.
        chance: columns with random results. Some nodes have just pulled more Byzantine vectors than the rule tolerates, and the last pulls
            decide: other seeds give figures tens of points away. Or other batches alone, or the last noise sent, change the figure by more
            than two points.
    """

    name: str
    settings: tuple[str, ...]
    accuracy: tuple[float, ...]
    chance: frozenset[str] = frozenset()


def _rows(settings_of: tuple[str, ...], table: str) -> tuple[Design, ...]:
    designs = []
    for line in table.strip().splitlines():
        name, own, figures = line.split("|")
        chance = {column for column, figure in zip(COLUMNS, figures.split(), strict=True) if figure.startswith("~")}
        accuracy = tuple(float(figure.lstrip("~")) for figure in figures.split())
        designs.append(Design(name.strip(), (*settings_of, *own.split()), accuracy, frozenset(chance)))
    return tuple(designs)


ALL_TO_ALL = _rows(
    COMPLETE,
    """
mean           | robust.rule=mean                                | 90.3 67.4 83.3 85.1 67.9 51.3 88.8 89.0 86.9 89.6 78.9 4.5 68.2 87.3
median         | robust.rule=median                              | 85.0 78.4 86.0 79.1 78.5 78.4 84.9 84.9 74.8 73.9 73.7 74.7 78.5 85.7
trimmed mean   | robust.rule=trimmed_mean                        | 88.9 81.3 89.2 82.9 81.7 81.0 88.2 88.2 78.5 86.3 79.9 79.9 81.8 89.1
krum           | robust.rule=krum                                | 52.2 47.7 48.3 48.4 0.1 48.3 48.3 48.3 48.1 48.3 50.9 48.3 10.7 57.0
multi-krum     | robust.rule=multi_krum                          | 88.0 89.4 89.5 88.2 89.3 89.5 88.9 88.7 83.0 89.5 87.4 89.5 89.3 90.1
geometric      | robust.rule=geometric_median                    | 90.2 87.1 89.7 86.9 87.1 87.1 89.2 89.2 79.2 89.6 83.6 83.3 87.1 90.3
nna            | robust.rule=nna                                 | 87.9 89.4 89.5 88.2 89.3 89.5 89.6 89.4 83.7 89.5 61.6 89.5 89.3 89.7
nnm, trimmed   | robust.rule=trimmed_mean robust.before=nnm      | 87.9 89.4 89.5 88.3 89.3 89.5 89.5 89.0 83.3 89.5 88.6 89.5 89.3 89.9
clipped gossip | robust.rule=clipped_gossip                      | 90.3 72.1 89.5 85.1 74.9 67.6 88.8 89.0 86.9 89.6 78.9 20.1 75.2 89.9
cs+            | robust.rule=cs_plus                             | 90.2 84.2 89.6 86.0 84.7 83.4 89.1 89.1 86.7 89.6 78.5 75.8 84.9 90.0
flag           | robust.rule=flag                                | 89.8 77.5 87.6 85.6 77.6 77.6 88.8 89.0 85.2 88.9 81.7 80.3 77.7 87.8
meamed         | robust.rule=meamed                              | 86.0 81.9 89.4 79.2 81.2 88.9 83.7 84.4 72.9 ~82.1 64.0 89.6 80.6 87.4
""",
)
EQUAL_BYTES = (
    *_rows(
        ONE_PEER,
        """
mean           | robust.rule=mean                                | 96.1 50.1 41.0 91.9 63.0 21.6 95.4 95.5 95.0 15.2 92.0 4.4 64.0 21.6
balance        | robust.rule=balance robust.share=0.5            | 52.0 52.0 51.9 52.0 52.0 51.7 52.0 52.0 52.0 51.9 51.9 49.5 52.0 52.0
ubar           | robust.rule=ubar                                | 52.0 52.0 51.9 52.0 52.0 52.0 52.1 52.1 52.1 38.4 52.0 52.0 52.0 52.0
sac 1          | robust.rule=sac robust.kappa=1                  | 69.8 60.4 65.0 63.9 62.6 57.9 67.7 68.1 69.6 57.8 58.8 58.8 63.0 68.4
sac 2          | robust.rule=sac robust.kappa=2                  | 95.3 84.1 90.5 91.0 86.6 79.5 93.9 94.2 93.6 70.5 80.8 80.8 87.1 94.3
sac 3          | robust.rule=sac robust.kappa=3                  | 96.1 93.1 95.8 94.0 93.1 92.9 95.4 95.5 94.6 86.1 92.1 92.0 93.2 96.1
sac 4          | robust.rule=sac robust.kappa=4                  | 96.1 88.2 95.8 92.7 88.9 87.3 95.4 95.5 95.0 93.8 86.2 86.0 89.0 96.0
sac 6          | robust.rule=sac robust.kappa=6                  | 96.1 50.5 95.7 91.9 64.1 21.7 95.4 95.5 95.0 95.5 10.3 7.5 65.5 95.9
sac 8          | robust.rule=sac robust.kappa=8                  | 96.1 50.1 95.7 91.9 63.0 21.6 95.4 95.5 95.0 95.5 5.7 4.9 64.0 95.9
""",
    ),
    *_rows(
        bursts(6, 2),
        """
cs+ 6/2        | robust.rule=cs_plus                             | 96.1 93.8 95.8 94.3 94.1 93.3 95.5 95.6 94.4 95.7 92.1 91.9 94.1 96.0
nna 6/2        | robust.rule=nna                                 | 95.1 95.2 95.8 95.6 95.5 ~81.0 95.6 95.6 92.4 95.7 ~81.0 ~43.4 95.5 ~85.2
""",
    ),
    *_rows(
        bursts(12, 4),
        """
cs+ 12/4       | robust.rule=cs_plus                             | 96.0 94.3 95.7 94.4 94.5 93.9 95.5 95.5 94.5 95.4 92.3 92.2 94.5 96.0
""",
    ),
    *_rows(
        bursts(4, 1),
        """
cs+ 4/1        | robust.rule=cs_plus                             | 96.2 ~89.1 95.8 94.1 93.3 ~83.6 95.6 95.6 94.8 95.7 92.3 ~69.6 93.4 ~88.6
""",
    ),
)
EVERY_ROUND = _rows(
    PULL_6,
    """
mean           | robust.rule=mean                                | 95.1 60.7 ~80.5 90.7 65.7 13.2 94.2 94.3 93.7 94.5 89.3 4.6 66.1 13.2
nna            | robust.rule=nna                                 | 93.0 92.7 94.6 94.6 93.8 ~76.4 94.6 94.0 90.1 94.7 71.8 8.9 93.8 ~82.9
trimmed mean   | robust.rule=trimmed_mean                        | 94.4 77.3 94.3 90.5 83.0 56.1 93.2 93.1 87.9 92.0 87.3 5.6 83.6 56.0
cs+            | robust.rule=cs_plus                             | 95.2 90.9 94.7 92.7 91.2 90.6 94.4 94.4 92.3 94.7 89.0 88.5 91.2 94.9
nnm, trimmed   | robust.rule=trimmed_mean robust.before=nnm      | 94.1 92.1 94.6 94.5 93.4 ~71.5 94.7 94.6 89.9 94.7 93.4 8.4 93.6 ~76.1
""",
)


def bad(seed: int) -> list[int]:
    return torch.randperm(NODES, generator=torch.Generator().manual_seed(11 + seed))[:BAD].tolist()


def scenario(design: Design, column: str, seed: int) -> Scenario:
    attack = () if column == "none" else (f"attack.kind={column}",)
    assignments = (*COMMON, *design.settings, *attack, f"attack.rows={bad(seed)}", f"simulate.seed={seed}")
    made = settings.apply_set(Scenario(), assignments)
    rules.check(cells(made))
    check(made)
    return made


def percent(made: Scenario) -> float:
    outcome = run.run(made, lambda _round, _line: None)
    assert outcome.diverged is None
    return 100.0 * outcome.rows[-1].mean


@lru_cache(maxsize=1024)
def cell(design: Design, column: str) -> float:
    return sum(percent(scenario(design, column, seed)) for seed in SEEDS) / len(SEEDS)
