"""Measure one combining rule at one length, compared with byzfl's, in a separate process.

    python -m starling.kernels.rules RULE D N REPEAT        JSON on standard output

A process of its own because byzfl copies much: nearest neighbor mixing of 16 vectors of 10^7 takes 9 GB, which is then given back. What
is counted is processor time on one thread, that of the best repetition; byzfl is repeated until that took ten seconds.

The vectors are Gaussian, the j-th 1 + j/20 as wide as the first, and the last fifth of them, the bad ones, are shifted by 3. So both
libraries choose the same vectors, although byzfl's Krum counts one neighbor more than the paper. Ours are combined as the first of them
would do it. byzfl's geometric median gets 8 iterations: with its default of 3 it is 4e-4 off, which takes 3/8 of the time. All else is
at its defaults. Ours is compared with what byzfl makes of the same vectors in float64: its sums of squares of float32 lose so much
that at d = 10^7 it is 1e-4 away from that itself.

Only byzfl's aggregators are imported: the package itself needs torchvision, whose wheels do not go with every torch.

Shapes: n vectors, d parameters.
"""

import importlib
import importlib.util
import math
import sys
import time
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.kernels.child import answer
from starling.kernels.schema import ALL_RULES, PEER, PEER_EXTRA, RuleCase
from starling.robust.catalogue import RULES, rule
from starling.robust.preaggregate import Nnm
from starling.robust.rules.stack import Stack

ITERATIONS = 8
IN_DOUBLE = ("geometric_median",)
"""Rules whose reference is the other library's own result in float64, from an array of numpy."""
_ENOUGH_S = 10.0
_WARM_UP = 1 << 14

Combine = Callable[[Any], Any]


def measure(name: str, dim: int, count: int, repeat: int, peers: Mapping[str, Callable[[int], Combine]]) -> RuleCase:
    """Measure one of ALL_RULES on n = `count` vectors of length d; the fastest repetition counts.

    `peers`: rule -> what makes the other library's from the number of bad ones.

    Raises ConfigError: there is no such rule.
    """
    if name not in ALL_RULES:
        raise ConfigError(f"--rule: {name!r} is unknown, choose one of {', '.join(ALL_RULES)}")
    b = bad(count)
    product, peer = ours(name, b), peers[name](b)
    x = vectors(count, dim)
    for combine in (product, peer):
        combine(x[:, :_WARM_UP])
    ours_s, result = timed(lambda: product(x), repeat, math.inf)
    peer_s, expected = timed(lambda: peer(x), repeat, _ENOUGH_S)
    if name in IN_DOUBLE:
        expected = torch.from_numpy(peer(x.double().numpy()))
    return RuleCase(
        rule=name,
        n=count,
        d=dim,
        ours_cpu_s=ours_s,
        peer_cpu_s=peer_s,
        ratio=peer_s / ours_s,
        max_error=float((result - expected).abs().max()),
    )


def bad(count: int) -> int:
    """Return how many of n vectors are bad: a fifth."""
    return count // 5


def vectors(count: int, dim: int) -> Tensor:
    """Return (n, d) float32; the last fifth are bad."""
    x = torch.randn(count, dim, generator=generator(0, "bench rules"))
    for index in range(count):
        x[index] *= 1 + index / 20
    x[count - bad(count) :] += 3
    return x


def ours(name: str, b: int) -> Combine:
    """Return the product's rule as a node combines: the first vector is its own."""
    if name == "nnm":
        return lambda x: Nnm(b).prepare(Stack(x[:1], x[None, 1:], _present(x)[None]), x[:1, :0])[0].vectors()[0]
    made = rule(name, {"f": b} if "f" in RULES.parameters(name) else {})

    def combine(x: Tensor) -> Tensor:
        return made.combine(made.start(x[0]), x[0], x[1:], _present(x), x[0], None)[0]

    return combine


def byzfl() -> Mapping[str, Callable[[int], Combine]]:
    """Return the other library's rules. Raises ConfigError: it is not installed."""
    spec = importlib.util.find_spec(PEER)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"bench rules compares with {PEER}, which is not installed; try `pip install 'starling-swarm[{PEER_EXTRA}]'`")
    package = types.ModuleType(PEER)
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules[PEER] = package
    rules: Any = importlib.import_module(f"{PEER}.aggregators.aggregators")
    before: Any = importlib.import_module(f"{PEER}.aggregators.preaggregators")
    return {
        "mean": lambda _: rules.Average(),
        "median": lambda _: rules.Median(),
        "trimmed_mean": lambda b: rules.TrMean(f=b),
        "meamed": lambda b: rules.Meamed(f=b),
        "geometric_median": lambda _: rules.GeometricMedian(T=ITERATIONS),
        "krum": lambda b: rules.Krum(f=b),
        "multi_krum": lambda b: rules.MultiKrum(f=b),
        "mda": lambda b: rules.MDA(f=b),
        "nna": lambda b: rules.MoNNA(f=b, idx=0),
        "nnm": lambda b: before.NNM(f=b),
    }


def _present(x: Tensor) -> Tensor:
    """Return a mask in which all peers are present."""
    return torch.ones(len(x) - 1, dtype=torch.bool)


def timed(run: Callable[[], Tensor], repeat: int, enough_s: float) -> tuple[float, Tensor]:
    """Return the processor seconds of the fastest repetition, and its result."""
    best, spent = math.inf, 0.0
    for _ in range(repeat):
        began = time.process_time()
        result = run()
        taken = time.process_time() - began
        best, spent = min(best, taken), spent + taken
        if spent > enough_s:
            break
    return best, result


def main() -> int:
    """Measure what the arguments say; exit code 2 where that is refused."""
    name, dim, count, repeat = sys.argv[1:]
    torch.set_num_threads(1)
    return answer(lambda: measure(name, int(dim), int(count), int(repeat), byzfl()))


if __name__ == "__main__":
    sys.exit(main())
