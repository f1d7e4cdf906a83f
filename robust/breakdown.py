"""Whether a combining rule tolerates the Byzantine members it is set for. Torch-free."""

from __future__ import annotations

from starling.robust.catalogue import RULES


def check(
    rule: str, k: int, b: int, bad_share: float, before: str = "", bucket: int = 1, *, trusted: bool = False
) -> None:
    """Check that a rule can stand what it is set for.

    Args:
        rule: its name.
        k: peers a round.
        b: bad ones among them that it is set for; of meaning for rules that take it.
        bad_share: bad members of the swarm, as a share.
        before: what is done first: a name in PREAGGREGATIONS, or "".
        bucket: vectors of a bucket.
        trusted: as in `Catalogue.load`.

    Raises:
        ConfigError: an unknown name.
        ValueError: it cannot; one line with the bound and its source.
    """
    facts, takes_b = RULES.facts(rule, trusted=trusted), "b" in RULES.parameters(rule, trusted=trusted)
    vectors = -(-k // bucket) if before == "bucketing" else k
    said = f"{vectors} buckets of k = {k} peers" if before == "bucketing" else f"k = {k} peers"
    if takes_b and vectors < facts.least_peers(b):
        raise ValueError(f"robust.b: {rule} needs k >= {facts.least_peers(b)} for b = {b} ({facts.source}), got {said}")
    if before == "nnm" and k < 2 * b:
        raise ValueError(
            f"robust.b: nnm needs k >= {2 * b} for b = {b} (m >= 2b + 1, Allouah et al. 2023, arXiv:2302.01772), got {said}"
        )
    if facts.memory == "peers" and before:
        raise ValueError(f"robust.before: {rule} tells peers apart, whom {before} mixes; must be empty")
    if bad_share > facts.share:
        raise ValueError(f"bad_share: {rule} stands at most {facts.share:g} ({facts.source}), got {bad_share:g}")
    if (takes_b or before == "nnm") and bad_share * k > b:
        raise ValueError(
            f"robust.b: of k = {k} peers {bad_share * k:.3g} are bad on average at bad_share = {bad_share:g}, more than b = {b}"
        )
