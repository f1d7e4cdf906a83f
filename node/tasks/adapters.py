"""Models of other libraries as tasks: Hugging Face language models, LoRA of any model by peft, Lightning modules.

The libraries are extras (`pip install 'starling-swarm[peft]'`), imported on use. Nothing is fetched from a hub and nothing is unpickled: a
pretrained model is a folder on this machine with safetensors files.

Shapes: m sequences of a batch, t = context + 1 tokens of a window.
"""

import copy
import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from starling.gossip.errors import ConfigError
from starling.node.catalogues import OPTIMIZERS
from starling.node.tasks import own
from starling.node.tasks.api import Source
from starling.node.tasks.samples import rows, seeded
from starling.node.tasks.text import Text, TextData

Make = Callable[[], nn.Module]
_BETAS = ("beta_1", "beta_2")


@dataclass(frozen=True, slots=True, eq=False)
class LanguageModel:
    """Satisfies `starling.node.tasks.api.Task`; see `causal_lm` for the fields."""

    make: Make
    text: Text
    tokenizer: str = ""
    higher_is_better: bool = False

    @property
    def metric(self) -> str:
        """Of bytes or of tokens."""
        return "bits_per_token" if self.tokenizer else "bits_per_byte"

    def model(self, generator: Generator) -> nn.Module:
        """A fresh model; global generators are seeded from `generator` for it, and restored."""
        with seeded(int(torch.randint(2**62, (), generator=generator))):
            return self.make()

    def data(self, source: Source, device: str) -> TextData:
        """Our shard of the built-in text, or all of the volunteer's own. Raises ConfigError if it is missing or too short."""
        return self.text.windows(source, device, _encoder(self.tokenizer) if self.tokenizer else None)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Mean cross-entropy in nats a token."""
        logits = model(input_ids=batch[:, :-1]).logits
        return cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))

    def score(self, model: nn.Module, batch: Tensor) -> tuple[float, float, int]:
        """(bits, nats, tokens predicted)."""
        tokens = batch[:, 1:].numel()
        nats = float(self.loss(model, batch)) * tokens
        return nats / math.log(2), nats, tokens


def causal_lm(
    model: Any, *, text: str | Path, context: int = 128, tokenizer: str | Path | None = None
) -> LanguageModel:
    """Prediction of the next token by a `transformers` model. The last tenth of each text is held out.

    Args:
        model: a `transformers` config, the folder of a pretrained model, or a function that makes a model, e.g. what `lora` returns.
        text: a file, or a folder of .txt files: the built-in data; a volunteer's own come before it.
        context: tokens the model looks back.
        tokenizer: a tokenizer.json of the `tokenizers` library; None reads bytes, which needs a vocabulary of 256 or more.

    Raises:
        ConfigError: a package or file is missing, or the vocabulary or context of the config is too small.
    """
    vocabulary = getattr(model, "vocab_size", None)
    needed = 256 if tokenizer is None else _tokenizer(str(tokenizer)).get_vocab_size()
    if vocabulary is not None and vocabulary < needed:
        raise ConfigError(f"model: vocab_size must be >= {needed}, the tokens of the text, got {vocabulary}")
    longest = getattr(model, "max_position_embeddings", None)
    if longest is not None and longest < context:
        raise ConfigError(f"context: must be <= max_position_embeddings = {longest} of the model, got {context}")
    return LanguageModel(_maker(model), Text(path=str(text), context=context), str(tokenizer or ""))


def lora(model: Any, **config: Any) -> Make:
    """A function that makes `model` with LoRA adapters, of which alone parameters are trained, exchanged and checkpointed.

    All nodes must have the same base: a folder's is read at each, a config's is random and of the manifest's seed.

    Args:
        model: as of `causal_lm`, or a function that makes any module (then `target_modules` is needed).
        config: of `peft.LoraConfig`: r, lora_alpha, target_modules, …

    Raises:
        ConfigError: peft is missing or refuses the config.
    """
    peft, make = _package("peft", "peft"), _maker(model)
    try:
        chosen = peft.LoraConfig(**config)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"lora: {error}") from error

    def adapted() -> nn.Module:
        made: nn.Module = peft.get_peft_model(make(), copy.deepcopy(chosen))
        return made

    return adapted


@dataclass(frozen=True, slots=True, eq=False)
class LightningTask(own.Made):
    """A LightningModule's training_step and validation_step; see `lightning`."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """What training_step returns."""
        with _logging(model):
            return _loss_of(model.training_step(batch, 0))  # type: ignore[operator]

    def score(self, model: nn.Module, batch: Any) -> tuple[float, float, int]:
        """(sum of the metric, sum of the loss, samples), of what validation_step logs and returns."""
        count = rows(batch)
        with _logging(model) as logged:
            returned = model.validation_step(batch, 0)  # type: ignore[operator]
        loss = None if returned is None else float(_loss_of(returned))
        if self.metric != "loss" and self.metric not in logged:
            raise ConfigError(
                f"metric: validation_step does not log {self.metric!r}, it logs {', '.join(logged) or 'nothing'}"
            )
        if loss is None:
            loss = logged.get("val_loss", logged.get("loss"))
        if loss is None:
            raise ConfigError("validation_step: must return the loss, or log it as val_loss")
        return (loss if self.metric == "loss" else logged[self.metric]) * count, loss * count, count


def lightning(
    module: Make, train: Any = None, test: Any = None, *, metric: str = "loss", higher_is_better: bool = False,
) -> LightningTask:  # fmt: skip
    """A task from a LightningModule: its training_step is the loss, its validation_step the score. No Trainer is used.

    The optimiser is the swarm's, in the manifest: `optimizer_settings` gives that of configure_optimizers.

    Args:
        module: makes a fresh LightningModule.
        train: as of `starling.task`, or a LightningDataModule; None: the module's own train_dataloader().
        test: the same; None: of a data module or of the module its val_dataloader(), else one sample in ten is held out.
        metric: what validation_step logs under that name; "loss": what it returns or logs as val_loss.
        higher_is_better: of the metric.

    Raises:
        ConfigError: the module optimises by itself (manual optimisation), or has no training_step or data.
    """
    probe: Any = module()
    if not callable(getattr(probe, "training_step", None)):
        raise ConfigError(f"module: {type(probe).__name__} has no training_step")
    if not getattr(probe, "automatic_optimization", True):
        raise ConfigError(
            "module: manual optimisation (automatic_optimization = False) cannot be used; the swarm's optimiser steps"
        )
    source: Any = probe if train is None else train
    if hasattr(source, "train_dataloader"):
        if source is not probe:
            source.prepare_data()
            source.setup("fit")
        train = source.train_dataloader()
        test = source.val_dataloader() if test is None and _overrides(source, "val_dataloader") else test
    made = own.task(model=module, train=train, test=test)
    return LightningTask(module, made.train, made.test, None, None, metric, higher_is_better)


def optimizer_settings(module: Any) -> dict[str, Any]:
    """Keys of the manifest that say what `configure_optimizers` of a LightningModule says, for `found` or `simulate(set=…)`.

    Raises ConfigError: it cannot be said: several optimisers, groups that differ, a schedule, a class or argument without a key.
    """
    made = module.configure_optimizers()
    made = made[0] if isinstance(made, list | tuple) and len(made) == 1 else made
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(
            f"configure_optimizers: returns a {type(made).__name__}, a manifest can say one optimiser without a scheduler; "
            "return that, and set optimizer.schedule"
        )
    name = next((each for each in OPTIMIZERS.built_in if OPTIMIZERS[each] is type(made)), None)
    if name is None:
        raise ConfigError(f"configure_optimizers: {type(made).__name__} is none of {', '.join(OPTIMIZERS.built_in)}")
    groups = [{key: value for key, value in group.items() if key != "params"} for group in made.param_groups]
    if any(group != groups[0] for group in groups):
        raise ConfigError("configure_optimizers: its groups of parameters differ; a manifest has one group")
    keyed = OPTIMIZERS.keyed(name)
    taken = set(inspect.signature(keyed).parameters) if keyed is not None else set()
    given = dict(groups[0])
    if "betas" in given:
        given |= dict(zip(_BETAS, given.pop("betas"), strict=True))
    found = {"optimizer": name, "optimizer.schedule": "constant", "optimizer.lr": float(given.pop("lr"))}
    for key, value in given.items():
        default = inspect.signature(type(made)).parameters.get(key)
        if key in taken:
            found[f"optimizer.{key}"] = value
        elif (
            default is not None
            and value != default.default
            and key not in {"foreach", "fused", "decoupled_weight_decay"}
        ):
            raise ConfigError(f"configure_optimizers: {key} = {value!r} of {name} has no key in a manifest")
    return found


@contextmanager
def _logging(model: nn.Module) -> Iterator[dict[str, float]]:
    """What the module logs, which would ask for a Trainer."""
    logged: dict[str, float] = {}

    def log(name: str, value: Any, *_: Any, **__: Any) -> None:
        logged[name] = _float(value)

    def log_dict(values: Mapping[str, Any], *_: Any, **__: Any) -> None:
        logged.update({name: _float(value) for name, value in values.items()})

    vars(model).update(log=log, log_dict=log_dict)
    try:
        yield logged
    finally:
        for name in ("log", "log_dict"):
            vars(model).pop(name, None)


def _float(value: Any) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)


def _loss_of(returned: Any) -> Tensor:
    found: Tensor = returned["loss"] if isinstance(returned, Mapping) else returned
    return found


def _overrides(given: Any, name: str) -> bool:
    """Whether a module has a method of its own: Lightning's raises where it was not written."""
    return not getattr(type(given), name).__module__.startswith(("lightning.", "pytorch_lightning."))


def _maker(model: Any) -> Make:
    """A function that makes the model which a config, a folder or a function stands for."""
    if isinstance(model, str | Path):
        folder, auto = Path(model), _package("transformers", "transformers").AutoModelForCausalLM
        if not (folder / "config.json").is_file():
            raise ConfigError(f"model: {folder} is no folder of a transformers model: it has no config.json")
        return lambda: auto.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    if hasattr(model, "model_type"):
        auto = _package("transformers", "transformers").AutoModelForCausalLM
        return lambda: auto.from_config(copy.deepcopy(model))
    if isinstance(model, nn.Module) or not callable(model):
        raise ConfigError(
            f"model: give a config, a folder, or a function that makes the model, got a {type(model).__name__}"
        )
    made: Make = model
    return made


def _tokenizer(file: str) -> Any:
    made = _package("tokenizers", "transformers").Tokenizer
    try:
        return made.from_file(file)
    except Exception as error:  # the library raises Exception itself
        raise ConfigError(f"tokenizer: {file} cannot be read: {' '.join(str(error).split())[:200]}") from error


def _encoder(file: str) -> Callable[[Path, NDArray[np.uint8]], NDArray[Any]]:
    tokenizer = _tokenizer(file)

    def encode(path: Path, raw: NDArray[np.uint8]) -> NDArray[Any]:
        try:
            words = raw.tobytes().decode()
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: is not UTF-8, byte {error.start}: {error.reason}") from error
        return np.asarray(tokenizer.encode(words, add_special_tokens=False).ids, np.int32)

    return encode


def _package(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"this task needs the package {name}; `pip install 'starling-swarm[{extra}]'`") from error
