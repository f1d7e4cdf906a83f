"""An island: several processes of one machine that compute each batch together as one node, with a GPU each if there are several.

This process is rank 0. Only it has the optimiser, the mixer and the checkpoint, and talks to the daemon. A local step sends the model to
the other ranks; each computes its part of the same batch, and gradients are summed here. The node is an ordinary member, and its
trajectory is that of one process, within rounding.

    rank 0   ── [step, seed] ── x, buffers ──▶ every rank draws the batch, computes its samples
             ◀── Σ share · (loss, buffers, gradient) ──

A rank that dies ends the engine, which is restarted from its checkpoint with new ranks. Ranks end with rank 0.

Shapes: d parameters.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from msgspec import structs
from torch import Tensor, nn

from starling.gossip.errors import ConfigError
from starling.node import platform
from starling.node.engine.numerics import Gradients
from starling.node.engine.parts import Parts
from starling.node.extras.islands.rank_group import RankGroup
from starling.node.rpc import calls
from starling.node.rpc.pipe import Failed, Pipe


class Island:
    """Rank 0's side: starts the other ranks, and computes with them.

    Attributes:
        processes: the other ranks.
    """

    def __init__(self, open_request: calls.Open, device: str, model: nn.Module, batch: Any, parts: Parts) -> None:
        """`device`: of the ranks. `batch`: any of the task. `parts`: weights of parts of a batch.

        Raises ConfigError: batches cannot be split, the GPUs are too few, or a rank does not start.
        """
        _check_devices(device, open_request.ranks)
        parts.check(batch, "ranks")
        self._pipes: list[socket.socket] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        with tempfile.TemporaryDirectory(prefix="starling-island-") as folder:  # all ranks are connected when the folder is deleted
            meeting = str(Path(folder) / "meeting")
            for rank in range(1, open_request.ranks):
                self._start(rank, meeting)
            threads = open_request.threads or max(1, torch.get_num_threads() // open_request.ranks)
            given = structs.replace(open_request, threads=threads, device=device)
            for rank, why in enumerate(_started(given, self._pipes), start=1):
                if why:
                    self.close()
                    raise ConfigError(f"ranks: rank {rank} does not start: {why}")
            if device == "cuda":
                torch.cuda.set_device(0)
            self._rank_group = RankGroup(0, open_request.ranks, meeting, device, list(model.buffers()))

    def _start(self, rank: int, meeting: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = [str(theirs.fileno()), str(rank), meeting]
            command = [sys.executable, "-P", "-m", "starling.node.extras.islands.rank", *arguments]
            self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, **platform.inheriting(theirs.fileno())))
        self._pipes.append(ours)

    def compute(
        self, step: int, x: Tensor, gradients: Gradients, batch: Any, gradient: Tensor, seed: int, reset: Callable[[], None]
    ) -> float:
        """The loss of the batch of local step `step`; its gradient replaces what is in `gradient` (d,). RuntimeError: a rank died."""
        seed &= (1 << 62) - 1
        self._rank_group.order(step, seed)
        self._rank_group.share(x)
        return self._rank_group.compute(gradients, batch, gradient, seed, reset)

    def close(self) -> None:
        """End the ranks; also done by the end of this process."""
        for each in self._pipes:
            each.close()
        for process in self.processes:
            process.kill()
            process.wait()
        if dist.is_initialized():
            dist.destroy_process_group()


def _started(open_request: calls.Open, socks: Sequence[socket.socket]) -> list[str]:
    """Let all ranks make their task and model at the same time; return each one's error, "" if it is ready."""
    pipes = [Pipe(sock) for sock in socks]
    for pipe in pipes:
        with suppress(OSError):  # the closed pipe of the rank reports the failure below
            pipe.send(1, open_request)
    return list(map(_answered, pipes))


def _answered(pipe: Pipe) -> str:
    try:
        _, answer = pipe.reply()
    except (EOFError, OSError):
        return "its process ended"
    return answer.message if isinstance(answer, Failed) else ""


def check(open_request: calls.Open) -> None:
    """Raises ConfigError: settings of the node that do not fit each other."""
    if open_request.privacy.noise:
        raise ConfigError(
            "ranks: cannot be used with privacy.noise, which needs gradients of single samples; leave it out, `--set ranks=1`"
        )
    if open_request.numerics.noise_every is not None:
        raise ConfigError("ranks: cannot be used with numerics.noise_every; leave one of them out")


def _check_devices(device: str, ranks: int) -> None:
    if device == "mps":
        raise ConfigError("ranks: mps is one device; leave it out, or `--set device=cpu`")
    if device == "cuda" and torch.cuda.device_count() < ranks:
        raise ConfigError(f"ranks: must be <= {torch.cuda.device_count()}, the GPUs of this machine, got {ranks}")
