"""Combining rules, and what may be done to vectors before one, by name. Torch-free: a manifest is checked by what this table says.

docs/robustness.md says where the numbers come from.
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
    """What is known of a combining rule without building it. A test compares the table with the rules.

    Args:
        per_bad: peers needed for each Byzantine one ...
        more: ... and beyond that, for b > 0.
        share: largest share of Byzantine members that it tolerates.
        source: where that comes from.
        losses: evaluates the losses of models.
        sparse: peers may send a part of their vector only.
        memory: what it remembers between rounds: nothing, a number, a whole model, or each peer's past.
    """

    per_bad: int = 0
    more: int = 0
    share: float = 0.5
    source: str = ""
    losses: bool = False
    sparse: bool = False
    memory: Literal["nothing", "number", "model", "peers"] = "nothing"

    def least_peers(self, b: int) -> int:
        """Least k with which b Byzantine ones among k peers are tolerated; 1 for none, and for rules that take no b."""
        return max(1, self.per_bad * b + self.more) if b else 1


_MINORITY = "a minority of the m = k + 1 vectors"
RULES: Catalogue[Combination, RuleFacts] = Catalogue(
    "robust.rule",
    "starling.rules",
    {
        "mean": Entry(
            "starling.robust.rules.mean:Mean",
            RuleFacts(share=0.0, source="one Byzantine member moves a mean anywhere", sparse=True),
        ),
        "median": Entry(
            "starling.robust.rules.coordinate:Median",
            RuleFacts(per_bad=2, source=f"{_MINORITY}, Yin et al. 2018, arXiv:1803.01498"),
        ),
        "trimmed_mean": Entry(
            "starling.robust.rules.coordinate:TrimmedMean",
            RuleFacts(2, source=f"m >= 2b + 1, {_MINORITY}, Yin et al. 2018, arXiv:1803.01498"),
        ),
        "meamed": Entry(
            "starling.robust.rules.coordinate:MeaMed",
            RuleFacts(2, source=f"m >= 2b + 1, {_MINORITY}, Xie et al. 2018, arXiv:1802.10116"),
        ),
        "krum": Entry(
            "starling.robust.rules.krum:Krum",
            RuleFacts(2, 2, source="m >= 2b + 3, Blanchard et al. 2017, arXiv:1703.02757"),
        ),
        "multi_krum": Entry(
            "starling.robust.rules.krum:MultiKrum",
            RuleFacts(2, 2, source="m >= 2b + 3, Blanchard et al. 2017, arXiv:1703.02757"),
        ),
        "bulyan": Entry(
            "starling.robust.rules.krum:Bulyan",
            RuleFacts(4, 2, 0.25, "m >= 4b + 3, El Mhamdi et al. 2018, arXiv:1802.07927"),
        ),
        "geometric_median": Entry(
            "starling.robust.rules.geometric:GeometricMedian",
            RuleFacts(per_bad=2, source=f"{_MINORITY}, Pillutla et al. 2019, arXiv:1912.13445"),
        ),
        "mda": Entry(
            "starling.robust.rules.minimum_diameter:Mda",
            RuleFacts(2, source=f"m >= 2b + 1, {_MINORITY}, El Mhamdi et al. 2020, arXiv:1905.03853"),
        ),
        "centered_clip": Entry(
            "starling.robust.rules.centered_clip:CenteredClip",
            RuleFacts(
                10,
                -1,
                0.1,
                "a tenth of the m = k + 1 vectors, Karimireddy et al. 2021, arXiv:2012.10333",
                memory="model",
            ),
        ),
        "sac": Entry(
            "starling.robust.rules.clipping:Sac",
            RuleFacts(share=0.25, source="measured, with one or more peers a round", sparse=True, memory="number"),
        ),
        "cs_plus": Entry(
            "starling.robust.rules.clipping:CsPlus",
            RuleFacts(
                2,
                1,
                0.2,
                "k >= 2b + 1, Gaucher et al. 2025, arXiv:2410.10418; the share measured",
                sparse=True,
                memory="number",
            ),
        ),
        "cs_nnm": Entry(
            "starling.robust.rules.clipped_mixing:CsNnm",
            RuleFacts(2, 1, 0.25, "k >= 2b + 1, as cs_plus; the share measured", memory="number"),
        ),
        "clipped_gossip": Entry(
            "starling.robust.rules.clipping:ClippedGossip",
            RuleFacts(2, 1, 0.1, "k >= 2b + 1; the share measured, He et al. 2022, arXiv:2202.01545", sparse=True),
        ),
        "norm_bound": Entry(
            "starling.robust.rules.clipping:NormBound",
            RuleFacts(
                share=0.25, source="that of sac at the best threshold, Sun et al. 2019, arXiv:1911.07963", sparse=True
            ),
        ),
        "nna": Entry(
            "starling.robust.rules.nearest:Nna",
            RuleFacts(
                2, 1, 0.2, "k >= 2b + 1; in practice a fifth, Farhadkhani et al. 2023, arXiv:2209.10931", sparse=True
            ),
        ),
        "ubar": Entry(
            "starling.robust.rules.ubar:Ubar",
            RuleFacts(1, 1, source="one honest peer, Guo et al. 2020, arXiv:2002.08569", losses=True),
        ),
        "balance": Entry(
            "starling.robust.rules.nearest:Balance",
            RuleFacts(
                source="any, where data are alike, Fang et al. 2024, arXiv:2406.10416", sparse=True, memory="number"
            ),
        ),
        "bridge": Entry(
            "starling.robust.rules.bridge:Bridge",
            RuleFacts(2, 1, source="k >= 2b + 1, Fang et al. 2022, arXiv:1908.08098"),
        ),
        "flag": Entry(
            "starling.robust.rules.flag:Flag",
            RuleFacts(per_bad=2, source=f"{_MINORITY}, Almansoori et al. 2023, arXiv:2302.05865"),
        ),
        "foolsgold": Entry(
            "starling.robust.rules.foolsgold:FoolsGold",
            RuleFacts(
                share=0.0,
                source="it detects clones alone, and any other attack moves it anywhere, Fung et al. 2018, arXiv:1808.04866",
                memory="peers",
            ),
        ),
    },
    RuleFacts(share=0.0, source="its class states no facts"),
    members=("tolerates", "start", "reduce"),
)
PREAGGREGATIONS: Catalogue[Preparation, None] = Catalogue(
    "robust.before",
    "starling.preaggregations",
    {
        "nnm": Entry("starling.robust.preaggregate.nearest:Nnm"),
        "bucketing": Entry("starling.robust.preaggregate.bucketing:Bucketing"),
    },
    members=("tolerates", "start", "prepare"),
)


def rule(
    name: str, params: Mapping[str, Any] | None = None, before: str = "", before_params: Mapping[str, Any] | None = None,
    *, trusted: bool = False,
) -> Composed:  # fmt: skip
    """The rule that a name stands for; satisfies `starling.gossip.api.Rule`.

    Args:
        name: one of RULES.
        params: of its constructor.
        before: one of PREAGGREGATIONS, or "" for none.
        before_params: of that.
        trusted: the machine's owner agrees to import what "module:Class" names.

    Raises:
        ConfigError: unknown name or parameter, or a value that is refused.
    """
    first = PREAGGREGATIONS.build("robust", before, before_params or {}, trusted=trusted) if before else None
    made = RULES.build("robust", name, params or {}, trusted=trusted)
    try:
        return Composed(made, first)
    except ValueError as error:
        raise ConfigError(f"robust.{error}") from error
