"""Rounds in which every node sends all others one message: every row's message through the codec, then each row's step of all it has.

A message that is lost or late is absent, but its sender counts among the members, as does a peer whose request fails.

Shapes: N rows, n members, D numbers of the shared vector.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from starling.gossip.api import Broadcasting
from starling.gossip.mix.broadcast_codec import BroadcastCodec
from starling.node.simulate.matrix.batch import Batch, Sizes
from starling.node.simulate.matrix.byzantine import View
from starling.node.simulate.matrix.edges import Edges, index
from starling.node.simulate.matrix.gather import Pulled, requests
from starling.node.simulate.matrix.table import States, check_finite


@dataclass(slots=True)
class Broadcasts(Pulled):
    """Broadcast algorithms for all rows: encode, deliver, step."""

    edge: Broadcasting
    codec: BroadcastCodec
    edges: Edges
    states: States

    def exchange(self, batch: Batch, honest: Batch, view: View, unreachable: NDArray[np.int64]) -> Sizes:
        """Send all messages of a round and step each row that is alive.

        `unreachable` (N,) is the number of failed requests to other peers per row. Raises ValueError: "not_finite": the swarm has diverged.
        """
        vectors, rows = batch.vectors, np.flatnonzero(view.alive)
        check_finite(vectors[index(rows, vectors)])
        sent, length = torch.zeros_like(vectors), np.zeros(len(vectors), np.int64)
        for row in rows.tolist():
            message = self.codec.encode(vectors[row], b"\0" * 8)
            sent[row] = self.codec.decode(message, vectors.shape[1], vectors.dtype)[1].to(vectors.device)
            length[row] = len(message)
        requested = requests(batch, self.edges.rank)
        for row in rows.tolist():
            from_row = requested.row == row
            peers, arrives = np.append(requested.peer[from_row], row), np.append(requested.arrives[from_row], True)
            order = np.argsort(self.edges.rank[peers], kind="stable")
            messages, present = sent[index(peers[order], sent)], torch.from_numpy(arrives[order]).to(vectors.device)
            absent = int(unreachable[row])  # absent rows may have any position: they add nothing
            messages = torch.nn.functional.pad(messages, (0, 0, 0, absent))
            present = torch.nn.functional.pad(present, (0, absent))
            at = slice(row, row + 1)
            before = x, state = self.states.of(at)
            named = [self.edges.peers[peer] for peer in peers[order].tolist()]
            state, _ = self.edge.advance(state, vectors[at], sent[at], messages[None], present[None], named, batch.phase.round)
            self.states.put(at, before, x, state)
        sizes: Sizes = length[batch.ends] * (batch.weights[::-1] > 0.0)
        sizes[1, batch.lost] = 0  # lost messages of a responder do not count
        return sizes
