"""Differentially private gradients (DP-SGD): each sample's gradient is clipped, the sum is noised.

Each of the n samples is in a step's batch with probability q, independently. The gradient of the loss of each sample alone is clipped to
norm C, so that adding or removing one sample moves the sum by at most C in Euclidean norm (replacing one: 2C). Gaussian noise of standard
deviation noise · C is added to every coordinate of the sum, which is then divided by qn, the expected batch size. Optimiser, mixing and
compression cost no more privacy.

Both draws come from the CSPRNG: the bound on ε assumes that the samples of a batch cannot be predicted.

Source: Abadi et al. 2016 (arXiv:1607.00133), Algorithm 1.

Shapes: d parameters, n samples, m of a batch, c of a chunk.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from starling.gossip.errors import ConfigError
from starling.node.config.schema import PrivacySection, TaskSection
from starling.node.engine.local.local_model import LocalModel
from starling.node.engine.privacy.accountant import Accountant
from starling.node.engine.privacy.csprng import Csprng
from starling.node.tasks.api import Sampled, Task
from starling.node.tasks.evaluate import TaskLoss
from starling.robust.catalogue import RULES

CHUNK_BYTES = 64 << 20  # bytes of per-sample gradients in memory at a time
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d)


class PrivateGradients:
    """Noised gradients of one node's data, which must be `Sampled`. The model is read at every step, never changed.

    Raises ConfigError: the task has no gradients of single samples, the accountant is missing or its file is damaged.
    """

    def __init__(self, section: PrivacySection, model: LocalModel, csprng: Csprng, path: Path | None) -> None:
        """Open the privacy account at `path`; None: it is not stored."""
        manifest, data, layout = model.manifest, model.data, model.layout
        about = manifest.task
        if manifest.mix.kind == "gather" and RULES.facts(manifest.robust.rule, trusted=True).losses:
            raise ConfigError(
                f"privacy.noise: robust.rule = {manifest.robust.rule!r} chooses models by their losses on this node's data, and its "
                "choice would reveal something of them; set privacy.noise to 0, or join a swarm with another rule"
            )
        if layout.carried:
            raise ConfigError(
                f"task.buffers: {layout.buffers[0]} is averaged, and what a forward pass leaves in it tells of samples, without noise; "
                "must be local with privacy.noise: join a swarm where it is, or leave privacy.noise out"
            )
        if not isinstance(data, Sampled):
            raise _refused(about, "has no single samples to draw")
        if any(isinstance(module, _BATCH_NORMS) for module in model.module.modules()):
            raise _refused(about, "has batch normalisation, which mixes the samples of a batch")
        self._data = data
        self._clip_norm = section.clip_norm
        self._deviation = section.noise * section.clip_norm
        self._csprng = csprng
        named = dict(model.module.named_parameters())
        self._parameters = {name: named[name] for name in layout.names}
        self._dim, self._dtype = layout.dim, layout.dtype
        self.rate = min(1.0, about.batch_size / data.units)
        self._chunk = max(1, CHUNK_BYTES // (layout.dim * layout.dtype.itemsize))
        self._each = _each_sample(model.task, model.module)
        try:
            self.clipped(torch.zeros(1, dtype=torch.int64))
        except (RuntimeError, TypeError, ValueError) as error:
            why = str(error).split(". ")[0].split("\n")[0]
            raise _refused(about, f"has a loss that torch cannot differentiate sample by sample ({why[:120]})") from error
        self.accountant = Accountant(path, noise=section.noise, rate=self.rate, delta=section.delta, most=section.max_epsilon)

    def gradient(self) -> tuple[Tensor, float]:
        """Return a noised gradient (d,), and the mean loss of its samples, for the owner only; nan for none.

        Zeros, without use of the data, once the allowed ε is used up.
        """
        if not self.accountant.count_step():
            return torch.zeros(self._dim, dtype=self._dtype), math.nan
        drawn = (self._csprng.uniform(self._data.units) < self.rate).nonzero()[0]
        total, losses = self.clipped(torch.from_numpy(drawn))
        noised = self._csprng.noised(total, self._deviation)
        mean = float(losses.mean()) if losses.numel() else math.nan
        return (noised / (self.rate * self._data.units)).to(self._dtype), mean

    def clipped(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum (d,), in double precision, of the clipped gradients of samples (m,), and their losses (m,)."""
        total, losses = torch.zeros(self._dim, dtype=torch.float64), [torch.empty(0)]
        parameters = {name: parameter.detach() for name, parameter in self._parameters.items()}
        for part in torch.split(index, self._chunk) if index.numel() else ():
            with sdpa_kernel(SDPBackend.MATH):  # vmap does not support the fused attention kernels
                named, loss = self._each(parameters, self._data.take(part))
            rows = torch.cat([named[name].reshape(part.numel(), -1) for name in parameters], dim=1)
            total += clipped_sum(rows, self._clip_norm).cpu()
            losses.append(loss.detach().to(losses[0]))
        return total, torch.cat(losses)


def clipped_sum(rows: Tensor, norm: float) -> Tensor:
    """Return the sum (d,) of the rows (c, d), each shortened to `norm`. A row that is not finite counts as zeros."""
    lengths = torch.linalg.vector_norm(rows, dim=1)
    is_finite = torch.isfinite(lengths)
    if not bool(is_finite.all()):
        rows, lengths = rows[is_finite], lengths[is_finite]
    total: Tensor = (norm / lengths.clamp(min=norm)) @ rows
    return total


def _each_sample(task: Task, model: nn.Module) -> Callable[[dict[str, Tensor], Any], tuple[dict[str, Tensor], Tensor]]:
    """Map (parameters by name, a batch) -> each sample's own gradient by name, a leading m on every one, and its loss (m,)."""
    loss = TaskLoss(task, model)

    def of_one(parameters: dict[str, Tensor], sample: Any) -> Tensor:
        named = {f"model.{name}": tensor for name, tensor in parameters.items()}
        found: Tensor = functional_call(loss, named, (_alone(sample),))
        return found

    each: Callable[..., tuple[dict[str, Tensor], Tensor]]
    each = vmap(grad_and_value(of_one), in_dims=(None, 0), randomness="different")
    return each


def _alone(sample: Any) -> Any:
    """Return a sample without its leading dimension -> a batch of one, in the form it came in."""
    if isinstance(sample, Tensor):
        return sample[None]
    if isinstance(sample, dict):
        return {key: _alone(part) for key, part in sample.items()}
    if isinstance(sample, tuple | list):
        return type(sample)(_alone(part) for part in sample)
    return sample


def _refused(about: TaskSection, why: str) -> ConfigError:
    return ConfigError(f"privacy.noise: task.kind = {about.kind!r} {why}; set privacy.noise to 0, or join another swarm")
