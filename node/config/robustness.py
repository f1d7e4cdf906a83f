"""Check that a manifest's overlay, rule and fraction of Byzantine members agree. Torch-free."""

from collections.abc import Iterator

import msgspec

from starling.gossip.errors import ConfigError
from starling.gossip.mix.catalogue import MIXERS
from starling.node.config.schema import Manifest, RobustSection
from starling.robust import breakdown
from starling.robust.catalogue import RULES

_EXPENSIVE_KIB = 1024
_ANY = 1000  # number of peers, more than any rule needs
_MOST_K = 32
_BOUNDS_ITSELF = "defended_tracking"  # swaps messages, and clips them by its own norms


def check(manifest: Manifest, *, trusted: bool = False) -> None:
    """Check that pulling, the rule and the fraction of Byzantine members agree; `trusted` as in `Catalogue.load`.

    Raises ConfigError: they do not, and why.
    """
    mix, overlay, fraction = manifest.mix, manifest.overlay, manifest.byzantine_fraction
    if not MIXERS.facts(mix.kind, trusted=trusted).gathers:
        if overlay.kind == "pull":
            raise ConfigError(
                f"overlay.kind: a peer that is pulled from gets nothing in return, which only mix=gather allows, got mix={mix.kind}; "
                "try `--set preset=open`"
            )
        if fraction:
            raise ConfigError(
                f"byzantine_fraction: mix={mix.kind} has no rule against Byzantine members, must be 0, got {fraction:g}; "
                "try `--set preset=open`"
            )
        return
    if overlay.kind == "pull":
        check_rule(manifest, overlay.k)
        return
    # the number of neighbors depends on the number of members
    check_rule(msgspec.structs.replace(manifest, byzantine_fraction=0.0), _ANY)
    if fraction > (most := RULES.facts(manifest.robust.rule, trusted=trusted).share):
        raise ConfigError(
            f"byzantine_fraction: {manifest.robust.rule} tolerates at most {most:g}, got {fraction:g}; "
            f"try `--set byzantine_fraction={most:g}`"
        )


def defended(manifest: Manifest) -> bool:
    """Return whether nodes bound the differences that peers show them, where pairs exchange such."""
    return manifest.mix.defended and MIXERS.facts(manifest.mix.kind, trusted=True).defended


def unprotected(manifest: Manifest) -> dict[str, str]:
    """Return the keys by which a manifest does without a bound on what one peer moves: key -> its value, as TOML has it."""
    mix, robust, off = manifest.mix, manifest.robust, {}
    facts = MIXERS.facts(mix.kind)
    if facts.gathers and not RULES.facts(robust.rule).share:
        off["robust.rule"] = robust.rule
    elif facts.gathers and getattr(robust, "f", None) == 0:
        off["robust.f"] = "0"
    if facts.swaps and mix.kind != _BOUNDS_ITSELF:  # messages are kept finite, and not clipped
        off["mix.kind"] = mix.kind
    elif not mix.clip_norm and mix.kind not in {"gather", "sparse_outer", "seeds"}:  # kinds with a robust rule, or mix.norm_bound
        off["mix.clip_norm"] = "0"
    if getattr(mix, "norm_bound", None) == 0.0:
        off["mix.norm_bound"] = "0"
    if not mix.defended and MIXERS.facts(mix.kind, trusted=True).defended:
        off["mix.defended"] = "false"
    return off


def warnings(manifest: Manifest) -> list[str]:
    """Return warnings of settings that are safe only among members that trust each other."""
    mix, admission = manifest.mix, manifest.admission
    if mix.kind == "gather":  # a rule that tolerates nobody has its own note
        if manifest.preset == "open" and admission.kind == "open" and admission.memory_kib < _EXPENSIVE_KIB:
            return [f"admission.memory_kib: {admission.memory_kib} makes new identities cheap on a GPU; `--set admission.memory_kib=8192`"]
        return []
    off = unprotected(manifest)
    found = [f"{key}: with {value} one Byzantine peer can ruin the model; for members you trust only" for key, value in off.items()]
    if manifest.robust != RobustSection():
        found.append(f"robust: has no effect with mix={mix.kind}; `--set preset=open` shows the keys that take effect together")
    return found


def check_rule(manifest: Manifest, k: int) -> None:
    """Check that the rule tolerates `byzantine_fraction`, and the f it is set for, where a node receives k models a round.

    Raises ConfigError: it does not, and what to try.
    """
    if why := _objection(manifest, k):
        cure = next((cure for cure, changed, peers in _changes(manifest, k) if not _objection(changed, peers)), "preset=open")
        raise ConfigError(f"{why}; try `--set {cure}`")


def _objection(manifest: Manifest, k: int) -> str:
    robust = manifest.robust
    keys = robust.params("before") if robust.before else {}
    keys |= robust.params("rule")
    try:
        breakdown.check(robust.rule, k, keys.get("f", 0), manifest.byzantine_fraction, robust.before, keys.get("bucket", 1), trusted=True)
    except ValueError as error:
        return str(error)
    return ""


def _changes(manifest: Manifest, k: int) -> Iterator[tuple[str, Manifest, int]]:
    """Yield changes of one key with the resulting manifest and k, the preferred one first."""
    robust = manifest.robust
    for f in reversed(range(_MOST_K if "f" in robust.__struct_fields__ else 0)):
        yield f"robust.f={f}", _with(manifest, f=f), k
    for more in range(k + 1, _MOST_K + 1):
        yield f"overlay.k={more}", manifest, more
    for rule in ("cs_nnm", "sac"):
        yield f"robust.rule={rule}", _with(manifest, rule=rule), k
    for fraction in (0.3, 0.2, 0.1, 0.0):
        yield f"byzantine_fraction={fraction:g}", msgspec.structs.replace(manifest, byzantine_fraction=fraction), k


def _with(manifest: Manifest, **changes: object) -> Manifest:
    return msgspec.structs.replace(manifest, robust=manifest.robust.changed(**changes))
