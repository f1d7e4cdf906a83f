"""Which blocks a stage of a crew has, by their parameters and this machine's memory."""

from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice, pairwise

from torch import nn

from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.node.config import crew as crews
from starling.node.config.schema import Manifest
from starling.node.engine.task_smoke_test import calling
from starling.node.status.format import size as shown
from starling.node.tasks.api import Staged, Task

STATE_BYTES = 32  # bytes per parameter at most, for model and moments in float64


@dataclass(frozen=True, slots=True)
class Cut:
    """The blocks of a stage, and the number of parameters of the largest stage."""

    first: int
    end: int
    most_parameters: int

    @property
    def most_state_bytes(self) -> int:
        """Return a bound on the bytes of any stage's state."""
        return STATE_BYTES * self.most_parameters + (64 << 10)


def cut(task: Task, manifest: Manifest, stage: int, available: int) -> Cut:
    """Cut by the number of parameters of each block; blocks are made one by one and discarded; `available`: bytes of memory here.

    Raises ConfigError: the task has no blocks, none fits, or this machine lacks the memory for this stage.
    """
    kind = manifest.task.kind
    if not isinstance(task, Staged):
        raise ConfigError(
            f"crew.stages: task.kind = {kind!r} does not define its blocks (blocks, parted, loss_of, score_of: docs/crews.md); "
            "try `--set crew.stages=1`"
        )
    blocks = calling(kind, "blocks()", lambda: list(map(_counted, task.blocks(generator(manifest.seed, "model")))))
    edges = _edges(blocks, manifest)
    sizes = [sum(blocks[a:b]) for a, b in pairwise(edges)]
    if (needed := crews.HELD * sizes[stage]) > available:
        able = [str(number) for number, size in enumerate(sizes) if crews.HELD * size <= available]
        raise ConfigError(
            f"stage: {stage} needs at least {shown(needed)} of memory here, {shown(available)} are there; "
            + (f"try `--stage {able[0]}`" if able else "no stage fits this machine; take one with more, or create it with more crew.stages")
        )
    return Cut(edges[stage], edges[stage + 1], max(sizes))


def _edges(blocks: list[int], manifest: Manifest) -> list[int]:
    """Return the first block of each stage, and the end; a block without parameters stays with the one before."""
    joined: list[list[int]] = []  # groups of blocks of which only the first has parameters
    for count in blocks:
        if count or not joined:
            joined.append([count])
        else:
            joined[-1].append(0)
    ends = crews.ends(manifest.crew, [max(1, sum(run)) for run in joined])
    edges = [0]
    for first, end in zip((0, *ends[:-1]), ends, strict=True):
        edges.append(edges[-1] + sum(map(len, joined[first:end])))
    return edges


def _counted(block: nn.Module) -> int:
    return sum(each.numel() for each in block.parameters() if each.requires_grad)


def blocks_of(task: Task, manifest: Manifest, cut: Cut) -> nn.Module:
    """Return the stage's blocks on the CPU, named and initialised as in the whole model.

    Raises ConfigError: one has batch statistics.
    """
    assert isinstance(task, Staged)
    made = islice(enumerate(task.blocks(generator(manifest.seed, "model"))), cut.end)
    model = nn.Sequential(OrderedDict((str(number), block) for number, block in made if number >= cut.first))
    if any(each.is_floating_point() for each in model.buffers()):
        raise ConfigError(
            "crew.stages: a block has state besides its parameters, as BatchNorm has; use another block, or `--set crew.stages=1`"
        )
    return model
