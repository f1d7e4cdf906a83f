"""Whether what a manifest says of liars holds together: who is pulled from, the rule, and the share of bad members. Torch-free."""

from __future__ import annotations

from gossip.errors import ConfigError
from node.config import Manifest, RobustSection

_DEAR_KIB = 1024


def check(manifest: Manifest) -> None:
    """Whether pulling, rule and the share of bad members go together.

    Raises:
        ConfigError: they do not, and why.
    """
    mix, overlay, select = manifest.mix, manifest.overlay, manifest.compress.select
    if mix.kind != "gather":
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
        warnings.append("robust.rule: one liar among those asked ruins a mean; `--set robust.rule=cs_plus`")
    if manifest.preset == "open" and admission.kind == "open" and admission.memory_kib < _DEAR_KIB:
        warnings.append(
            f"admission.memory_kib: {admission.memory_kib} makes new identities cheap on a GPU; `--set admission.memory_kib=8192`"
        )
    return warnings
