"""Whether a node is well and helps: one line that a volunteer can trust."""

from __future__ import annotations

import pytest

from starling.node.status.snapshot import Exchanges, Transaction
from starling.tui.health import verdict
from tests.harness.snapshots import NOW, bare, full, snapshot


def exchange(ago_s, outcome, peer="a"):
    return Transaction(time_s=NOW - 0.5 - ago_s, peer=peer, round=1, number=1, asked=True, outcome=outcome)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (full(), "✓ it helps: 15 exchanges with 7 peers in the last 23 s"),
        (
            snapshot(transactions=(exchange(5.0, "busy"), exchange(2.0, "committed"))),
            "✓ it helps: 1 exchange with a peer in the last 5 s",
        ),
        (snapshot(transactions=(exchange(200.0, "committed"),)), "○ it learns alone: no exchange for 3 min 20 s"),
        (
            snapshot(transactions=(exchange(2.0, "timeout"),)),
            "○ the last 1 exchange came to nothing; it goes on learning alone",
        ),
        (snapshot(), "✓ it helped in 80 exchanges so far"),
        (snapshot(exchanges=Exchanges()), "○ it learns, and has met no peer yet"),
        (snapshot(state="finished"), "✓ it is done and helped in 80 exchanges"),
        (snapshot(state="failed"), "✗ it stopped on an error; its log.jsonl says which"),
        (snapshot(state="waiting"), "… it waits for its quorum; nothing is wrong"),
        (bare(), "… it gets ready"),
    ],
)
def test_it_says_what_the_exchanges_say(told, said):
    sign, _, words = verdict(told)
    assert f"{sign} {words}" == said
