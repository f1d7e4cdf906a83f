"""A task's model on this machine: the module bound to one vector, its gradient, its buffers, and the data.

Shapes: d parameters.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor, nn

from starling.gossip.binding import Binding, bound
from starling.gossip.rng import generator
from starling.gossip.seeds import derive
from starling.gossip.vector import Layout, flatten, layout, swap
from starling.node.config.large import LARGE
from starling.node.config.schema import Manifest
from starling.node.engine import trim_memory
from starling.node.engine.side_state import SideState
from starling.node.tasks.api import Data, Task
from starling.node.tasks.evaluate import BATCHES, comparing, estimate


class LocalModel:
    """A module bound to a vector x (d,), and the samples it learns from.

    Attributes:
        manifest: the swarm's agreement.
        node: label of this node, which seeds its generators.
        task, data: what is learned; `data` may be replaced by others of the same kind.
        module: the model.
        device: on which it is.
        side: what of it changes and is not trained.
        layout: of its trainable parameters, and of buffers that are averaged.
        binding: of the module to x.
        x: (d,) the vector.
        trained: (t,) what of it are parameters.
        fresh: makes another module like it at the beginning.
        large: whether copies of it matter.
    """

    def __init__(self, manifest: Manifest, node: str, task: Task, data: Data, fresh: Callable[[], nn.Module], device: str) -> None:
        """Wrap a module. Raises ValueError: the parameters do not fit one vector."""
        self.manifest, self.node, self.task, self.data, self.device = manifest, node, task, data, device
        self.fresh = fresh
        self.module = fresh()
        self.side = SideState(self.module, manifest)
        self.layout: Layout = layout(self.module, self.side.carried)
        self.large = self.layout.dim > LARGE
        self.binding: Binding
        self.x = self.trained = torch.empty(0)
        self._gradient: Tensor | None = None  # (t,); None while there are no local steps
        self._chance = Generator()

    def bind(self) -> None:
        """Bind the module to x, and allow training."""
        self.binding = bound(self.module, self.layout)
        self.x, self._gradient = self.binding.x, None
        self.trained = self.x[: self.layout.trained]
        self.module.train()

    @property
    def gradient(self) -> Tensor:
        """Return the vector (t,) of the parameters' gradients."""
        if self._gradient is None:
            self._gradient = self.binding.gradient()
        return self._gradient

    def release_gradient(self) -> None:
        """Free memory that only local steps need."""
        self._gradient = None
        self.binding.release()
        self.trim()

    def trim(self) -> None:
        """Return freed memory to the system, where the model is so large that it matters."""
        if self.large:
            trim_memory.trim()

    def beginning(self) -> Tensor:
        """Return (d,) the model that all nodes began with."""
        return flatten(self.fresh(), self.layout)

    def batch(self, step: int) -> Any:
        """Return the training batch of local step number `step`, counted from 0."""
        self._chance.manual_seed(derive(self.manifest.seed, "batch", self.node, step))
        return self.data.batch(self.manifest.task.batch_size, self._chance)

    def statistics(self, module: nn.Module) -> Iterator[None]:
        """Estimate a module's normalisation statistics from training data, a batch at a time."""
        size, seed = self.manifest.task.batch_size, self.manifest.seed
        batches = (self.data.batch(size, generator(seed, "statistics", self.node, number)) for number in range(BATCHES))
        return estimate(self.task, module, batches)

    def losses(self, batch: Any, models: Tensor) -> Tensor:
        """Return (…) the losses of models (…, d) on a batch, infinite where one is no number.

        Each changes places with x meanwhile, as both are too large for a copy.
        """
        values = []
        with comparing(self.module), torch.no_grad():
            for model in models.reshape(-1, models.shape[-1]):
                with self._in_place_of(model):
                    loss: Tensor | None = self.task.loss(self.module, batch)
                values.append(self.x.new_tensor(math.inf) if loss is None else loss.to(self.x.dtype))
        return torch.stack(values).nan_to_num(math.inf, math.inf).reshape(models.shape[:-1])

    @contextmanager
    def _in_place_of(self, model: Tensor) -> Iterator[None]:
        swap(self.x, model)
        self.binding.load()
        try:
            yield
        finally:
            swap(self.x, model)
            self.binding.load()
