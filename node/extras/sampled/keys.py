"""Keys of sampled rounds, and rules for them. Torch-free.

Aggregators write everybody's model, so a few are safe only among trusted members: of a aggregators, each Byzantine with probability b, a
majority is Byzantine with the binomial tail P(X > a/2), independently in every round.
"""

from dataclasses import dataclass
from math import comb
from typing import Annotated, Any

from msgspec import Meta

from starling.gossip.errors import ConfigError
from starling.robust.catalogue import RULES

TOLERABLE = 1e-3  # probability that a run has a round whose aggregators are mostly Byzantine
SOURCE = "the binomial tail, and de Vos et al. 2023, arXiv:2302.13837, who assume honest members"


def bad_majority(members: int, share: float) -> float:
    """Return the probability that at least half of this many drawn members are Byzantine, given their share; 0 for none drawn."""
    least = (members + 1) // 2
    return sum(comb(members, k) * share**k * (1.0 - share) ** (members - k) for k in range(least, members + 1)) if members else 0.0


@dataclass(frozen=True, slots=True)
class Sampled:
    """Rounds in which a few members train and a few average, while all others sleep.

    Args:
        max_wait_s: the adaptive deadline of a pull never exceeds this; so long are others than the first waited for at most.
        sample: members that train in a round.
        aggregators: members that average what the sample has learned; 0: each member of the next sample does.
        success: share of the sample whose models are enough, more than half: two halves would make two models of one round.
        slack: members woken beyond the sample, for those that are slow.
    """

    max_wait_s: Annotated[float, Meta(ge=0.01, le=3600)] = 10.0
    sample: Annotated[int, Meta(ge=2, le=1024)] = 10
    aggregators: Annotated[int, Meta(ge=0, le=64)] = 3
    success: Annotated[float, Meta(gt=0.5, le=1)] = 0.6
    slack: Annotated[int, Meta(ge=0, le=64)] = 2

    @staticmethod
    def check(agreed: Any) -> list[str]:
        """Raise ConfigError where sampled rounds cannot work, or what is set would be ignored."""
        _check(agreed)
        return []


def _check(agreed: Any) -> None:
    """Raise ConfigError where sampled rounds cannot work, or what is set would be ignored."""
    pace, mix, overlay, preset = agreed.pace, agreed.mix, agreed.overlay, agreed.preset
    share = agreed.byzantine_fraction
    drawn = pace.aggregators or pace.sample
    who = "aggregators" if pace.aggregators else "members of a sample"
    if preset != "custom":
        bad = bad_majority(drawn, 0.2)
        raise ConfigError(
            f"pace.kind: sampled lets {drawn} {who} write everybody's model, and preset={preset} is for members one need not trust: with a "
            f"fifth of them Byzantine half of these or more are so in {100 * bad:.2g} % of rounds ({SOURCE}); "
            "try `--set pace.kind=steps`, or preset=custom, which promises nothing"
        )
    if share and bad_majority(drawn, share) * (pace.rounds or float("inf")) > TOLERABLE:
        raise ConfigError(
            f"pace.{'aggregators' if pace.aggregators else 'sample'}: half or more of {drawn} {who} are Byzantine in "
            f"{100 * bad_majority(drawn, share):.2g} % of rounds with byzantine_fraction = {share:g}; that must happen in fewer than "
            f"{TOLERABLE:g} of runs ({SOURCE}); try `--set pace.kind=steps`, or `--set pace.aggregators=0` with a larger pace.sample"
        )
    if mix.kind != "gather":
        raise ConfigError(
            f"mix.kind: sampled rounds combine whole models, and corrections of nodes that speak now and then are stale: must be gather, "
            f"got {mix.kind}; try `--set mix.kind=gather --set robust.rule=mean --set compress.select=full`"
        )
    if RULES.facts(agreed.robust.rule, trusted=False).memory != "nothing":
        raise ConfigError(
            f"robust.rule: {agreed.robust.rule} uses vectors of earlier rounds, in which this node slept; try `--set robust.rule=mean`, "
            "median, trimmed_mean or another without memory"
        )
    if overlay.kind != "complete":
        raise ConfigError(
            f"overlay.kind: a sample is drawn from all members, must be complete with pace.kind = sampled, got {overlay.kind}; "
            "try `--set overlay.kind=complete`"
        )
    if pace.sample > pace.quorum:
        raise ConfigError(
            f"pace.sample: must be <= pace.quorum = {pace.quorum}, the members that there are at the start, got {pace.sample}; "
            f"try `--set pace.quorum={pace.sample}`"
        )
    if pace.aggregators > pace.quorum:
        raise ConfigError(
            f"pace.aggregators: must be <= pace.quorum = {pace.quorum}, got {pace.aggregators}; try `--set pace.aggregators=3`"
        )
    for key, idle, why in (
        ("overlap", False, "there is nothing to do beside the exchanges of a node that sleeps"),
        ("stop_after", 0, "who sleeps evaluates nothing and cannot vote"),
    ):
        if getattr(pace, key) != idle:
            raise ConfigError(f"pace.{key}: {why}, must be left out with pace.kind = sampled; try `--set pace.{key}={str(idle).lower()}`")
