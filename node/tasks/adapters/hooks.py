"""Hooks of a LightningModule: those that a node calls, and those that it refuses by name because it never would.

A module or data module is refused if it defines a hook that Lightning's `Trainer.fit` calls and `starling.node.tasks.adapters.loop` does
not. So nothing that it defines is ignored in silence.
"""

import dis
from types import FunctionType
from typing import Any

from torch import nn

from starling.gossip.errors import ConfigError

TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
AROUND_STEPS = (
    "on_fit_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_train_epoch_end",
)
AROUND_VALIDATION = (
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_validation_epoch_end",
    "on_validation_end",
)
CALLED = frozenset(
    {
        *AROUND_STEPS,
        *AROUND_VALIDATION,
        *TRANSFERS,
        "training_step",
        "validation_step",
        "configure_optimizers",
        "configure_model",
        "prepare_data",
        "setup",
        "train_dataloader",
        "val_dataloader",
    }
)
"""Hooks that a node calls; `configure_optimizers` only to read it."""

_EVENTS = ("start", "end", "epoch_start", "epoch_end", "batch_start", "batch_end", "model_eval", "model_train")
HARMLESS = frozenset(
    {
        # hooks of Trainer.test and Trainer.predict, which training never calls
        *(f"on_{stage}_{event}" for stage in ("test", "predict") for event in _EVENTS),
        "test_step",
        "predict_step",
        "test_dataloader",
        "predict_dataloader",
        # attributes about the module, or methods that it calls itself
        "CHECKPOINT_HYPER_PARAMS_KEY",
        "CHECKPOINT_HYPER_PARAMS_NAME",
        "CHECKPOINT_HYPER_PARAMS_TYPE",
        "all_gather",
        "automatic_optimization",
        "clip_gradients",
        "cpu",
        "cuda",
        "current_epoch",
        "device",
        "device_mesh",
        "double",
        "dtype",
        "example_input_array",
        "fabric",
        "float",
        "forward",
        "freeze",
        "from_datasets",
        "global_rank",
        "global_step",
        "half",
        "hparams",
        "hparams_initial",
        "load_from_checkpoint",
        "local_rank",
        "logger",
        "loggers",
        "lr_schedulers",
        "manual_backward",
        "name",
        "on_gpu",
        "optimizers",
        "print",
        "remove_ignored_hparams",
        "save_hyperparameters",
        "strict_loading",
        "to",
        "to_onnx",
        "to_tensorrt",
        "to_torchscript",
        "toggle_optimizer",
        "toggled_optimizer",
        "trainer",
        "type",
        "unfreeze",
        "untoggle_optimizer",
    }
)
"""Names that a module may define itself although no node calls them."""

_OPTIMIZER = "the swarm's optimiser steps, as its manifest says (starling.adapters.optimizer_settings)"
_END = "a node does not know when training is over"
_CHECKPOINT = "a node's checkpoints hold parameters and buffers; register_buffer what must be saved"
_MODE = "a node sets the mode of an evaluation itself"
_NAMES = "a node collects what is logged; call self.log with the name that you want"
_EARLIER = "Lightning 2 has on_train_epoch_end and on_validation_epoch_end instead"
REFUSED = {
    "optimizer_step": _OPTIMIZER,
    "optimizer_zero_grad": _OPTIMIZER,
    "lr_scheduler_step": "the swarm has a schedule, optimizer.schedule",
    "configure_gradient_clipping": "the swarm clips gradients, by optimizer.clip_norm",
    "backward": "a node computes the gradient of what training_step returns; change that",
    "configure_callbacks": "a node has no callbacks; do what they do in hooks of the module",
    "configure_sharded_model": "configure_model is its new name",
    "log": _NAMES,
    "log_dict": _NAMES,
    "on_save_checkpoint": _CHECKPOINT,
    "on_load_checkpoint": _CHECKPOINT,
    "on_fit_end": _END,
    "on_train_end": _END,
    "teardown": _END,
    "on_validation_model_eval": _MODE,
    "on_validation_model_train": _MODE,
    "on_validation_model_zero_grad": "an evaluation has no gradients",
    "training_epoch_end": _EARLIER,
    "validation_epoch_end": _EARLIER,
    "training_step_end": _EARLIER,
    "validation_step_end": _EARLIER,
    "on_epoch_start": _EARLIER,
    "on_epoch_end": _EARLIER,
    "tbptt_split_batch": "Lightning 2 has no truncated backpropagation; split the batch in training_step",
}
"""Hooks that no node calls, each with what to do instead."""
OF_DATA_MODULES = {
    "state_dict": "a node draws samples itself, and a resumed run sees the same",
    "load_state_dict": "a node draws samples itself, and a resumed run sees the same",
    "on_exception": "a node that fails is started again",
}
"""The same of hooks that only data modules have."""
_NO_EFFECT = {"RESUME", "NOP", "LOAD_CONST", "BUILD_MAP", "RETURN_VALUE", "RETURN_CONST"}


def refuse_ignored(given: Any) -> None:
    """Raises ConfigError for a hook of a LightningModule or LightningDataModule that no node calls."""
    for name in sorted(library_names(type(given)) | REFUSED.keys()):
        if name in CALLED or name in HARMLESS or not overrides(given, name) or _is_empty(_defined(given, name)):
            continue
        instead = (REFUSED | OF_DATA_MODULES).get(name, "it has no counterpart in a node")
        raise ConfigError(
            f"module: {type(given).__name__}.{name} is not called by a node: {instead}; remove it, in a subclass if others need it"
        )


def overrides(given: Any, name: str) -> bool:
    """Return whether a module or data module defines this itself, instead of inheriting it from Lightning or torch."""
    return _defined(given, name) is not None


def own_hooks(given: Any) -> frozenset[str]:
    """Return the names of `CALLED` that a module or data module defines itself."""
    return frozenset(name for name in CALLED if overrides(given, name))


def library_names(kind: type) -> set[str]:
    """Return the public names that Lightning's own classes give a module or data module."""
    own = (each for each in _library(kind) if each.__module__.startswith(("lightning", "pytorch_lightning")))
    return {name for each in own for name in vars(each) if not name.startswith("_")}


def _defined(given: Any, name: str) -> Any:
    """Return what the object, or a class that is not the library's, defines under a name; None: nothing."""
    if name in vars(given):
        return vars(given)[name]
    library = _library(type(given))
    for each in type(given).__mro__:
        if name in vars(each):
            return None if each in library else vars(each)[name]
    return None


def _library(kind: type) -> tuple[type, ...]:
    """Return the classes that come from Lightning and torch."""
    for each in kind.__mro__:
        known = each.__name__ in {"LightningModule", "LightningDataModule"}
        if known and each.__module__.startswith(("lightning.", "pytorch_lightning.")):
            return each.__mro__
    return nn.Module.__mro__


def _is_empty(defined: Any) -> bool:
    """Return whether a function does nothing and returns None or an empty dict."""
    return isinstance(defined, FunctionType) and all(
        each.opname in _NO_EFFECT and not each.argval for each in dis.get_instructions(defined)
    )
