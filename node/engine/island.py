"""Several processes of one machine as one node: they share the computing of each batch, on a GPU each where there are several.

This process is rank 0. It alone has the optimiser, the mixer and the checkpoint, and talks to the daemon. A local step sends the model to
the other ranks, each takes its part of the batch, which all draw alike, and the gradients are summed here, so that the node is one of the
swarm like any other and its trajectory that of one process, within rounding.

    rank 0   ── [step, seed] ── x, buffers ──▶ every rank draws the batch, computes its samples
             ◀── Σ share · (loss, buffers, gradient) ──

With `parallel` = fsdp or tensor no device has the whole model (`starling.node.engine.shards`): rank 0 keeps it and its gradient in memory
of the host that all ranks map. Each copies its part of the parameters from there, and writes its part of the gradient there.

    rank 0   ── [step, seed, scale] ── buffers ──▶ every rank: its part of x, the batch, its samples or its columns
             ◀── Σ (loss, buffers) ──              its part of the gradient

A rank that dies ends the engine, which is started again from its checkpoint and starts its ranks again. Ranks end with rank 0.

Shapes: d parameters.
"""

from __future__ import annotations

import math
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from msgspec import structs
from torch import Tensor, nn

from starling.gossip.errors import ConfigError
from starling.gossip.vector import Layout
from starling.node.engine import shards
from starling.node.engine.numerics import Gradients
from starling.node.engine.own_code import describe
from starling.node.engine.shard_team import REHEARSAL, ShardTeam, SharedModel
from starling.node.engine.team import Team
from starling.node.rpc import calls
from starling.node.rpc.pipe import Failed, Pipe
from starling.node.tasks.api import Task
from starling.node.tasks.batches import samples

SAYS_WHY_S = 2.0  # a rank that failed tells it before its connections close


@dataclass(frozen=True, slots=True)
class Whole:
    """A model that ranks are to share.

    Args:
        task: whose it is.
        model: makes another like it, on the CPU.
        layout: of its trainable parameters.
        x: (d,) these.
    """

    task: Task
    model: Callable[[], nn.Module]
    layout: Layout
    x: Tensor


class Island:
    """Rank 0's side: starts the other ranks, and computes with them.

    Attributes:
        x, gradient: (d,) in memory of all ranks, where these share the model; None: each has it whole.
    """

    def __init__(
        self, opening: calls.Open, device: str, model: nn.Module, batch: Any, whole: Whole | None = None
    ) -> None:
        """`device`: of the ranks. `batch`: any of the task. `whole`: what the ranks are to share of the model; else it is `model`.

        Raises ConfigError: batches or the model cannot be split, the GPUs are too few, or a rank does not start.
        """
        _check(opening, device, batch)
        if whole is not None and opening.parallel == "tensor":
            shards.plan_of(whole.task, model, opening.ranks)
        self._folder = tempfile.TemporaryDirectory(prefix="starling-island-")
        meeting = str(Path(self._folder.name) / "meeting")
        threads = opening.threads or max(1, torch.get_num_threads() // opening.ranks)
        given = structs.replace(opening, threads=threads, device=device)
        memory = -1 if whole is None else shards.reserve(whole.layout)
        self._pipes: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(1, opening.ranks):
            ours, theirs = socket.socketpair()
            with theirs:
                command = [
                    sys.executable,
                    "-P",
                    "-m",
                    "starling.node.engine.rank",
                    str(theirs.fileno()),
                    str(rank),
                    meeting,
                    str(memory),
                ]
                fds = [theirs.fileno(), *([] if whole is None else [memory])]
                self._processes.append(subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL))
            self._pipes.append(ours)
        for rank, why in enumerate(_started(given, self._pipes), start=1):
            if why:
                if memory >= 0:
                    os.close(memory)
                self.close()
                raise ConfigError(f"ranks: rank {rank} does not start: {why}")
        if device == "cuda":
            torch.cuda.set_device(0)
        self._team: Team | None = None
        self.shards: ShardTeam | None = None
        self._buffers = list(model.buffers())
        self.x: Tensor | None = None
        self.gradient: Tensor | None = None
        if whole is None:
            self._team = Team(0, opening.ranks, meeting, device, self._buffers)
        else:
            self._begin(given, meeting, memory, whole, batch)
        self._folder.cleanup()  # all have met, and this process may end without another chance

    def _begin(self, opening: calls.Open, meeting: str, memory: int, whole: Whole, batch: Any) -> None:
        """Cut the model, and try one step with it."""
        try:
            shared = SharedModel(whole.task, whole.model(), whole.layout, memory)
            self.shards = ShardTeam(0, opening, meeting, shared)
            self.shards.x.copy_(whole.x)
            self._together(self.shards, REHEARSAL, batch, 0, 0)
        except Exception as error:  # of the owner's model, or what torch cannot do with it
            self.close()
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"parallel: {opening.parallel} does not work with this model: {describe(error)}; `--set parallel=data`"
            ) from error
        self.x, self.gradient = self.shards.x, self.shards.gradient

    def compute(
        self, step: int, x: Tensor, gradients: Gradients, batch: Any, gradient: Tensor, seed: int, reset: Callable[[], None]
    ) -> float:  # fmt: skip
        """The loss of the batch of local step `step`; its gradient replaces what is in `gradient` (d,). RuntimeError: a rank died."""
        seed &= (1 << 62) - 1
        if self.shards is not None:
            return self._compute(self.shards, step, gradients, batch, seed, reset)
        assert self._team is not None
        self._team.order(step, seed)
        self._team.share(x)
        return self._team.compute(gradients, batch, gradient, seed, reset)

    def _compute(
        self, team: ShardTeam, step: int, gradients: Gradients, batch: Any, seed: int, reset: Callable[[], None]
    ) -> float:
        """As often as the loss's scale was too large; `x` and `gradient` are ours."""
        while True:
            scale = gradients.scale
            for ours, theirs in zip(team.buffers, self._buffers, strict=True):
                ours.copy_(theirs)
            value = self._together(team, step, batch, seed, 0 if scale is None else round(math.log2(scale.scale)))
            if scale is None or not math.isfinite(value) or scale.unscaled(team.gradient):
                break
            reset()
        for ours, theirs in zip(team.buffers, self._buffers, strict=True):
            theirs.copy_(ours)
        return value

    def _together(self, team: ShardTeam, step: int, batch: Any, seed: int, exponent: int) -> float:
        """Raises ConfigError: a rank ended, and says what its owner can do about it."""
        try:
            team.order(step, seed, exponent)
            return team.compute(batch, seed, exponent)
        except RuntimeError as error:
            for rank, sock in enumerate(self._pipes, start=1):
                if select.select([sock], [], [], SAYS_WHY_S)[0] and (why := _refused(Pipe(sock))):
                    raise ConfigError(f"ranks: rank {rank} ended: {why}") from error
            raise

    def close(self) -> None:
        """End the ranks; also done by the end of this process."""
        for each in self._pipes:
            each.close()
        for process in self._processes:
            process.kill()
            process.wait()
        if dist.is_initialized():
            dist.destroy_process_group()
        self._folder.cleanup()


def _started(opening: calls.Open, socks: Sequence[socket.socket]) -> list[str]:
    """Have all ranks make their task and model, at the same time -> of each why it cannot; "" when it is ready."""
    pipes = [Pipe(sock) for sock in socks]
    for pipe in pipes:
        with suppress(OSError):  # its end says so below
            pipe.send(1, opening)
    return list(map(_answered, pipes))


def _answered(pipe: Pipe) -> str:
    try:
        _, answer = pipe.reply()
    except (EOFError, OSError):
        return "its process ended"
    return answer.message if isinstance(answer, Failed) else ""


def _refused(pipe: Pipe) -> str:
    """What a rank that ended says its owner can do; "" if nothing."""
    try:
        _, answer = pipe.reply()
    except (EOFError, OSError):
        return ""
    return answer.reason if isinstance(answer, calls.Refused) else ""


def check(opening: calls.Open) -> None:
    """Raises ConfigError: settings that do not fit each other, known before anything is loaded."""
    kind, count = opening.parallel, opening.manifest.task.batch_size
    if kind == "data":
        return
    if opening.ranks == 1:
        raise ConfigError(
            f"parallel: {kind} needs several processes, got ranks = 1; try `--set ranks=2`, or leave it out, `--set parallel=data`"
        )
    if opening.numerics.compile:
        raise ConfigError(f"numerics.compile: not with parallel={kind}; leave it out, `--set numerics.compile=false`")
    if kind == "fsdp" and count < opening.ranks:
        raise ConfigError(
            f"ranks: must be <= task.batch_size = {count} with parallel=fsdp, got {opening.ranks}; try `--set ranks={count}`"
        )


def _check(opening: calls.Open, device: str, batch: Any) -> None:
    if opening.privacy.noise:
        raise ConfigError(
            "ranks: not with privacy.noise, where gradients are of single samples; leave it out, `--set ranks=1`"
        )
    if opening.numerics.noise_every is not None:
        raise ConfigError("ranks: not with numerics.noise_every; leave one of them out")
    if samples(batch) is None and opening.parallel != "tensor":
        raise ConfigError(
            "ranks: the task's batches cannot be split among processes: they must be tensors with one leading number of samples, or "
            "tuples, lists or dicts of such; leave it out, `--set ranks=1`"
        )
    if device == "mps":
        raise ConfigError("ranks: mps is one device; leave it out, or `--set device=cpu`")
    if device == "cuda" and torch.cuda.device_count() < opening.ranks:
        raise ConfigError(
            f"ranks: must be <= {torch.cuda.device_count()}, the GPUs of this machine, got {opening.ranks}"
        )
