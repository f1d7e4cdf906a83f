"""Check that a combining rule tolerates the number of Byzantine members it is set for. Torch-free."""

from starling.robust.catalogue import RULES


def check(
    rule: str, k: int, f: int, byzantine_fraction: float, before: str | None = None, bucket: int = 1, *, trusted: bool = False
) -> None:
    """Check that a rule tolerates the fraction of Byzantine members, and the f among k peers a round that it is set for, if it has such a
    number.

    `before` is a name in PREAGGREGATIONS, `bucket` its vectors per bucket; `trusted` as in `Catalogue.load`. Raises ConfigError: an unknown
    name; ValueError: it does not; one line with the bound and its source.
    """
    facts, takes_f = RULES.facts(rule, trusted=trusted), "f" in RULES.parameters(rule, trusted=trusted)
    vectors = -(-k // bucket) if before == "bucketing" else k
    available = f"{vectors} buckets of k = {k} peers" if before == "bucketing" else f"k = {k} peers"
    if takes_f and vectors < facts.least_peers(f):
        raise ValueError(f"robust.f: {rule} needs k >= {facts.least_peers(f)} for f = {f} ({facts.source}), got {available}")
    if before == "nnm" and k < 2 * f:
        raise ValueError(
            f"robust.f: nnm needs k >= {2 * f} for f = {f} (m >= 2f + 1, Allouah et al. 2023, arXiv:2302.01772), got {available}"
        )
    if facts.memory == "peers" and before:
        raise ValueError(f"robust.before: {rule} needs separate peers, which {before} mixes; must be left out")
    if byzantine_fraction > facts.share:
        raise ValueError(f"byzantine_fraction: {rule} tolerates at most {facts.share:g} ({facts.source}), got {byzantine_fraction:g}")
    if (takes_f or before == "nnm") and byzantine_fraction * k > f:
        raise ValueError(
            f"robust.f: of k = {k} peers {byzantine_fraction * k:.3g} are Byzantine on average at byzantine_fraction = "
            f"{byzantine_fraction:g}, more than f = {f}"
        )
