"""Peers that say nothing about exchanges are named once, and no longer than they say nothing."""

import trio

from starling.node.daemon.exchange.mute_watch import MUTE_S, MuteWatch
from starling.node.status.format import short
from tests.harness.daemons import Reports
from tests.harness.virtual import virtual

PEER = "12D3KooWmute"


@virtual
async def test_a_mute_peer_is_named_after_a_while_until_it_says_something():
    since = {PEER: trio.current_time()}
    watched = MuteWatch(Reports(), lambda: since)
    await trio.sleep(MUTE_S - 0.1)
    watched.look()
    assert watched.words == ()
    for _ in range(2):
        await trio.sleep(0.1)
        watched.look()
        assert watched.words == (f"{short(PEER)} answers no exchange and asks for none",)
    ((name, _, level, fields),) = watched.report.events
    assert (name, level, fields) == ("peer_mute", "warning", {"peer": PEER})
    since.clear()
    watched.look()
    assert watched.words == ()
