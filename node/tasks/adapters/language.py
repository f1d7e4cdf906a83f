"""Language models of `transformers` as tasks, and LoRA of any module by `peft`.

Nothing is fetched from a hub and nothing is unpickled: a pretrained model is a folder on this machine with safetensors files.

Shapes: m sequences of a batch, t = context + 1 tokens of a window.
"""

import copy
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from starling.gossip.errors import ConfigError
from starling.node.tasks.api import DataError, Source
from starling.node.tasks.gpt import BYTES
from starling.node.tasks.samples import seeded
from starling.node.tasks.text import Text, TextData

Make = Callable[[], nn.Module]
_OF_DATA = ("eva", "corda", "lora_ga")  # initialisations of LoRA
_OF_BASE = ("pissa", "olora", "loftq")
_OWN_LOSSES = ("kasa_config", "monteclora_config")


@dataclass(frozen=True, slots=True, eq=False)
class LanguageModel:
    """Satisfies `starling.node.tasks.api.Task`; see `causal_lm` for the fields."""

    make: Make
    text: Text
    tokenizer: str = ""
    higher_is_better: bool = False

    @property
    def metric(self) -> str:
        """Return "bits_per_token" with a tokenizer, else "bits_per_byte"."""
        return "bits_per_token" if self.tokenizer else "bits_per_byte"

    def model(self, generator: Generator) -> nn.Module:
        """Return a fresh model; global generators are seeded from `generator` for it, and restored.

        Raises ConfigError: it knows fewer tokens than the text has, or attends to later tokens.
        """
        with seeded(int(torch.randint(2**62, (), generator=generator))):
            made = self.make()
            _check_sizes(getattr(made, "config", None), self.tokenizer, self.context)
            if self.context > 1:
                _check_causal(made)
        return made

    def data(self, source: Source, device: str) -> TextData:
        """Return our shard of the built-in text, or all of the volunteer's own. Raises DataError if it is missing or too short."""
        return self.text.windows(source, device, _encoder(self.tokenizer) if self.tokenizer else None)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats per token, plus the router loss if the model's config has `output_router_logits`."""
        output = model(input_ids=batch[:, :-1])
        loss = _nats(output.logits, batch)
        routers = getattr(output, "aux_loss", None)
        if isinstance(routers, Tensor):
            loss = loss + model.config.router_aux_loss_coef * routers  # type: ignore[union-attr,operator]
        return loss

    def score(self, model: nn.Module, batch: Tensor) -> tuple[float, float, int]:
        """Return (bits, nats, tokens predicted)."""
        tokens = batch[:, 1:].numel()
        nats = float(_nats(model(input_ids=batch[:, :-1]).logits, batch)) * tokens
        return nats / math.log(2), nats, tokens

    @property
    def context(self) -> int:
        """Return the number of tokens that the model sees."""
        return self.text.context

    def encode(self, text: str) -> list[int]:
        """Tokens of the tokenizer, or bytes. Raises ConfigError: it cannot be read."""
        if not self.tokenizer:
            return self.text.encode(text)
        tokens: list[int] = _tokenizer(self.tokenizer).encode(text, add_special_tokens=False).ids
        return tokens

    def decode(self, tokens: list[int]) -> str:
        if not self.tokenizer:
            return self.text.decode(tokens)
        return str(_tokenizer(self.tokenizer).decode(tokens, skip_special_tokens=False))

    def logits(self, model: nn.Module, tokens: Tensor) -> Tensor:
        """Map (m, t) to (m, t, v): v is the number of the tokenizer's tokens, of which the model may have more."""
        known = _tokenizer(self.tokenizer).get_vocab_size() if self.tokenizer else BYTES
        logits: Tensor = model(input_ids=tokens).logits[..., :known]
        return logits


def causal_lm(model: Any, *, text: str | Path, context: int = 128, tokenizer: str | Path | None = None) -> LanguageModel:
    """Prediction of the next token by a `transformers` model. The last tenth of each text is held out.

    Args:
        model: a `transformers` config, the folder of a pretrained model, or a function that makes a model, e.g. what `lora` returns.
        text: a file, or a folder of .txt files: the built-in data; a volunteer's own come before it.
        context: tokens the model looks back.
        tokenizer: a tokenizer.json of the `tokenizers` library; None reads bytes, which needs a vocabulary of 256 or more.

    Raises:
        ConfigError: a package or file is missing, or the vocabulary or context of the config is too small.
    """
    read = str(tokenizer or "")
    _check_sizes(model, read, context)
    return LanguageModel(_maker(model), Text(path=str(text), context=context), read)


def lora(model: Any, **config: Any) -> Make:
    """Return a function that makes `model` with LoRA adapters; only their parameters are trained, exchanged and checkpointed.

    All nodes must have the same base: a folder's is read at each, a config's is random and of the manifest's seed.

    Args:
        model: as of `causal_lm`, or a function that makes any module (then `target_modules` is needed).
        config: of `peft.LoraConfig`: r, lora_alpha, target_modules, modules_to_save, …

    Raises:
        ConfigError: peft is missing or refuses the config, or the config asks for what would be ignored: an initialisation that needs data
            or changes the base, a loss of its own; and when the model is made, names that no module has.
    """
    peft, make = _package("peft", "peft"), _maker(model)
    try:
        chosen = peft.LoraConfig(**config)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"lora: {error}") from error
    _check_lora(chosen)

    def adapted() -> nn.Module:
        base = make()
        for key, before in (("target_modules", "."), ("modules_to_save", "")):  # as peft matches them
            _check_names(key, getattr(chosen, key), base, before)
        made: nn.Module = peft.get_peft_model(base, copy.deepcopy(chosen))
        return made

    return adapted


def _check_lora(config: Any) -> None:
    """Raise ConfigError if the config has settings that would have no effect."""
    start = str(config.init_lora_weights)
    if start.startswith(_OF_DATA):
        raise ConfigError(f"lora: init_lora_weights = {start!r} needs a pass over data, which is not made; leave it out")
    if start.startswith(_OF_BASE):
        raise ConfigError(
            f"lora: init_lora_weights = {start!r} changes the base, differently on each machine; leave it out, or give a base that is "
            "already changed"
        )
    if config.inference_mode:
        raise ConfigError("lora: inference_mode = True freezes the adapters, nothing would be trained; leave it out")
    for key in _OWN_LOSSES:
        if getattr(config, key, None) is not None:
            raise ConfigError(f"lora: {key} has a loss of its own, which would not be trained; leave it out, or write a starling.task")


def _check_names(key: str, given: Any, base: nn.Module, before: str) -> None:
    """Raise ConfigError if a listed name, after `before`, is the end of no module's name; peft complains only if none matches."""
    if not isinstance(given, list | tuple | set):
        return
    names = [name for name, _ in base.named_modules()]
    for each in sorted(given):
        if not any(name == each or name.endswith(f"{before}{each}") for name in names):
            last = sorted({name.rpartition(".")[2] for name in names if name and not name.rpartition(".")[2].isdigit()})
            raise ConfigError(f"lora: {key}: no module is named {each!r}; there are {', '.join(last[:20])}")


def _check_sizes(config: Any, tokenizer: str, context: int) -> None:
    """Raises ConfigError: a model of this config has too few tokens or positions; of what it does not say it may have any."""
    vocabulary = getattr(config, "vocab_size", None)
    needed = BYTES if not tokenizer else _tokenizer(tokenizer).get_vocab_size()
    if vocabulary is not None and vocabulary < needed:
        raise ConfigError(f"model: vocab_size must be >= {needed}, the tokens of the text, got {vocabulary}")
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and longest < context:
        raise ConfigError(f"context: must be <= max_position_embeddings = {longest} of the model, got {context}")


def _check_causal(model: nn.Module) -> None:
    """Raise ConfigError if a prediction after a token depends on later tokens."""
    tokens = torch.tensor([[0, 0], [0, 1]])
    training = model.training
    model.eval()
    with torch.no_grad():
        one, other = model(input_ids=tokens).logits[:, 0]
    model.train(training)
    if not torch.allclose(one, other, rtol=0.0, atol=1e-5 * float(one.abs().max())):
        raise ConfigError(
            "model: it looks at the tokens that it is to predict (attention is not causal); a config of an encoder needs is_decoder=True"
        )


def _nats(logits: Tensor, batch: Tensor) -> Tensor:
    """Return the mean cross-entropy over tokens, in nats."""
    return cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))


def _maker(model: Any) -> Make:
    """Return a function that makes the model of a config, a folder or a function."""
    if isinstance(model, str | Path):
        folder, auto = Path(model), _package("transformers", "transformers").AutoModelForCausalLM
        if not (folder / "config.json").is_file():
            raise ConfigError(f"model: {folder} is no folder of a transformers model: it has no config.json")
        return lambda: auto.from_pretrained(folder, local_files_only=True, use_safetensors=True, trust_remote_code=False)
    if hasattr(model, "model_type"):
        auto = _package("transformers", "transformers").AutoModelForCausalLM
        return lambda: auto.from_config(copy.deepcopy(model))
    if isinstance(model, nn.Module) or not callable(model):
        raise ConfigError(f"model: give a config, a folder, or a function that makes the model, got a {type(model).__name__}")
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
            text = raw.tobytes().decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: is not UTF-8, byte {error.start}: {error.reason}") from error
        return np.asarray(tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    return encode


def _package(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"this task needs the package {name}; `pip install 'starling-swarm[{extra}]'`") from error
