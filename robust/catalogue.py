"""Combining rules and pre-aggregations by name. Torch-free: a manifest is checked by the facts here.

docs/robustness.md has the sources of the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from starling.gossip.catalogue import Catalogue, Entry
from starling.gossip.errors import ConfigError
from starling.robust.rules.api import Composed

if TYPE_CHECKING:
    from starling.robust.rules.api import Combination, Preparation


@dataclass(frozen=True, slots=True)
class RuleFacts:
    """Facts of a combining rule, known without building it. A test compares them with the rules."""

    per_bad: int = 0  # number of peers needed for each Byzantine one ...
    more: int = 0  # ... and additional peers if f > 0
    share: float = 0.5  # largest share of Byzantine members that it tolerates
    source: str = ""  # of these
    losses: bool = False  # evaluates the losses of models
    # its state between rounds: nothing, a number, a whole model, or each peer's past
    memory: Literal["nothing", "number", "model", "peers"] = "nothing"

    def least_peers(self, f: int) -> int:
        """Least k with which f Byzantine ones among k peers are tolerated; 1 for none, and for rules that take no f."""
        return max(1, self.per_bad * f + self.more) if f else 1


def _rule(where: str, *facts: Any, **others: Any) -> Entry[RuleFacts]:
    return Entry(f"starling.robust.rules.{where}", RuleFacts(*facts, **others))


_MINORITY = "a minority of the m = k + 1 vectors"
_KRUM = "m >= 2f + 3, Blanchard et al. 2017, arXiv:1703.02757"
_TENTH = "a tenth of the m = k + 1 vectors, Karimireddy et al. 2021, arXiv:2012.10333"
_CG_PLUS = "k >= 2f + 1, Gaucher et al. 2025, arXiv:2410.10418; the share measured"
_CLONES = "it detects clones alone, and any other attack moves it anywhere, Fung et al. 2018, arXiv:1808.04866"
RULES: Catalogue[Combination, RuleFacts] = Catalogue(
    "robust.rule",
    "starling.rules",
    {
        "mean": _rule("coordinate:Mean", share=0.0, source="one Byzantine member moves a mean anywhere"),
        "median": _rule("coordinate:Median", 2, source=f"{_MINORITY}, Yin et al. 2018, arXiv:1803.01498"),
        "trimmed_mean": _rule("coordinate:TrimmedMean", 2, source=f"m >= 2f + 1, {_MINORITY}, Yin et al. 2018, arXiv:1803.01498"),
        "meamed": _rule("coordinate:MeaMed", 2, source=f"m >= 2f + 1, {_MINORITY}, Xie et al. 2018, arXiv:1802.10116"),
        "krum": _rule("selection:Krum", 2, 2, source=_KRUM),
        "multi_krum": _rule("selection:MultiKrum", 2, 2, source=_KRUM),
        "bulyan": _rule("selection:Bulyan", 4, 2, 0.25, "m >= 4f + 3, El Mhamdi et al. 2018, arXiv:1802.07927"),
        "geometric_median": _rule("iterative:GeometricMedian", 2, source=f"{_MINORITY}, Pillutla et al. 2019, arXiv:1912.13445"),
        "mda": _rule("selection:Mda", 2, source=f"m >= 2f + 1, {_MINORITY}, El Mhamdi et al. 2020, arXiv:1905.03853"),
        "centered_clip": _rule("iterative:CenteredClip", 10, -1, 0.1, _TENTH, memory="model"),
        "sac": _rule("clipping:Sac", share=0.25, source="measured, with one or more peers a round", memory="number"),
        "cs_plus": _rule("clipping:CsPlus", 2, 1, 0.2, _CG_PLUS, memory="number"),
        "cs_nnm": _rule("clipping:CsNnm", 2, 1, 0.25, "k >= 2f + 1, as cs_plus; the share measured", memory="number"),
        "clipped_gossip": _rule("clipping:ClippedGossip", 2, 1, 0.1, "k >= 2f + 1; the share measured, He et al. 2022, arXiv:2202.01545"),
        "norm_bound": _rule(
            "clipping:NormBound", share=0.25, source="that of sac at the best threshold, Sun et al. 2019, arXiv:1911.07963"
        ),
        "nna": _rule("nearest:Nna", 2, 1, 0.2, "k >= 2f + 1; in practice a fifth, Farhadkhani et al. 2023, arXiv:2209.10931"),
        "ubar": _rule("nearest:Ubar", 1, 1, source="one honest peer, Guo et al. 2020, arXiv:2002.08569", losses=True),
        "balance": _rule("nearest:Balance", source="any, where data are alike, Fang et al. 2024, arXiv:2406.10416", memory="number"),
        "bridge": _rule("bridge:Bridge", 2, 1, source="k >= 2f + 1, Fang et al. 2022, arXiv:1908.08098"),
        "flag": _rule("iterative:Flag", 2, source=f"{_MINORITY}, Almansoori et al. 2023, arXiv:2302.05865"),
        "foolsgold": _rule("foolsgold:FoolsGold", share=0.0, source=_CLONES, memory="peers"),
    },
    RuleFacts(share=0.0, source="its class states no facts"),
    members=("reduce",),
    supplied=("seed", "decay"),
)
PREAGGREGATIONS: Catalogue[Preparation, None] = Catalogue(
    "robust.before",
    "starling.preaggregations",
    {
        "nnm": Entry("starling.robust.preaggregate:Nnm"),
        "bucketing": Entry("starling.robust.preaggregate:Bucketing", maturity="experimental"),
    },
    members=("prepare",),
    supplied=("seed",),
)


def rule(
    name: str,
    params: Mapping[str, Any] | None = None,
    before: str | None = None,
    before_params: Mapping[str, Any] | None = None,
    *,
    trusted: bool = False,
) -> Composed:
    """Return a rule by name, after one of PREAGGREGATIONS if `before` is one; satisfies `starling.gossip.api.Rule`.

    `trusted`: the machine's owner agrees to import what "module:Class" names. Raises ConfigError: unknown name or parameter, or a value
    that is refused.
    """
    first = PREAGGREGATIONS.build("robust", before, before_params or {}, trusted=trusted) if before else None
    made = RULES.build("robust", name, params or {}, trusted=trusted)
    try:
        return Composed(made, first)
    except ValueError as error:
        raise ConfigError(f"robust.{error}") from error
