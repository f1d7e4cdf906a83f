"""`starling task check`: run a task as a node runs it, and report step by step what is wrong.

    python -P -m starling.node.engine.task_check FOLDER KIND [DATA]

prints a JSON list of findings; what the task prints goes to standard error.
"""

import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from msgspec import structs
from torch import Tensor

from starling.gossip.catalogue import Scalar
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.node.config.schema import Manifest, PartitionSection, TaskSection
from starling.node.engine.task_smoke_test import calling
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from starling.node.tasks.api import Task
from starling.node.tasks.evaluate import Result, evaluate
from starling.node.tasks.trees import children

STEPS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one step (open, model, batch, step, score, export, reload): `text` has figures, or what is wrong."""

    step: str
    fine: bool
    text: str


def check(kind: str, *, params: Mapping[str, Scalar] | None = None, data: str = "", code: str = "") -> list[Finding]:
    """Open a node's engine on the task, train, evaluate, export and reload. Stops at the first step that fails.

    `kind` and `params` are the keys of the section `task`, `data` a path or "" for the task's built-in ones, `code` a folder searched after
    installed packages.
    """
    keys: dict[str, Any] = {"kind": kind, **(params or {})}
    try:
        manifest = Manifest(seed=1, task=TaskSection(**keys), partition=PartitionSection(shards=1))
    except ConfigError as error:
        return [Finding("open", fine=False, text=str(error))]
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory() as folder:
        for step, run in _steps(manifest, data, code, Path(folder)):
            try:
                findings.append(Finding(step, fine=True, text=calling(kind, step, run)))
            except ConfigError as error:
                findings.append(Finding(step, fine=False, text=str(error)))
                break
    return findings


def _steps(manifest: Manifest, data: str, code: str, folder: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield (name, function -> its figures), in order; each is run before the next is requested."""
    engine = Worker()
    open_request = calls.Open(manifest, data, 0, "cpu", 0, "", "task check", code=code)
    yield "open", lambda: _opened(engine, open_request)
    model = engine.trainer.model
    file = folder / "model.safetensors"
    yield "model", lambda: _same_model(manifest, model.task)
    yield "batch", lambda: _same_batches(manifest, model.data)
    yield "step", lambda: _trained(engine)
    yield "score", lambda: _scored(engine, model.task)
    yield "export", lambda: _exported(engine, file)
    yield "reload", lambda: _reloaded(engine, manifest, file)


def _opened(engine: Worker, open_request: calls.Open) -> str:
    opened = _ask(engine, open_request)
    assert isinstance(opened, calls.Opened)
    return f"{opened.parameters:,} parameters, {opened.samples:,} training samples"


def _same_model(manifest: Manifest, task: Task) -> str:
    one, other = (_model(task, manifest).state_dict() for _ in range(2))
    for name, value in one.items():
        if isinstance(value, Tensor) and not _equal(value, other[name]):
            raise ConfigError(f"model() gives another model each time ({name}): nodes would begin apart; draw from its `generator` alone")
    return f"{len(one)} tensors, equal at every start"


def _same_batches(manifest: Manifest, data: Any) -> str:
    size = manifest.task.batch_size
    one, other = (data.batch(size, generator(1, "task check")) for _ in range(2))
    if not _equal(one, other):
        raise ConfigError("data.batch() gives other samples for an equal generator: draw from its `generator` alone")
    held_out = [list(data.held_out(256)) for _ in range(2)]
    if not _equal(*held_out):
        raise ConfigError("data.held_out() gives other samples each time: it must be the same test split in the same order")
    return f"batches of {size}, {len(held_out[0])} held-out batches of up to 256"


def _trained(engine: Worker) -> str:
    model = engine.trainer.model
    before = engine.vector
    trained = _ask(engine, calls.Train(0, STEPS))
    assert isinstance(trained, calls.Trained)
    if trained.undone == STEPS:
        raise ConfigError(f"all {STEPS} local steps left the finite numbers; check the loss and the scale of the data")
    moved = engine.vector != before
    still = [
        name
        for name, (start, end) in zip(model.layout.names, pairwise(model.layout.offsets), strict=True)
        if not bool(moved[start:end].any())
    ]
    named = f"{', '.join(still[:5])}{f' and {len(still) - 5} more' if len(still) > 5 else ''}"
    if len(still) == len(model.layout.names):
        raise ConfigError(f"{STEPS} steps did not change {named}: the loss does not depend on any parameter, or detaches it")
    remarks = (
        [f"; {trained.undone} of them were undone, as their loss was None, or loss, gradient or model not finite"] if trained.undone else []
    )
    remarks += [f"; they did not change {named}, which the loss may not need"] if still else []
    remarks += [f"; {note}" for note in trained.notes]
    return f"{STEPS} local steps, mean loss {trained.figures.loss:.4g}{''.join(remarks)}"


def _scored(engine: Worker, task: Task) -> str:
    one, other = (_ask(engine, calls.Evaluate()) for _ in range(2))
    assert isinstance(one, calls.Evaluated)
    assert one.loss is not None
    if not _same_figures(one, other):
        raise ConfigError("score() of one model differs from call to call; it must not draw random numbers")
    better = "higher" if task.higher_is_better else "lower"
    remark = "" if math.isfinite(one.loss) else "; the loss of held-out samples is not a finite number: check model and samples"
    return f"{task.metric} {one.value:.4g}, loss {one.loss:.4g} over {one.samples:,} samples; {better} is better{remark}"


def _same_figures(one: calls.Reply, other: calls.Reply) -> bool:
    """Return whether figures are equal, also where one is nan: a metric may be none."""
    return structs.astuple(one) == structs.astuple(other) or repr(one) == repr(other)


def _exported(engine: Worker, file: Path) -> str:
    _ask(engine, calls.Save(str(file)))
    return f"{file.stat().st_size:,} bytes of safetensors"


def _reloaded(engine: Worker, manifest: Manifest, file: Path) -> str:
    local = engine.trainer.model
    model = _model(local.task, manifest)
    model.load_state_dict(safetensors.torch.load_file(file))
    *_, result = evaluate(local.task, model, local.data, 256)
    evaluated = _ask(engine, calls.Evaluate())
    assert isinstance(result, Result)
    assert isinstance(evaluated, calls.Evaluated)
    assert evaluated.loss is not None
    if abs(result.loss - evaluated.loss) > 1e-3 * (1.0 + abs(evaluated.loss)):
        raise ConfigError(
            f"the reloaded model has loss {result.loss:.6g}, the exported one {evaluated.loss:.6g}: "
            "something that it computes with is neither a parameter nor a buffer"
        )
    return f"load_state_dict is strict, {local.task.metric} {result.value:.4g} again"


def _model(task: Task, manifest: Manifest) -> torch.nn.Module:
    return task.model(generator(manifest.seed, "model"))


def _ask(engine: Worker, call: calls.Request) -> calls.Reply:
    reply = engine.handle(call)
    while reply is None:
        reply = engine.step()
    if isinstance(reply, calls.Refused):
        raise ConfigError(reply.reason)
    return reply


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.shape == other.shape and _same_values(one, other)
    held, others = children(one), children(other)
    if held is not None and others is not None:
        return len(held) == len(others) and all(map(_equal, held, others))
    return type(one) is type(other)


def _same_values(one: Tensor, other: Tensor) -> bool:
    """Tell if two tensors are equal, where nan equals nan."""
    if torch.equal(one, other):
        return True
    return one.is_floating_point() and torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())


def main() -> None:
    """Run the child process of `starling task check`."""
    findings_to = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    folder, kind, *data = sys.argv[1:]
    findings = check(kind, data=data[0] if data else "", code=folder)
    with open(findings_to, "w", encoding="utf-8") as stream:  # noqa: PTH123 — a descriptor
        json.dump([asdict(finding) for finding in findings], stream)


if __name__ == "__main__":
    main()
