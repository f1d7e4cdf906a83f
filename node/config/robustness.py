"""Whether what a manifest says of liars holds together: who is pulled from, the rule, and the share of bad members. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from starling.gossip.errors import ConfigError
from starling.gossip.mix.catalogue import MIXERS
from starling.node.config.schema import Manifest, RobustSection
from starling.robust import breakdown
from starling.robust.catalogue import RULES

_DEAR_KIB = 1024
_ANY = 1000  # peers, more than any rule needs
_MOST_K = 32


def check(manifest: Manifest, *, trusted: bool = False) -> None:
    """Whether pulling, rule and the share of bad members go together.

    Args:
        manifest: of the swarm.
        trusted: as in `Catalogue.load`.

    Raises:
        ConfigError: they do not, and why.
    """
    mix, overlay, select = manifest.mix, manifest.overlay, manifest.compress.select
    if not MIXERS.facts(mix.kind, trusted=trusted).gathers:
        if overlay.kind == "pull":
            raise ConfigError(
                f"overlay.kind: who is pulled from learns nothing in return, which only mix=gather stands, got mix={mix.kind}; "
                "try `--set preset=open`"
            )
        if manifest.bad_share:
            raise ConfigError(
                f"bad_share: mix={mix.kind} has no rule that stands bad members, must be 0, got {manifest.bad_share:g}; "
                "try `--set preset=open`"
            )
        return
    if overlay.kind == "sticky":
        raise ConfigError(
            "overlay.kind: gather asks whom the overlay names in a round, and sticky edges have no rounds; try `--set overlay=pull`"
        )
    if overlay.average_every:
        raise ConfigError(
            f"overlay.average_every: an exact average takes in every liar, must be 0 with mix=gather, got {overlay.average_every}; "
            "try `--set overlay.average_every=0`"
        )
    if select != "full":
        raise ConfigError(
            f"compress.select: gather combines whole models, must be full, got {select}; try `--set compress.select=full`"
        )
    if overlay.kind == "pull":
        check_rule(manifest, overlay.k)
        return
    check_rule(
        msgspec.structs.replace(manifest, bad_share=0.0), _ANY
    )  # how many a node meets depends on the number of members
    if manifest.bad_share > (most := RULES.facts(manifest.robust.rule, trusted=trusted).share):
        raise ConfigError(
            f"bad_share: {manifest.robust.rule} stands at most {most:g}, got {manifest.bad_share:g}; try `--set bad_share={most:g}`"
        )


def doubts(manifest: Manifest) -> list[str]:
    """What is allowed among those who trust each other."""
    mix, admission = manifest.mix, manifest.admission
    if mix.kind != "gather":
        warnings = (
            []
            if mix.clip_norm
            else ["mix.clip_norm: 0 is off, so one lying peer can ruin the model; for members you trust only"]
        )
        if manifest.robust != RobustSection():
            warnings.append(f"robust: has no effect with mix={mix.kind}; `--set preset=open` shows what goes with it")
        return warnings
    warnings = []
    if manifest.robust.rule == "mean":
        warnings.append("robust.rule: one liar among those asked ruins a mean; `--set robust.rule=cs_nnm`")
    if manifest.robust.rule == "foolsgold":
        warnings.append(
            "robust.rule: foolsgold finds clones alone, any other liar ruins the model; `--set robust.rule=cs_nnm`"
        )
    if manifest.preset == "open" and admission.kind == "open" and admission.memory_kib < _DEAR_KIB:
        warnings.append(
            f"admission.memory_kib: {admission.memory_kib} makes new identities cheap on a GPU; `--set admission.memory_kib=8192`"
        )
    return warnings


def check_rule(manifest: Manifest, k: int) -> None:
    """Whether the rule stands `bad_share`, and the b it is set for, where a node is told k models a round.

    Raises:
        ConfigError: it does not, and what to try.
    """
    if why := _objection(manifest, k):
        cure = next(
            (cure for cure, changed, peers in _changes(manifest, k) if not _objection(changed, peers)), "preset=open"
        )
        raise ConfigError(f"{why}; try `--set {cure}`")


def _objection(manifest: Manifest, k: int) -> str:
    robust = manifest.robust
    try:
        breakdown.check(robust.rule, k, robust.b, manifest.bad_share, robust.before, robust.bucket, trusted=True)
    except ValueError as error:
        return str(error)
    return ""


def _changes(manifest: Manifest, k: int) -> Iterator[tuple[str, Manifest, int]]:
    """Changes of one key, and what they make of the manifest and of k; the one to be preferred comes first."""
    for b in reversed(range(_MOST_K)):
        yield f"robust.b={b}", _with(manifest, b=b), k
    for more in range(k + 1, _MOST_K + 1):
        yield f"overlay.k={more}", manifest, more
    for rule in ("cs_nnm", "sac"):
        yield f"robust.rule={rule}", _with(manifest, rule=rule), k
    for share in (0.3, 0.2, 0.1, 0.0):
        yield f"bad_share={share:g}", msgspec.structs.replace(manifest, bad_share=share), k


def _with(manifest: Manifest, **changes: object) -> Manifest:
    return msgspec.structs.replace(manifest, robust=msgspec.structs.replace(manifest.robust, **changes))
