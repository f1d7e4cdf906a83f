"""A plain PyTorch loop without a swarm, as a user would write it for a manifest's model, data and optimiser.

    python -m starling.kernels.plain KEYS        as `starling.kernels.slices` says

The model is the task's own and begins with the same numbers, samples are drawn from the same tensors in memory, and a step is

    optimizer.zero_grad(set_to_none=True); loss = …; loss.backward(); optimizer.step(); loss.item()

with torch's optimiser as its constructor makes it. Nothing is checked, corrected, averaged or kept.

Shapes: m samples of a batch, t bytes of a text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from starling.gossip.errors import ConfigError
from starling.kernels import slices
from starling.node.catalogues import task
from starling.node.config import large, toml
from starling.node.config.assignments import assignments
from starling.node.config.schema import Manifest
from starling.node.engine.initial_model import initial
from starling.node.engine.pieces import hidden_matrices
from starling.node.tasks.api import Source
from starling.node.tasks.gpt import BYTES
from starling.node.tasks.labelled import LabelledData
from starling.node.tasks.text import TextData

Batch = tuple[Tensor, Tensor]
SEED = 11


def agreed(keys: Mapping[str, Any]) -> Manifest:
    """Return the manifest that these keys describe. Raises ConfigError: there is no such key, or its value is out of bounds."""
    return large.sealed(toml.apply_set(Manifest(), assignments(keys)))


class Loop:
    """A model that is trained step by step."""

    def __init__(self, manifest: Manifest) -> None:
        made = task(manifest.task.kind, manifest.task.params())
        self.model = initial(made, manifest)
        self.model.train()
        data = made.data(Source(None, manifest.partition, 0, manifest.seed), "cpu")
        self._batch = _batches(data, manifest.task.batch_size)
        self._loss = _of_text if isinstance(data, TextData) else cross_entropy
        self.optimizer = optimizer(manifest, self.model)

    def step(self) -> float:
        """Do one step; return its loss."""
        return self.learn(*self._batch())

    def learn(self, x: Tensor, y: Tensor) -> float:
        """Do one step on samples and labels."""
        self.optimizer.zero_grad(set_to_none=True)
        loss: Tensor = self._loss(self.model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.item()


def _of_text(output: Tensor, following: Tensor) -> Tensor:
    return cross_entropy(output.reshape(-1, BYTES), following.reshape(-1))


def _batches(data: Any, size: int) -> Callable[[], Batch]:
    """Return what draws samples (m, …) with their labels (m,), or of a text (m, t) with the byte that follows each (m, t)."""
    chance = torch.Generator().manual_seed(SEED)
    if isinstance(data, LabelledData):
        y, x = data.y, data.x if data.x.dtype == torch.float32 else data.x.float() / 255

        def samples() -> Batch:
            index = torch.randint(len(x), (size,), generator=chance)
            return x[index], y[index]

        return samples
    assert isinstance(data, TextData)
    text, window = data.text, torch.arange(data.test.shape[1])

    def windows() -> Batch:
        begins = torch.randint(len(text) - len(window) + 1, (size, 1), generator=chance)
        taken = text[begins + window].long()
        return taken[:, :-1], taken[:, 1:]

    return windows


class Both:
    """Muon for hidden matrices and AdamW for the rest. Muon gets the filters of a convolution as one matrix."""

    def __init__(self, model: nn.Module, manifest: Manifest) -> None:
        section, names = manifest.optimizer, hidden_matrices(model)
        keys, named = section.params(), dict(model.named_parameters())
        self._hidden = [each for name, each in named.items() if name in names]
        shown = [each if each.ndim == 2 else nn.Parameter(each.data.flatten(1)) for each in self._hidden]
        self._filters = [(one, other) for one, other in zip(self._hidden, shown, strict=True) if one is not other]
        own = {key: keys[key] for key in ("momentum", "nesterov", "ns_steps", "weight_decay")}
        self.muon = torch.optim.Muon(shown, lr=section.lr, adjust_lr_fn="match_rms_adamw", **own)
        others = [each for name, each in named.items() if name not in names]
        self.adamw = torch.optim.AdamW(others, lr=section.lr, weight_decay=keys["weight_decay"])

    def zero_grad(self, *, set_to_none: bool) -> None:
        self.adamw.zero_grad(set_to_none=set_to_none)
        for each in self._hidden:
            each.grad = None

    def step(self) -> None:
        for filters, matrix in self._filters:
            assert filters.grad is not None
            matrix.grad = filters.grad.flatten(1)
        self.muon.step()  # type: ignore[no-untyped-call]
        self.adamw.step()


def optimizer(manifest: Manifest, model: nn.Module) -> Any:
    """Return torch's optimiser of a manifest. Raises ConfigError: it is none that is measured."""
    section = manifest.optimizer
    keys = section.params()
    match section.kind:
        case "sgd":
            return torch.optim.SGD(model.parameters(), lr=section.lr, momentum=keys["momentum"])
        case "adamw":
            return torch.optim.AdamW(model.parameters(), lr=section.lr, weight_decay=keys["weight_decay"])
        case "muon" if hasattr(torch.optim, "Muon"):
            return Both(model, manifest)
    raise ConfigError(f"optimizer.kind: there is no plain {section.kind} here; choose one of sgd, adamw, muon")


def loop(keys: Mapping[str, Any]) -> tuple[slices.Step, int]:
    """Return what does a plain step, and d."""
    made = Loop(agreed(keys))
    return made.step, sum(each.numel() for each in made.model.parameters())


if __name__ == "__main__":
    sys.exit(slices.main(sys.argv[1:], loop))
