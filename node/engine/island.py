"""Several processes of one machine as one node: they share the computing of each batch, on a GPU each where there are several.

This process is rank 0. It alone has the optimiser, the mixer and the checkpoint, and talks to the daemon. A local step sends the model to
the other ranks, each takes its part of the batch, which all draw alike, and the gradients are summed here, so that the node is one of the
swarm like any other and its trajectory that of one process, within rounding.

    rank 0   ── [step, seed] ── x, buffers ──▶ every rank draws the batch, computes its samples
             ◀── Σ share · (loss, buffers, gradient) ──

A rank that dies ends the engine, which is started again from its checkpoint and starts its ranks again. Ranks end with rank 0.

Shapes: d parameters.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from msgspec import structs
from torch import Tensor, nn

from starling.gossip.errors import ConfigError
from starling.node.engine.batches import part, samples
from starling.node.engine.numerics import Gradients
from starling.node.rpc import calls
from starling.node.rpc.pipe import Failed, Pipe

PATIENCE = timedelta(days=365)  # a paused node computes nothing for hours; that a rank died is seen at once
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class Team:
    """What all ranks do alike: meet, and move numbers. Made when all are started."""

    def __init__(self, rank: int, ranks: int, meeting: str, device: str, buffers: Sequence[Tensor]) -> None:
        """`meeting` is a file that does not exist yet; `buffers` those of the model."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
        dist.init_process_group(
            "nccl" if device == "cuda" else "gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks, timeout=PATIENCE
        )  # fmt: skip
        dist.barrier()
        self.rank, self.ranks = rank, ranks
        self._order = torch.zeros(2, dtype=torch.int64, device=device)
        self._loss = torch.zeros(1, dtype=torch.float64, device=device)
        self._averaged = [each for each in buffers if each.is_floating_point()]

    def order(self, step: int = 0, seed: int = 0) -> tuple[int, int]:
        """The local step to compute and the seed of its layers, given by rank 0."""
        self._order.copy_(torch.tensor([step, seed]))
        dist.broadcast(self._order, 0)
        given: list[int] = self._order.tolist()
        return given[0], given[1]

    def share(self, x: Tensor) -> None:
        """Give the model (d,) and its buffers to all."""
        for each in (x, *self._averaged):
            dist.broadcast(each, 0)

    def compute(
        self, gradients: Gradients, batch: Any, gradient: Tensor, seed: int, reset: Callable[[], None]
    ) -> float:
        """This rank's part of a batch -> at rank 0 the batch's loss, and its gradient in `gradient` (d,)."""
        count = samples(batch) or 0
        begin, end = (count * place // self.ranks for place in (self.rank, self.rank + 1))
        weight = (end - begin) / count if count else 0.0
        self._loss.zero_()
        if end > begin:
            self._loss += weight * gradients.compute(part(batch, begin, end), gradient, seed + self.rank, reset)
            gradient.mul_(weight)
        else:
            gradient.zero_()
        dist.reduce(self._loss, 0)
        dist.reduce(gradient, 0)
        for each in self._averaged:
            each.mul_(weight)
            dist.reduce(each, 0)
        return float(self._loss)


class Island:
    """Rank 0's side: starts the other ranks, and computes with them."""

    def __init__(self, opening: calls.Open, device: str, model: nn.Module, batch: Any) -> None:
        """`batch`: any of the task. Raises ConfigError: batches cannot be split, the GPUs are too few, or a rank does not start."""
        _check(opening, device, batch)
        self._folder = tempfile.TemporaryDirectory(prefix="starling-island-")
        meeting = str(Path(self._folder.name) / "meeting")
        threads = opening.threads or max(1, torch.get_num_threads() // opening.ranks)
        given = structs.replace(opening, threads=threads, device=device)
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
                ]
                self._processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL))
            self._pipes.append(ours)
        for rank, why in enumerate(_started(given, self._pipes), start=1):
            if why:
                self.close()
                raise ConfigError(f"ranks: rank {rank} does not start: {why}")
        if device == "cuda":
            torch.cuda.set_device(0)
        self._team = Team(0, opening.ranks, meeting, device, list(model.buffers()))
        self._folder.cleanup()  # all have met, and this process may end without another chance

    def compute(
        self, step: int, x: Tensor, gradients: Gradients, batch: Any, gradient: Tensor, seed: int, reset: Callable[[], None]
    ) -> float:  # fmt: skip
        """The loss of the batch of local step `step`; its gradient replaces what is in `gradient` (d,). RuntimeError: a rank died."""
        seed &= (1 << 62) - 1
        self._team.order(step, seed)
        self._team.share(x)
        return self._team.compute(gradients, batch, gradient, seed, reset)

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


def _check(opening: calls.Open, device: str, batch: Any) -> None:
    if opening.privacy.noise:
        raise ConfigError(
            "ranks: not with privacy.noise, where gradients are of single samples; leave it out, `--set ranks=1`"
        )
    if opening.numerics.noise_every is not None:
        raise ConfigError("ranks: not with numerics.noise_every; leave one of them out")
    if samples(batch) is None:
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
