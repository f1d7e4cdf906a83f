"""When the flows that are left lean against a peer that is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from starling.gossip.mix import edge_ledger


def held(**flows: float):
    """A ledger of one coordinate."""
    books = edge_ledger.opened(torch.zeros(1))
    books = replace(books, flows={peer: torch.tensor([flow]) for peer, flow in flows.items()})
    return edge_ledger.revoke(books, "nobody")  # adds the total up


@pytest.mark.parametrize(
    ("flows", "leans"),
    [
        ({"p": 1.0}, False),
        ({"p": 1.0, "q": -0.5}, False),
        ({"p": 10.0, "q": -5.0, "r": -4.9}, True),
        ({"q": -5.0, "r": 4.9}, False),
    ],
    ids=["all there was", "honest", "pushed steadily", "never met"],
)
def test_the_rest_leans_against_a_flow_far_longer_than_the_whole_correction(flows, leans):
    """Without it what is left is as large and points the other way: no correction at all errs by less."""
    before = held(**flows)
    after = edge_ledger.revoke(before, "p")
    assert edge_ledger.leaned(before, after) == leans
    if leans:
        assert (after.total - before.total).norm() > before.total.norm()


def test_nothing_leans_where_there_is_no_correction():
    empty = edge_ledger.opened(torch.zeros(3))
    assert not edge_ledger.leaned(empty, edge_ledger.revoke(empty, "p"))
