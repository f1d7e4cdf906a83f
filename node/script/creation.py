"""Create a swarm of scripts: its manifest, from the creator's model and optimiser, and the file of the initial model."""

from __future__ import annotations

import hashlib
import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
import torch
from msgspec import structs
from torch import nn
from torch.optim import Optimizer

from starling.gossip.errors import ConfigError
from starling.gossip.vector import Layout, finite
from starling.node import run_directory
from starling.node.catalogues import OPTIMIZERS
from starling.node.config import manifest as manifests
from starling.node.config import presets, toml
from starling.node.config.assignments import assignments
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.engine import fingerprint
from starling.node.engine.script import start_file
from starling.node.script.parts import Parts, say
from starling.node.storage.run_dir import RunDir

DEFAULTS = MappingProxyType({"pace.rounds": 200, "pace.local_steps": 20, "pace.quorum": 2})
_METRIC = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_OF_SGD = ("momentum", "nesterov", "weight_decay")
_SUGGESTED = re.compile(r"--set ([\w.]+=[^\s`]+)")  # in messages

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Metric:
    """Metric by which models are compared."""

    name: str
    higher_is_better: bool


def create(folder: Path, parts: Parts, metric: Metric, given: Mapping[str, Any], preset: str | None, own: Mapping[str, Any]) -> None:
    """Write a new node's directory.

    `given`: dotted keys of the manifest, which win over the defaults and over what follows from the optimiser; `own`: of the node's
    settings. A value of None is not given.

    Raises ConfigError: the directory holds a node, or wrong keys or values, a line for each.
    """
    wrong: list[str] = []
    layout = parts.parameters.layout
    x = torch.empty(layout.dim, dtype=layout.dtype, device="cpu")
    parts.parameters.read(x)
    if not finite(x):
        wrong.append("model: its parameters are not finite; a swarm cannot begin with them")
    if not _METRIC.fullmatch(metric.name):
        wrong.append(f"metric: must be 1 to 32 letters, digits and _, beginning with a letter, got {metric.name!r}")
        metric = Metric("loss", higher_is_better=False)
    figure = {"task.metric": metric.name, "task.higher_is_better": metric.higher_is_better}
    given = {key: value for key, value in given.items() if value is not None}
    chosen = assignments({"task": "script", **figure, **_optimizer(parts.optimizers), **DEFAULTS, **given})
    with tempfile.TemporaryDirectory() as place:
        start = Path(place) / "start.safetensors"
        lines = fingerprint_of(layout, parts.model, metric)

        def checked(chosen: Sequence[str]) -> tuple[Manifest, list[str]]:
            agreed: Manifest = presets.load(Manifest, None, chosen)
            agreed = structs.replace(agreed, task=agreed.task.changed(start=str(start), fingerprint=lines))
            return agreed, manifests.check(agreed)

        found = _all_wrong(presets.asked(preset, chosen), checked, wrong)
        config = _all_wrong(assignments(own), partial(toml.apply_set, NodeConfig()), wrong)
        if found is None or config is None or wrong:
            raise ConfigError("\n".join(wrong))
        agreed, warnings = found
        for warning in warnings:
            say(warning)
        start_file.write(start, layout, x)
        run_directory.create(folder, agreed, config)


def _all_wrong(chosen: Sequence[str], load: Callable[[Sequence[str]], T], wrong: list[str]) -> T | None:
    """Return the settings that `load` makes of assignments; None: errors were added to `wrong`, a line each.

    Each line behind the first is what `load` says once the ones before are heeded.
    """
    said: list[str] = []
    while True:
        try:
            made = load(chosen)
        except ConfigError as error:
            line = str(error)
        else:
            break
        if line in said:
            break
        said.append(line)
        if not (chosen := _heeded(line, chosen)):
            break
    wrong += said
    return None if said else made


def _heeded(line: str, chosen: Sequence[str]) -> Sequence[str]:
    """Return the assignments corrected as an error suggests, or without the key that it is about; none: it names none."""
    suggested = [each for each in _SUGGESTED.findall(line) if each not in chosen]
    if suggested:
        return [*chosen, *suggested]
    key = line.partition(":")[0].removesuffix(".kind")
    others = [each for each in chosen if not each.startswith((f"{key}=", f"{key}."))]
    return others if len(others) < len(chosen) else ()


def go_on(folder: Path, given: Mapping[str, Any], own: Sequence[str]) -> None:
    """Prepare the directory of a node that was created before, with the settings `own`.

    Raises ConfigError: a wrong key or value, or keys of `given` that its swarm has otherwise, a line for each.
    """
    place = RunDir.existing(folder)
    agreed = place.read_manifest()
    if agreed is not None:
        asked = toml.apply_set(agreed, assignments(given))
        pairs = {key: (_value(agreed, key), _value(asked, key)) for key in given}
        if wrong := [f"{key}: must be {here!r}, got {there!r}" for key, (here, there) in pairs.items() if here != there]:
            raise ConfigError("\n".join(f"{line}; the swarm in {folder} is signed, create another in another directory" for line in wrong))
    place.write_config(toml.apply_set(place.read_config(), own))


def _value(manifest: Manifest, key: str) -> object:
    """Return the value of a dotted key, of a section that of its kind."""
    value: Any = msgspec.to_builtins(manifest)
    for part in key.split("."):
        value = value.get(part)
    return value.get("kind", value) if isinstance(value, dict) else value


def fingerprint_of(layout: Layout, model: nn.Module, metric: Metric) -> tuple[str, ...]:
    """Return the lines by which members compare models: the metric, the values that are not trained, and the trained parameters."""
    tensors = "\n".join(f"{name} {shape}" for name, shape in zip(layout.names, layout.shapes, strict=True))
    digest = hashlib.blake2b(tensors.encode(), digest_size=16).hexdigest()
    frozen = fingerprint.base(model)
    return (
        f"metric {metric.name}, {'higher' if metric.higher_is_better else 'lower'} is better",
        *([f"frozen {frozen}"] if frozen else []),
        f"model {layout.dim} {len(layout.names)} {digest}",
    )


def _optimizer(optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    """Return the manifest's keys of the optimiser: its kind, by which corrections are chosen, and its rate."""
    kinds = {type(each).__name__.lower() for each in optimizers}
    rate = float(optimizers[0].param_groups[0]["lr"])
    common = {"optimizer.lr": rate if math.isfinite(rate) and rate > 0.0 else None, "optimizer.schedule": "constant"}
    kind = "muon" if "muon" in kinds else next(iter(kinds)) if len(kinds) == 1 else ""
    if kind not in OPTIMIZERS.built_in or not all(type(each).__module__.startswith("torch.optim") for each in optimizers):
        return {**common, "mix": "dsgd"}
    group = optimizers[0].param_groups[0]
    keys = {f"optimizer.{key}": group[key] for key in _OF_SGD if key in group} if kind == "sgd" else {}
    return {**common, "optimizer": kind, **keys}
