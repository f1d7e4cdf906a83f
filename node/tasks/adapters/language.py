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
from starling.node.tasks.api import Source
from starling.node.tasks.gpt import BYTES
from starling.node.tasks.samples import seeded
from starling.node.tasks.text import Text, TextData

Make = Callable[[], nn.Module]


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

    @property
    def context(self) -> int:
        """Tokens that the model looks back."""
        return self.text.context

    def encode(self, text: str) -> list[int]:
        """Tokens of the tokenizer, or bytes. Raises ConfigError: it cannot be read."""
        if not self.tokenizer:
            return self.text.encode(text)
        tokens: list[int] = _tokenizer(self.tokenizer).encode(text, add_special_tokens=False).ids
        return tokens

    def decode(self, tokens: list[int]) -> str:
        """Their text."""
        if not self.tokenizer:
            return self.text.decode(tokens)
        return str(_tokenizer(self.tokenizer).decode(tokens, skip_special_tokens=False))

    def logits(self, model: nn.Module, tokens: Tensor) -> Tensor:
        """(m, t) -> (m, t, v): v the tokens of the text, of which the model may know more."""
        known = _tokenizer(self.tokenizer).get_vocab_size() if self.tokenizer else BYTES
        logits: Tensor = model(input_ids=tokens).logits[..., :known]
        return logits


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
