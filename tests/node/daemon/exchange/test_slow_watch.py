"""A slowdown is reported once, in words; a cap that the owner changed is not reported."""

import trio

from starling.gossip.exchange.slowness import NEW, OLD
from starling.node.daemon.context import Limits
from starling.node.daemon.exchange.slow_watch import SlowWatch
from starling.node.status.format import short
from tests.harness.daemons import Reports
from tests.harness.facts import received_response, sent_request, sent_response
from tests.harness.virtual import virtual

PEERS = ("12D3KooWa", "12D3KooWb", "12D3KooWc", "12D3KooWd")
COUNT = 1 << 20


def watch():
    return SlowWatch(Reports(), Limits(0, 0, 1))


def sends(watched, times, seconds):
    for _ in range(times):
        for peer in PEERS:
            watched.observe(sent_response(peer, COUNT, seconds))


async def exchanges(watched, times, seconds):
    """Record exchanges in which each peer answers after its number of seconds."""
    for seq in range(1, times + 1):
        for peer in PEERS:
            watched.observe(sent_request(peer, 10, 0.0, seq))
            await trio.sleep(seconds(peer))
            watched.observe(received_response(peer, seq))


@virtual
async def test_a_connection_that_became_slow_is_reported_once():
    watched = watch()
    sends(watched, OLD, 1.0)
    assert watched.words == ()
    sends(watched, 6 * NEW, 3.0)
    (words,) = watched.words
    assert words == "this node's upload is 3.0 times as slow as before (4 of 4 peers)"
    ((name, _, level, fields),) = watched.report.events
    assert (name, level, fields) == ("became_slow", "warning", {"peer": None, "times": 3.0})


@virtual
async def test_a_cap_changed_by_the_owner_is_not_reported():
    watched = watch()
    sends(watched, OLD, 1.0)
    watched.limits.up_bytes_per_s = 1000
    sends(watched, 6 * NEW, 3.0)
    assert watched.words == ()
    assert watched.report.events == []


@virtual
async def test_a_single_late_peer_is_named_until_it_leaves():
    watched = watch()
    await exchanges(watched, OLD, lambda _peer: 1.0)
    await exchanges(watched, 4 * NEW, lambda peer: 4.0 if peer == PEERS[1] else 1.0)
    assert watched.words == (f"{short(PEERS[1])} takes 4.0 times as long to answer as before",)
    watched.forget(PEERS[1])
    assert watched.words == ()


@virtual
async def test_unrequested_responses_count_for_nothing():
    watched = watch()
    await trio.sleep(1.0)
    for seq in range(10 * OLD):
        watched.observe(received_response(PEERS[0], seq))
        watched.observe(sent_response(PEERS[0], 10, 0.5))  # too short to measure the connection's speed
    assert watched.measured == 0
