"""A model cut among the processes of an island: which part of each parameter a rank holds, and how layers are made to work with parts.

`fsdp`: a rank stores the n-th part of each parameter. A block's parameters are gathered for its forward and its backward pass and let go
afterwards; gradients are summed where their part is stored (`torch.distributed.fsdp.fully_shard`).

`tensor`: a rank computes some columns or rows of the large layers, of every sample (`torch.distributed.tensor.parallel`).

Sources: Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), stage 3; Shoeybi et al. 2019, Megatron-LM (arXiv:1909.08053).
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from starling.gossip.errors import ConfigError
from starling.gossip.vector import Layout
from starling.node.tasks.api import Columns, Rows, Task, Tensored
from starling.node.tasks.evaluate import TaskLoss

Plan = Mapping[str, Columns | Rows]
"""Of layers, by their full names."""
USE_FSDP = "use fsdp, `--set parallel=fsdp`"
# what transformers calls the two cuts, and layers that it cuts too, which may stay whole, as they take and give whole tensors
_COLUMNS, _ROWS, _WHOLE = {"colwise"}, {"rowwise"}, {"colwise_rep", "colwise_gather_output", "embedding_rowwise"}


@dataclass(frozen=True, slots=True)
class Cut:
    """How a parameter is cut: along `axis` into pieces of ⌈n / ranks⌉, of which the last may be shorter, or empty.

    Args:
        axis: of n lengths; None: every rank has it whole.
        parts: the axis is of so many equal stretches, and a rank has its piece of each.
    """

    axis: int | None
    parts: int = 1

    def piece(self, whole: Tensor, rank: int, ranks: int) -> Tensor:
        """A rank's piece of a whole parameter, a view; where there are parts, the axis is two: parts and lengths."""
        if self.axis is None:
            return whole
        each = whole.shape[self.axis] // self.parts
        step = -(-each // ranks)
        begin, end = (min(each, step * place) for place in (rank, rank + 1))
        return self.split(whole).narrow(self.axis + (self.parts > 1), begin, end - begin)

    def split(self, held: Tensor) -> Tensor:
        """A view of what a rank holds in the shape that `piece` gives."""
        if self.axis is None or self.parts == 1:
            return held
        shape = held.shape
        return held.view(*shape[: self.axis], self.parts, shape[self.axis] // self.parts, *shape[self.axis + 1 :])


def reserve(layout: Layout) -> int:
    """A file descriptor of memory for a model and its gradient, which ends with the processes that have it, and never has a name."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("starling-island")
    else:
        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    os.ftruncate(file, 2 * _room(layout))
    return file


def vectors(file: int, layout: Layout) -> tuple[Tensor, Tensor]:
    """The model (d,) and the gradient (d,) in the memory of `reserve`, the same in all processes that map it."""
    size = layout.dim * layout.dtype.itemsize
    x, gradient = (
        torch.frombuffer(mmap.mmap(file, size, offset=place * _room(layout)), dtype=layout.dtype) for place in (0, 1)
    )
    return x, gradient


def _room(layout: Layout) -> int:
    """Bytes of a vector in whole pages."""
    return -(-layout.dim * layout.dtype.itemsize // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def plan_of(task: Task, model: nn.Module, ranks: int) -> dict[str, Columns | Rows]:
    """Which layers `tensor` cuts, by full name. Raises ConfigError: nobody knows, or they cannot be cut among so many."""
    given = task.tensor_plan() if isinstance(task, Tensored) else _of_transformers(model, ranks)
    found: dict[str, Columns | Rows] = {}
    for name, module in model.named_modules():
        for how in (how for pattern, how in given.items() if fnmatchcase(name, pattern)):
            if type(module) is not nn.Linear:
                raise ConfigError(f"parallel: tensor cuts nn.Linear, {name} is a {type(module).__name__}; {USE_FSDP}")
            length = module.out_features // how.parts if isinstance(how, Columns) else module.in_features
            units = how.units or length
            if units % ranks or length % units:
                what = "heads" if how.units else "rows" if isinstance(how, Rows) else "columns"
                raise ConfigError(
                    f"ranks: must divide the {units} {what} of {name} with parallel=tensor, got {ranks}; try another number, or {USE_FSDP}"
                )
            found[name] = how
    if not found:
        raise ConfigError(
            f"parallel: tensor needs a plan of the layers to cut, a `tensor_plan` of the task, or `tp_plan` of the model; {USE_FSDP}"
        )
    return found


def _of_transformers(model: nn.Module, ranks: int) -> dict[str, Columns | Rows]:
    """The plan that a model of `transformers` brings."""
    for prefix, module in model.named_modules(prefix=""):
        plan: Any = getattr(module, "tp_plan", None)
        if not isinstance(plan, Mapping) or not plan:
            continue
        config = getattr(module, "config", None)
        for key in ("num_attention_heads", "num_key_value_heads"):
            if (heads := getattr(config, key, None) or ranks) % ranks:
                raise ConfigError(
                    f"ranks: must divide the model's {key} = {heads} with parallel=tensor, got {ranks}; try another number, or {USE_FSDP}"
                )
        if foreign := sorted(set(plan.values()) - _COLUMNS - _ROWS - _WHOLE):
            raise ConfigError(
                f"parallel: tensor does not know {foreign[0]!r} of the model's own plan, only colwise and rowwise; {USE_FSDP}"
            )
        return {
            f"{prefix}.{name}" if prefix else name: Rows() if how in _ROWS else Columns()
            for name, how in plan.items()
            if how not in _WHOLE
        }
    return {}


def blocks(model: nn.Module) -> list[nn.Module]:
    """The members of a model's lists (`nn.ModuleList`, `nn.Sequential`) that have parameters and share none with the rest."""
    holders: dict[nn.Parameter, set[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            holders.setdefault(parameter, set()).add(module)

    def closed(module: nn.Module) -> bool:
        inner = set(module.modules())
        return all(holders[parameter] <= inner for parameter in module.parameters())

    def walk(module: nn.Module) -> Iterator[nn.Module]:
        listed = isinstance(module, nn.ModuleList | nn.Sequential)
        for child in module.children():
            parameters = any(True for _ in child.parameters())
            if listed and parameters and not isinstance(child, nn.ModuleList | nn.Sequential) and closed(child):
                yield child
            else:
                yield from walk(child)

    return list(dict.fromkeys(walk(model)))


def shard(task: Task, model: nn.Module, mesh: Any, device: str) -> nn.Module:
    """Store a part of each parameter of `model` here, in place -> its loss as a module, to be called with batches.

    The loss is the outermost module, so that whatever a task does with its model, it does to whole parameters.
    """
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 — takes a second

    scalars = set()
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()
        if parameter.ndim == 0:  # which fsdp does not cut
            parameter.data = parameter.data.to(device)
            scalars.add(parameter)
    root = TaskLoss(task, model)
    for module in chain(blocks(model), [root]):
        whole: Any = fully_shard(module, mesh=mesh, ignored_params=scalars)
        whole.set_gradient_divide_factor(1.0)
        whole.set_force_sum_reduction_for_comms(True)  # gloo knows no other
    return root


def split(task: Task, model: nn.Module, mesh: Any, device: str, plan: Plan) -> nn.Module:
    """Keep some columns or rows of the planned layers here, in place -> the model's loss as a module, to be called with batches."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: PLC0415

    styles: dict[str, Any] = {
        name: ColwiseParallel() if isinstance(how, Columns) else RowwiseParallel() for name, how in plan.items()
    }
    frozen = {name: each.detach() for name, each in model.named_parameters() if not each.requires_grad}
    parallelize_module(model, mesh, styles, src_data_rank=None)
    model.to(device)
    for name, each in model.named_parameters():
        if name in frozen:
            cut = cut_of(name, each, plan)
            cut.split(local(each)).copy_(cut.piece(frozen[name], mesh.get_local_rank(), mesh.size()))
    return TaskLoss(task, model)


def cut_of(name: str, parameter: Tensor, plan: Plan) -> Cut:
    """How a parameter that may be a DTensor is cut."""
    (placement,) = getattr(parameter, "placements", (None,))
    if placement is None or not placement.is_shard():
        return Cut(None)
    how = plan.get(name.rpartition(".")[0])
    return Cut(placement.dim, how.parts if isinstance(how, Columns) else 1)


def local(tensor: Any) -> Tensor:
    """What this rank holds of a tensor that may be a DTensor."""
    held = tensor.detach()
    here: Tensor = held.to_local() if hasattr(held, "to_local") else held
    return here


def passes(count: int, rank: int, ranks: int, micro_batch: int | None) -> Sequence[tuple[int, int, float]]:
    """The samples [begin, end) of each forward pass of a rank, and their share of the batch's `count`.

    All ranks make equally many passes, since they compute them together: who has no sample left takes one with the share 0.
    """
    begin, end = (count * place // ranks for place in (rank, rank + 1))
    most = -(-count // ranks)
    turns = -(-most // min(micro_batch or most, most))
    cuts = [begin + (end - begin) * turn // turns for turn in range(turns + 1)]
    spare = min(begin, count - 1)
    return [
        (first, last, (last - first) / count) if last > first else (spare, spare + 1, 0.0)
        for first, last in pairwise(cuts)
    ]
