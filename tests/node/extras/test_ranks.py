"""The other processes of an island, run in this process: how they open, and buffers when a batch is computed again."""

import socket
from threading import Thread

import torch
from torch import nn

from starling.node.config.schema import Manifest
from starling.node.extras.islands.island import _started
from starling.node.extras.islands.rank import Rank
from starling.node.rpc import calls
from starling.node.rpc.pipe import Pipe
from tests.harness.engines import open_request


def test_all_ranks_open_concurrently():
    ours, theirs = zip(*(socket.socketpair() for _ in range(3)), strict=True)
    answers = []
    asking = Thread(target=lambda: answers.extend(_started(open_request(Manifest(), 0, "a"), ours)), daemon=True)
    asking.start()
    for sock in reversed(theirs):  # the last rank is answered first
        sock.settimeout(5.0)
        assert sock.recv(1, socket.MSG_PEEK)
        pipe = Pipe(sock)
        call_id, _ = pipe.receive()
        pipe.send(call_id, calls.Done())
    asking.join(5.0)
    assert answers == ["", "", ""]
    for sock in (*ours, *theirs):
        sock.close()


def test_a_recomputed_batch_counts_once_in_a_rank_s_buffers():
    made = Rank.__new__(Rank)
    made.model = nn.BatchNorm1d(2)
    restore = made.restoring()
    before = {name: each.clone() for name, each in made.model.named_buffers()}
    made.model(torch.arange(16.0).view(8, 2))
    assert not torch.equal(made.model.running_mean, before["running_mean"])
    restore()
    assert all(torch.equal(each, before[name]) for name, each in made.model.named_buffers())
