"""Another rank of an island (`starling.node.extras.islands.island`): `python -m starling.node.extras.islands.rank FD RANK FILE`, started by
rank 0.

It has the task, the data and a model, but no optimiser or checkpoint: parameters come with each step. It ends with rank 0, when the pipe FD
or a connection closes.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

from starling.gossip.binding import bound
from starling.gossip.rng import generator
from starling.gossip.vector import layout
from starling.node.catalogues import task
from starling.node.config import consent
from starling.node.engine.initial_model import initial
from starling.node.engine.local.hooked_step import stepped_of
from starling.node.engine.numerics import Gradients
from starling.node.engine.side_state import carried_buffers
from starling.node.engine.user_code import describe
from starling.node.extras.islands.rank_group import RankGroup
from starling.node.platform import lower_priority
from starling.node.rpc import calls
from starling.node.rpc.pipe import Failed, Pipe
from starling.node.tasks.api import Source
from starling.node.tasks.reserved import data_of


class Rank:
    """A part of each batch's gradient, for rank 0."""

    def __init__(self, open_request: calls.Open, rank: int) -> None:
        """Make the task as a trainer does; raises what the task raises."""
        manifest = open_request.manifest
        if open_request.device == "cuda":
            torch.cuda.set_device(rank)
        torch.set_num_threads(open_request.threads)
        consent.find(manifest, open_request.code)
        self._seed, self._node, self._batch = manifest.seed, open_request.node, manifest.task.batch_size
        chosen = task(manifest.task.kind, manifest.task.params())
        self._stepped = stepped_of(chosen)
        path = Path(open_request.data) if open_request.data else None
        source = Source(path, manifest.partition, open_request.shard, manifest.seed)
        self._data = data_of(chosen, source, open_request.device, manifest.mix.own)
        self.model = initial(chosen, manifest, open_request.start)
        self.model.train()
        self.model.to(open_request.device)
        self._binding = bound(self.model, layout(self.model, carried_buffers(manifest, self.model)))
        self._gradients = Gradients(open_request.numerics, chosen, self.model, open_request.device, binding=self._binding)
        self._gradient = self._binding.gradient()

    def restoring(self) -> Callable[[], None]:
        """Gives the model's buffers back what they hold now: a forward pass that ran out of memory has counted its batch already."""
        buffers = list(self.model.buffers())
        before = [each.clone() for each in buffers]

        def restore() -> None:
            for each, kept in zip(buffers, before, strict=True):
                each.copy_(kept)

        return restore

    def serve(self, rank_group: RankGroup) -> NoReturn:
        """Compute what rank 0 requests. Raises RuntimeError: rank 0 has ended."""
        while True:
            step, seed = rank_group.order()
            rank_group.share(self._binding.x)
            batch = self._data.batch(self._batch, generator(self._seed, "batch", self._node, step))
            self._stepped.begin_step(self.model, step, self._batch)
            rank_group.compute(self._gradients, batch, self._gradient, seed, self.restoring())
            self._stepped.end_step(self.model)


def _end_with(sock: socket.socket) -> None:
    sock.recv(1)
    os._exit(0)


def main() -> None:
    """Entry point."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sock, rank = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    pipe = Pipe(sock)
    call_id, open_request = pipe.receive()
    assert isinstance(open_request, calls.Open)
    if open_request.nice:
        lower_priority(open_request.nice)
    try:
        computing = Rank(open_request, rank)
    except Exception as error:  # noqa: BLE001 — of the owner's task, too; rank 0 tells the owner
        pipe.send(call_id, Failed(describe(error)))
        os._exit(1)
    pipe.send(call_id, calls.Done())
    threading.Thread(target=_end_with, args=(sock,), daemon=True).start()
    try:
        computing.serve(RankGroup(rank, open_request.ranks, sys.argv[3], open_request.device, list(computing.model.buffers())))
    except Exception as error:  # noqa: BLE001 — of the owner's model, too
        sys.stderr.write(f"starling: rank {rank}: {describe(error)}\n")
        os._exit(1)


if __name__ == "__main__":
    main()
