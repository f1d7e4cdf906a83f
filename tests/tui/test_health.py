"""The health line: whether a node is well and contributes, for a volunteer."""

import pytest

from starling.node.status.snapshot import Exchanges, Transaction, Transfer
from starling.tui.text.health import beside, health
from tests.harness.snapshots import NOW, bare, full, snapshot


def exchange(ago_s, outcome, peer="a"):
    return Transaction(time_s=NOW - 0.5 - ago_s, peer=peer, round=1, number=1, asked=True, outcome=outcome)


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (full(), "✓ helping: 15 exchanges with 7 peers in the last 23 s"),
        (snapshot(transactions=(exchange(5.0, "busy"), exchange(2.0, "committed"))), "✓ helping: 1 exchange with a peer in the last 5 s"),
        (snapshot(transactions=(exchange(200.0, "committed"),)), "○ no exchange for 3 min 20 s; training without peers"),
        (snapshot(transactions=(exchange(2.0, "timeout"),)), "○ 1 exchange in the last minute and none committed; training without peers"),
        (snapshot(), "✓ helping: 80 exchanges so far"),
        (snapshot(exchanges=Exchanges()), "○ no exchange yet; training without peers"),
        (snapshot(state="finished"), "✓ finished after 80 exchanges"),
        (snapshot(state="failed"), "✗ stopped by an error; its log.jsonl says which"),
        (snapshot(state="waiting"), "… waiting for its quorum; nothing is wrong"),
        (bare(), "… starting"),
        (snapshot(state="starting", activity="starting the engine (importing torch)"), "… starting the engine (importing torch)"),
    ],
)
def test_the_health_line_follows_the_exchanges(status, line):
    sign, _, words = health(status)
    assert f"{sign} {words}" == line


def test_a_model_that_is_being_fetched_is_not_looking_for_members():
    fetching = (Transfer("12D3KooWxalive01", "model", 52_000_000, 120_000_000, 63.0), Transfer("b", "model", 1, 120_000_000, 63.0))
    sign, _, words = health(snapshot(state="joining", transfers=fetching))
    assert f"{sign} {words}" == "… fetching the swarm's model from …alive01: 43 % of 120 MB"
    sign, _, words = health(snapshot(transfers=fetching, exchanges=Exchanges()))
    assert sign == "⇄"


def test_an_exchange_under_way_is_not_training_without_peers():
    under_way = (Transfer("a", "exchange", 12_000_000, None, 45.0), Transfer("b", "exchange", 1, None, 3.0))
    sign, _, words = health(snapshot(transactions=(exchange(200.0, "committed"),), transfers=under_way), {"a": "node-3"}.get)
    assert f"{sign} {words}" == "⇄ exchange with node-3 for 45 s: 12 MB"


def test_a_demo_shows_the_lone_accuracy_and_the_swarms():
    """At 80 columns too, after the text of a healthy node."""
    assert beside(0.7251, snapshot(metric="accuracy")) == "; alone: accuracy 0.725"
    assert beside(None, snapshot()) == ""
    _, _, words = health(full())
    assert len(words + beside(0.7251, full())) <= 76
