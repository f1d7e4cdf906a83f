"""Export a trained model in the formats of other libraries.

torch   a state_dict, which `torch.load(weights_only=True)` reads; of a model with a packed base what was trained of it
hf      the folder of `save_pretrained` of a transformers model
peft    the adapters alone, in peft's own folder format
onnx    the graph of the model's forward, with any number of samples, as the task calls it on held-out data
"""

import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from starling.gossip.errors import ConfigError
from starling.node.engine.model_file import complete
from starling.node.engine.quantised import quantised
from starling.node.tasks.api import Data, Task
from starling.node.tasks.trees import mapped

_WHOLE = ("hf", "onnx")  # formats that hold the whole model


def write(form: str, model: Any, task: Task, data: Callable[[], Data], target: Path) -> None:
    """Write a model in one of `FORMS` to the file or folder `target`; `data` is called if a batch is needed.

    Raises ConfigError: this model or task has no such form, or a package is missing. OSError: it cannot be written.
    """
    if form in _WHOLE and quantised(model):
        raise ConfigError(
            f"--format: {form} holds the whole model, and the base of this {type(model).__name__} is packed; try `--format peft`, or "
            "`--format torch`, which hold what was trained"
        )
    os.environ["HF_HUB_OFFLINE"] = "1"  # peft would query the hub about the base model
    model.eval()
    FORMS[form](model, task, data, target)


def _torch(model: nn.Module, _task: Task, _data: Callable[[], Data], target: Path) -> None:
    part = target.with_name(target.name + ".part")
    torch.save(complete(model), part)
    try:
        torch.load(part, weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        part.unlink()
        raise ConfigError(
            f"--format: torch holds what get_extra_state() gives, which torch.load(weights_only=True) does not read in this "
            f"{type(model).__name__}; let it give numbers, text, tensors, lists and dicts, or try `--format safetensors`"
        ) from error
    part.replace(target)


def _hf(model: Any, _task: Task, _data: Callable[[], Data], target: Path) -> None:
    if hasattr(model, "peft_config"):
        raise ConfigError("--format: hf does not fit a model with adapters; try `--format peft`")
    if not hasattr(model, "save_pretrained"):
        raise ConfigError(f"--format: hf needs a transformers model, this task's is a {type(model).__name__}; try `--format safetensors`")
    model.save_pretrained(target)


def _peft(model: Any, _task: Task, _data: Callable[[], Data], target: Path) -> None:
    if not hasattr(model, "peft_config"):
        raise ConfigError(
            f"--format: peft needs a model with adapters, this task's is a {type(model).__name__}; try `--format safetensors`"
        )
    model.save_pretrained(target, save_embedding_layers=False)


def _onnx(model: nn.Module, task: Task, data: Callable[[], Data], target: Path) -> None:
    called: list[tuple[Any, Mapping[str, Any]]] = []
    hook = model.register_forward_pre_hook(lambda _module, args, named: called.append((args, dict(named))), with_kwargs=True)
    with torch.no_grad():
        task.score(model, next(iter(data().held_out(2))))
    hook.remove()
    if not called:
        raise ConfigError(
            f"--format: onnx needs a model whose forward the task's score() calls, {type(model).__name__}'s is not; "
            "try `--format safetensors`"
        )
    args, named = called[0]
    sizes = mapped(lambda each: {0: torch.export.Dim.AUTO} if isinstance(each, Tensor) and each.ndim else None, (args, named))
    try:
        program = torch.onnx.export(
            model, args, kwargs=dict(named), dynamo=True, dynamic_shapes=(*sizes[0], *sizes[1].values()), verbose=False
        )
    except ImportError as error:
        raise ConfigError("--format: onnx needs onnx and onnxscript; `pip install 'starling-swarm[onnx]'`") from error
    except Exception as error:  # torch.export has many
        said = " ".join(str(error).split())[:200]
        raise ConfigError(f"--format: onnx cannot say what {type(model).__name__} computes: {said}") from error
    assert program is not None
    program.save(target)


FORMS: Mapping[str, Callable[[nn.Module, Task, Callable[[], Data], Path], None]] = {
    "torch": _torch,
    "hf": _hf,
    "peft": _peft,
    "onnx": _onnx,
}
