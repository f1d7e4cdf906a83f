"""What is known of each mixing algorithm without building it. Torch-free: command line and daemon check manifests by it.

A test compares it with the algorithms themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Facts:
    """One algorithm.

    Args:
        asynchronous: may run in clock pace.
        static: needs one symmetric mixing matrix that never changes.
        swaps: ends send messages of their own instead of applying one difference.
        exact: messages must arrive as they are: no lossy codec, no mask.
        gathers: nodes ask peers for their vectors and combine them by a rule.
        symmetric: both ends must give a link the same weight.
        rated: divides by the rate of the local optimiser, which for adamw must be told.
    """

    asynchronous: bool = True
    static: bool = False
    swaps: bool = False
    exact: bool = False
    gathers: bool = False
    symmetric: bool = False
    rated: bool = False


FACTS: Mapping[str, Facts] = MappingProxyType(
    {
        "pet": Facts(rated=True),
        "dsgd": Facts(),
        "gradient_tracking": Facts(),
        "k_gt": Facts(asynchronous=False, rated=True),
        "quasi_global": Facts(asynchronous=False, rated=True),
        "exact_diffusion": Facts(asynchronous=False, static=True),
        "d2": Facts(asynchronous=False, static=True),
        "a2cid2": Facts(),
        "choco": Facts(asynchronous=False, static=True, swaps=True),
        "beer": Facts(asynchronous=False, static=True, swaps=True),
        "push_sum": Facts(swaps=True, exact=True),
        "r_fast": Facts(swaps=True, exact=True),
        "psgd": Facts(asynchronous=False, static=True, swaps=True),
        "outer": Facts(asynchronous=False),
        "gather": Facts(asynchronous=False, gathers=True),
        "defended_tracking": Facts(asynchronous=False, swaps=True, exact=True, symmetric=True),
    }
)
