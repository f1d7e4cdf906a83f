"""Use the model of a run directory without its node. Started by `starling eval --data`, and by `eval` and `export` where no node runs.

    python -m starling.node.engine.offline export DIR FILE
    python -m starling.node.engine.offline evaluate DIR MODEL [DATA]    MODEL is exported first if it does not exist
    python -m starling.node.engine.offline convert DIR MODEL FORM TARGET    the same
    python -m starling.node.engine.offline ask DIR MODEL REQUEST    the same

`export` writes the model of the last checkpoint to FILE. `evaluate` prints {"metric", "value", "round", "others"} of the safetensors file
MODEL, on the task's held-out data or on DATA. `convert` writes MODEL in another form (`starling.node.engine.formats`). `ask` lets MODEL go
on from a prompt: REQUEST is {"prompt", "tokens", "temperature", "seed"}, and {"prompt", "text", "tokens", "round"} is printed. DIR is not
changed.
Wrong input: exit 2 and one line on standard error.
"""

import json
import math
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from starling.gossip.errors import ConfigError, GossipError
from starling.gossip.rng import generator
from starling.node.catalogues import task
from starling.node.config import manifest as manifests
from starling.node.config import script
from starling.node.config.schema import Manifest, NodeConfig, PrivacySection
from starling.node.engine import formats, model_file, tensor_file
from starling.node.engine.devices import device
from starling.node.engine.generation import generate
from starling.node.engine.worker import Worker
from starling.node.identity import Identity
from starling.node.rpc import calls
from starling.node.storage.run_dir import RunDir
from starling.node.tasks.api import Generative, Sampled, Source, Task
from starling.node.tasks.evaluate import Result, evaluate
from starling.node.tasks.files import names_in_npz
from starling.node.tasks.reserved import data_of

BATCH = 256  # held-out samples at a time


def export(run_dir: Path, file: Path) -> None:
    """Write the model of the last checkpoint as a node would.

    Raises ConfigError: there is no usable one; GossipError, OSError: it cannot be written.
    """
    place, manifest, config, me, shard = _settings(run_dir)
    if not place.checkpoint.exists():
        raise ConfigError(f"--dir: {run_dir} has no model yet; start the node with `starling run --dir {run_dir}`")
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / place.checkpoint.name  # a session writes its own checkpoint, so it gets a copy
        shutil.copyfile(place.checkpoint, copied)
        engine = Worker()
        open_request = calls.Open(
            manifest=manifest,
            data=config.data,
            shard=shard,
            device=config.device,
            threads=config.threads,
            checkpoint=str(copied),
            node=me,
            privacy=PrivacySection(),
            start=str(place.start) if script.trains(manifest) else config.start,
            script=script.trains(manifest),
        )
        for call in (open_request, calls.Save(str(file))):
            reply = engine.handle(call)
            if isinstance(reply, calls.Refused):
                raise GossipError(f"export: cannot write {file}: {reply.reason}") if reply.kind == "disk" else ConfigError(reply.reason)


def measure(run_dir: Path, model: Path, data: Path | None) -> dict[str, Any]:
    """Return the task's metric of a model file as `starling export` writes it. Raises ConfigError if the model or the data cannot be used.

    `data` is used instead of the node's held-out data; all samples of an .npz file without a test split (x_test).
    """
    _, manifest, config, _, shard = _settings(run_dir)
    on = device(config.device)
    learned, network, facts = _loaded(manifest, model)
    network.to(on)
    path = data or (Path(config.data) if config.data else None)
    held: Any = data_of(learned, Source(path, manifest.partition, shard, manifest.seed), on)
    if data is not None and data.suffix == ".npz" and "x_test" not in names_in_npz(data) and isinstance(held, Sampled):
        held = _Whole(held)
    *_, result = evaluate(learned, network, held, BATCH)
    assert isinstance(result, Result)
    others = {name: value if math.isfinite(value) else None for name, value in result.others.items()}
    return {"metric": learned.metric, "value": result.value, "round": facts.get("round"), "others": others}


def convert(run_dir: Path, model: Path, form: str, target: Path) -> None:
    """Write a model file as `starling export` writes it in one of `formats.FORMS`.

    Raises ConfigError: the model cannot be used, or has no such form. OSError: it cannot be written.
    """
    _, manifest, config, _, shard = _settings(run_dir)
    learned, network, _ = _loaded(manifest, model)
    source = Source(Path(config.data) if config.data else None, manifest.partition, shard, manifest.seed)
    formats.write(form, network, learned, lambda: learned.data(source, "cpu"), target)


def ask(run_dir: Path, model: Path, prompt: str, *, tokens: int, temperature: float, seed: int) -> dict[str, Any]:
    """Return a model's continuation of a prompt, drawn at random from the seed.

    Raises ConfigError: the model cannot be used or does not write, or the prompt is empty or longer than its context.
    """
    _, manifest, config, _, _ = _settings(run_dir)
    learned, network, facts = _loaded(manifest, model)
    if not isinstance(learned, Generative):
        raise ConfigError(
            f"ask: task={manifest.task.kind} does not write text; text and starling.adapters.causal_lm do, or a task with encode(), "
            "decode(), logits() and context"
        )
    begun = learned.encode(prompt)
    if not 0 < len(begun) <= learned.context:
        short = " ".join(learned.decode(begun[-learned.context // 2 :]).split())[:40] or "A"
        raise ConfigError(
            f"PROMPT: must be 1 to {learned.context} tokens (task={manifest.task.kind}), got {len(begun)}; "
            f"try `starling ask {shlex.quote(short)}`"
        )
    on = device(config.device)
    network.to(on).eval()
    chance = generator(seed, "ask")
    written = list(
        generate(
            lambda window: learned.logits(network, window.to(on)),
            begun,
            context=learned.context,
            count=tokens,
            temperature=temperature,
            chance=chance,
        )
    )
    whole, before = learned.decode([*begun, *written]), learned.decode(begun)
    text = whole.removeprefix(before) if whole.startswith(before) else learned.decode(written)
    return {"prompt": prompt, "text": text, "tokens": len(written), "round": facts.get("round")}


def _loaded(manifest: Manifest, file: Path) -> tuple[Task, nn.Module, dict[str, str | int]]:
    """Return the task, the model of a file on the CPU, and the file's facts. Raises ConfigError: it is no model of this swarm, or a
    script's.
    """
    if script.trains(manifest):
        raise script.refused("task.kind", "load the parameters there, which `starling export MODEL.safetensors` writes")
    learned = task(manifest.task.kind, manifest.task.params())
    network = learned.model(generator(manifest.seed, "model"))
    try:
        tensors, facts = tensor_file.load(file)
        model_file.fill(network, tensors)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"{file}: is not a model of this swarm: {' '.join(str(error).split())}") from error
    return learned, network, facts


class _Whole:
    """Data with all samples held out."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def held_out(self, size: int) -> Iterator[Any]:
        """Yield training samples in order, then the test split."""
        for index in torch.arange(self._data.units).split(size):  # type: ignore[no-untyped-call]
            yield self._data.take(index)
        yield from self._data.held_out(size)


def _settings(run_dir: Path) -> tuple[RunDir, Manifest, NodeConfig, str, int]:
    """Return the run directory, manifest and settings, the node's peer id, and its shard."""
    place = RunDir.existing(run_dir)
    manifest, config, me = place.read_manifest(), place.read_config(), Identity.load_or_create(place.key).peer_id
    if manifest is None:
        raise ConfigError(f"--dir: {place.path} has no manifest yet; start the node with `starling run --dir {place.path}`")
    return place, manifest, config, me, manifests.shard_of(manifest, config.shard, me)


def main(arguments: list[str]) -> int:
    """Run the command line -> its exit code."""
    match arguments:
        case ["export", run_dir, file]:
            export(Path(run_dir), Path(file))
        case ["evaluate", run_dir, model, *data]:
            if not Path(model).exists():
                export(Path(run_dir), Path(model))
            out = measure(Path(run_dir), Path(model), Path(data[0]) if data else None)
            sys.stdout.write(json.dumps(out) + "\n")
        case ["convert", run_dir, model, form, target] if form in formats.FORMS:
            if not Path(model).exists():
                export(Path(run_dir), Path(model))
            convert(Path(run_dir), Path(model), form, Path(target))
        case ["ask", run_dir, model, request]:
            if not Path(model).exists():
                export(Path(run_dir), Path(model))
            sys.stdout.write(json.dumps(ask(Path(run_dir), Path(model), **json.loads(request))) + "\n")
        case _:
            raise ConfigError("usage: export DIR FILE, evaluate DIR MODEL [DATA], convert DIR MODEL FORM TARGET, or ask DIR MODEL REQUEST")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    except (GossipError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(3)
