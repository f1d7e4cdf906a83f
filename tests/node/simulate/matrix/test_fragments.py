"""Exchanges of fragments in the matrix: grouped by length, each in its own range of coordinates."""

import numpy as np
import torch

from starling.gossip.compress.support import Fragment
from starling.node.simulate.matrix.table import add, grouped


def test_fragments_are_taken_and_added_at_their_stretches():
    """Parts of 7 and 8 coordinates form two groups, which together contain all exchanges."""
    dim, parts = 23, 3
    rows = torch.arange(5 * dim, dtype=torch.float32).view(5, dim)
    supports, at = [Fragment(part % parts, parts) for part in range(5)], np.arange(5)
    groups = list(grouped(supports, dim, rows))
    assert sorted(place for group in groups for place in group.which.tolist()) == [0, 1, 2, 3, 4]
    for group in groups:
        which = torch.from_numpy(at[group.which])
        taken = group.take(rows, which)
        for place, values in zip(group.which, taken, strict=True):
            assert torch.equal(values, supports[place].take(rows[place]))
        expected = torch.stack([supports[place].add(rows[place], torch.ones(taken.shape[1])) for place in group.which])
        moved = rows.clone()
        add(moved, which, group.coordinates, group.spread(torch.ones_like(taken)))
        assert torch.equal(moved[which], expected)
