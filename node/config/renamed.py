"""What founded manifests say otherwise than settings do today; by their bytes a swarm is known, so they are read and written as before.

    mix.drift_limit of pet          is mix.drift_noise or mix.refutable, by what moves flows
    mix.residual, mix.outer_lr      of sparse_outer, which had neither: without them a founded manifest says 0 and 1, and not what is the
                                    default today

Torch-free.
"""

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

from starling.gossip.mix.pet import chosen_track

OLD = "drift_limit"
_WITHOUT: Mapping[str, Mapping[str, float]] = MappingProxyType({"sparse_outer": {"residual": 0.0, "outer_lr": 1.0}})
"""By mix, keys that it did not begin with, and what a founded manifest without them means."""


def renamed(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return plain settings of a founded manifest as they would be written today."""
    mix = raw.get("mix")
    if not isinstance(mix, dict):
        return raw
    mix = {**_WITHOUT.get(str(mix.get("kind")), {}), **mix}
    if OLD not in mix:
        return {**raw, "mix": mix}
    kept = {key: value for key, value in mix.items() if key != OLD}
    if mix[OLD] is not None:
        kept[today(raw)] = mix[OLD]
    return {**raw, "mix": kept}


def today(raw: Mapping[str, Any]) -> str:
    """Return the name of the key that says it today."""
    optimizer, mix = raw.get("optimizer"), raw["mix"]
    kind = optimizer.get("kind", "sgd") if isinstance(optimizer, dict) else "sgd"
    agreed = SimpleNamespace(
        mix=SimpleNamespace(track=mix.get("track"), kappa=mix.get("kappa")), optimizer=SimpleNamespace(kind=kind)
    )
    return "refutable" if chosen_track(agreed) == "difference" else "drift_noise"


def stored(plain: dict[str, Any]) -> None:
    """Change plain settings with all keys to those by whose bytes a manifest is known."""
    mix = plain["mix"]
    if mix["kind"] == "pet":
        both = {key: mix.pop(key) for key in ("drift_noise", "refutable")}
        mix[OLD] = both[today(plain)]
    for key, value in _WITHOUT.get(mix["kind"], {}).items():
        if mix[key] == value:
            del mix[key]


def refusal(value: object) -> str:
    """Return what is said of the old key in settings that are not founded yet."""
    return (
        f"mix.{OLD}: has become two keys; set mix.drift_noise={value} where mix.track is drift or both, else mix.refutable={value}, "
        "at most 1 (`starling manifest convert OLD.toml > NEW.toml` does it)"
    )
