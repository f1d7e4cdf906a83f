"""What is known of each combining rule without building it. Torch-free: command line and daemon check manifests by it.

A test compares it with the rules themselves; `docs/robustness.md` says where the numbers come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True)
class Facts:
    """One rule.

    Args:
        keys: keys of the section `robust` that it takes.
        per_bad: peers needed for each bad one ...
        more: ... and beyond that, for b > 0.
        share: bad members of a swarm that it stands, as a share.
        source: where that comes from.
        losses: looks at the losses of models.
        sparse: peers may tell a part of their vector only.
        memory: what it remembers between rounds: nothing, a number, a whole model, or each peer's past.
    """

    keys: tuple[str, ...] = ()
    per_bad: int = 0
    more: int = 0
    share: float = 0.5
    source: str = ""
    losses: bool = False
    sparse: bool = False
    memory: Literal["nothing", "number", "model", "peers"] = "nothing"

    def least_peers(self, b: int) -> int:
        """Least k that b bad ones among k peers need; 1 for none, and for rules that are not set for a number."""
        return max(1, self.per_bad * b + self.more) if b else 1


_MINORITY = "a minority of the m = k + 1 vectors"
FACTS: Mapping[str, Facts] = MappingProxyType(
    {
        "mean": Facts(share=0.0, source="one liar moves a mean anywhere", sparse=True),
        "median": Facts(per_bad=2, source=f"{_MINORITY}, Yin et al. 2018, arXiv:1803.01498"),
        "trimmed_mean": Facts(("b",), 2, source=f"m >= 2b + 1, {_MINORITY}, Yin et al. 2018, arXiv:1803.01498"),
        "meamed": Facts(("b",), 2, source=f"m >= 2b + 1, {_MINORITY}, Xie et al. 2018, arXiv:1802.10116"),
        "krum": Facts(("b",), 2, 2, source="m >= 2b + 3, Blanchard et al. 2017, arXiv:1703.02757"),
        "multi_krum": Facts(("b",), 2, 2, source="m >= 2b + 3, Blanchard et al. 2017, arXiv:1703.02757"),
        "bulyan": Facts(("b",), 4, 2, 0.25, "m >= 4b + 3, El Mhamdi et al. 2018, arXiv:1802.07927"),
        "geometric_median": Facts(per_bad=2, source=f"{_MINORITY}, Pillutla et al. 2019, arXiv:1912.13445"),
        "mda": Facts(("b",), 2, source=f"m >= 2b + 1, {_MINORITY}, El Mhamdi et al. 2020, arXiv:1905.03853"),
        "centered_clip": Facts(
            ("tau",), 10, -1, 0.1, "a tenth of the m = k + 1 vectors, Karimireddy et al. 2021, arXiv:2012.10333", memory="model"
        ),
        "sac": Facts(
            ("kappa",), share=0.25, source="measured, with one or more peers a round", sparse=True, memory="number"
        ),
        "cs_plus": Facts(
            ("b",), 2, 1, 0.2, "k >= 2b + 1, Gaucher et al. 2025, arXiv:2410.10418; the share measured", sparse=True, memory="number"
        ),
        "cs_nnm": Facts(
            ("b",), 2, 1, 0.25, "k >= 2b + 1, as cs_plus; the share measured", memory="number"
        ),
        "clipped_gossip": Facts(
            ("b",), 2, 1, 0.1, "k >= 2b + 1; the share measured, He et al. 2022, arXiv:2202.01545", sparse=True
        ),
        "norm_bound": Facts(
            ("tau",), share=0.25, source="that of sac at the best threshold, Sun et al. 2019, arXiv:1911.07963", sparse=True
        ),
        "nna": Facts(
            ("b",), 2, 1, 0.2, "k >= 2b + 1; in practice a fifth, Farhadkhani et al. 2023, arXiv:2209.10931", sparse=True
        ),
        "ubar": Facts(("share",), 1, 1, source="one good peer, Guo et al. 2020, arXiv:2002.08569", losses=True),
        "balance": Facts(
            ("gamma", "share"), source="any, where data are alike, Fang et al. 2024, arXiv:2406.10416", sparse=True, memory="number"
        ),
        "bridge": Facts(("b",), 2, 1, source="k >= 2b + 1, Fang et al. 2022, arXiv:1908.08098"),
        "flag": Facts(per_bad=2, source=f"{_MINORITY}, Almansoori et al. 2023, arXiv:2302.05865"),
        "foolsgold": Facts(
            share=0.0, source="it finds clones alone, and any other liar moves it anywhere, Fung et al. 2018, arXiv:1808.04866",
            memory="peers",
        ),
    }
)  # fmt: skip
FIRST = ("nnm", "bucketing")
"""What may be done to the vectors before a rule."""


def check(rule: str, k: int, b: int, bad_share: float, before: str = "", bucket: int = 1) -> None:
    """Check that a rule can stand what it is set for.

    Args:
        rule: its name.
        k: peers a round.
        b: bad ones among them that it is set for; of meaning for rules that take it.
        bad_share: bad members of the swarm, as a share.
        before: what is done first: one of FIRST, or "".
        bucket: vectors of a bucket.

    Raises:
        ValueError: it cannot; one line with the bound and its source.
    """
    if rule not in FACTS:
        raise ValueError(f"robust.rule: {rule!r} is unknown, choose one of {', '.join(FACTS)}")
    if before not in ("", *FIRST):
        raise ValueError(f"robust.before: {before!r} is unknown, choose one of {', '.join(FIRST)}")
    facts = FACTS[rule]
    vectors = -(-k // bucket) if before == "bucketing" else k
    said = f"{vectors} buckets of k = {k} peers" if before == "bucketing" else f"k = {k} peers"
    if "b" in facts.keys and vectors < facts.least_peers(b):
        raise ValueError(f"robust.b: {rule} needs k >= {facts.least_peers(b)} for b = {b} ({facts.source}), got {said}")
    if before == "nnm" and k < 2 * b:
        raise ValueError(
            f"robust.b: nnm needs k >= {2 * b} for b = {b} (m >= 2b + 1, Allouah et al. 2023, arXiv:2302.01772), got {said}"
        )
    if facts.memory == "peers" and before:
        raise ValueError(f"robust.before: {rule} tells peers apart, whom {before} mixes; must be empty")
    if bad_share > facts.share:
        raise ValueError(f"bad_share: {rule} stands at most {facts.share:g} ({facts.source}), got {bad_share:g}")
    if ("b" in facts.keys or before == "nnm") and bad_share * k > b:
        raise ValueError(
            f"robust.b: of k = {k} peers {bad_share * k:.3g} are bad on average at bad_share = {bad_share:g}, more than b = {b}"
        )
