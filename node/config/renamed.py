"""A key that has become two: `mix.drift_limit` of the mix "pet" is `mix.drift_noise` or `mix.refutable`, by what moves flows.

Founded manifests still say it in the old key, by whose bytes a swarm is known, so these are read and written as before. Torch-free.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from starling.gossip.mix.pet import chosen_track

OLD = "drift_limit"


def renamed(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return plain settings with today's key in the place of the old one; themselves where they do not have it."""
    mix = raw.get("mix")
    if not isinstance(mix, dict) or OLD not in mix:
        return raw
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


def refusal(value: object) -> str:
    """Return what is said of the old key in settings that are not founded yet."""
    return (
        f"mix.{OLD}: has become two keys; set mix.drift_noise={value} where mix.track is drift or both, else mix.refutable={value}, "
        "at most 1 (`starling manifest convert OLD.toml > NEW.toml` does it)"
    )
