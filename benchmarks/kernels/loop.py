"""Speed of a local step relative to a plain PyTorch loop.

One process trains a built-in task by the engine (`starling.kernels.engine_steps`), or is a script that is a member by `starling.Swarm`
(`starling.kernels.script_steps`), another trains the same model by a plain PyTorch loop (`starling.kernels.plain`), with the same data,
batch size and optimiser. Both live through the whole measurement and take turns, a slice of
steps at a time, on one thread each. What counts is processor time, and the pair of slices with the median ratio.

Torch-free: the command line calls it.

Shapes: d parameters.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from starling.kernels.schema import LoopCase
from starling.kernels.slices import Child, children

WARM = 3  # first steps of a process, which are not counted
LEAST = 2  # number of steps of a slice
STEPS, EVER = 4, 10**6  # local steps of a round, and rounds
SAMPLES, SIDE, HIDDEN, TEXT = 2000, 28, 32, 100_000
DRIVERS: Mapping[str, str] = MappingProxyType({"task": "engine_steps", "script": "script_steps"})
"""Modules that measure, by who runs the local steps."""
RATES: Mapping[str, float] = MappingProxyType({"sgd": 0.01, "adamw": 3e-4, "muon": 3e-4})


def measure(model: str, optimizer: str, mix: str, driver: str, repeat: int, seconds: float) -> LoopCase:
    """Measure one case of `starling.kernels.schema`. Raises ConfigError: there is no such optimiser here; GossipError: a process ended."""
    with tempfile.TemporaryDirectory(prefix="starling-loop-") as folder:
        chosen = keys(model, optimizer, mix, Path(folder))
        with children(DRIVERS[driver], "plain", keys=chosen) as (ours, plain):
            for each in (ours, plain):
                each.run(f"steps {WARM}")
            steps = max(LEAST, round(seconds / _step(plain, LEAST)))
            pairs = [(_step(plain, steps), _step(ours, steps)) for _ in range(repeat)]
    pairs.sort(key=lambda pair: pair[0] / pair[1])
    one, other = pairs[(repeat - 1) // 2]
    return LoopCase(
        model=model,
        d=ours.parameters,
        optimizer=optimizer,
        mix=mix,
        driver=driver,
        plain_ms=round(1e3 * one, 4),
        ours_ms=round(1e3 * other, 4),
        kept=round(one / other, 4),
    )


def _step(of: Child, steps: int) -> float:
    """Return the processor seconds of one of so many steps."""
    return of.run(f"steps {steps}").cpu_s / steps


def keys(model: str, optimizer: str, mix: str, folder: Path) -> dict[str, Any]:
    """Return the keys of a case's manifest; data are written to the folder.

    Those of the two nodes differ, so that exchanges leave a correction.
    """
    agreed: dict[str, Any] = {
        "optimizer": optimizer,
        "optimizer.lr": RATES[optimizer],
        "partition.shards": 2,
        "pace.kind": "steps",
        "pace.local_steps": STEPS,
        "pace.rounds": EVER,
        "pace.evaluate_every": EVER,
    }
    agreed |= _MODELS[model](folder)
    return agreed | {"mix": "dsgd" if mix == "dsgd" else "pet"}


def _digits(_folder: Path) -> dict[str, Any]:
    return {"task": "digits", "partition": "by_label"}


def _images(folder: Path) -> dict[str, Any]:
    chance = np.random.default_rng(0)
    labels = chance.integers(0, 10, SAMPLES)
    images = chance.random((SAMPLES, SIDE, SIDE), np.float32)
    for label in range(10):  # a bright bar for each class
        images[labels == label, 2 * label + 4 : 2 * label + 6, 4:24] += 1.0
    file = folder / "images.npz"
    np.savez(file, x=images, y=labels)
    task = {"task": "images", "task.model": "cnn", "task.path": str(file), "task.hidden": HIDDEN}
    return task | {"partition": "by_label"}


def _text(width: int, layers: int) -> Callable[[Path], dict[str, Any]]:
    def made(folder: Path) -> dict[str, Any]:
        chance = np.random.default_rng(0)
        for name, first, last in (("a.txt", 97, 110), ("b.txt", 110, 123)):
            words = [bytes(chance.integers(first, last, length, np.uint8)) for length in chance.integers(2, 9, 500)]
            text = b" ".join(words[word] for word in chance.integers(0, len(words), TEXT // 6))
            (folder / name).write_bytes(text)
        size = {"task.context": 64, "task.width": width, "task.layers": layers, "task.heads": width // 32}
        return {"task": "text", "task.path": str(folder), "task.batch_size": 4, **size, "partition": "by_file"}

    return made


_MODELS: Mapping[str, Callable[[Path], dict[str, Any]]] = MappingProxyType(
    {"mlp": _digits, "cnn": _images, "gpt_800k": _text(128, 4), "gpt_10m": _text(384, 6)}
)
