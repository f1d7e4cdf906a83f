"""Coordination of a simultaneous open: both ends connect at the same moment for any round trip; nothing else starts a dial."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starling.node.net.libp2p.punch import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    MAX_ADDRESSES,
    MOST_DELAY_S,
    ConnectTo,
    Pairs,
    Punch,
    SayConnect,
    SaySync,
)

EVENTS = st.lists(st.tuples(st.sampled_from(["begin", "connect", "sync"]), st.integers(0, 2 * MAX_ADDRESSES)), max_size=8)


@given(st.floats(0.0, MOST_DELAY_S))
def test_both_connect_at_the_same_moment_and_one_of_them_begins_the_handshake(way_s):
    """`way_s`: the time of a message one way through the relay."""
    opener, answerer = Punch(opens=True), Punch(opens=False)
    assert opener.begin(0.0) == [SayConnect()]
    assert answerer.connect(["opener"], way_s) == [SayConnect()]
    said, theirs = opener.connect(["answerer"], 2 * way_s)
    (ours,) = answerer.sync(3 * way_s)
    assert said == SaySync()
    assert theirs.at == pytest.approx(ours.at)
    assert (theirs.addresses, ours.addresses) == (("answerer",), ("opener",))
    assert (theirs.initiate, ours.initiate) == (False, True)


@settings(max_examples=60)
@given(st.booleans(), EVENTS)
def test_a_message_out_of_order_ends_the_attempt_and_no_end_connects_twice(opens, events):
    core, now, connected, said = Punch(opens=opens), 0.0, 0, []
    for kind, told in events:
        now += 1.0
        before = core.state
        if kind == "begin":
            commands = core.begin(now)
        elif kind == "connect":
            commands = core.connect([f"address {number}" for number in range(told)], now)
        else:
            commands = core.sync(now)
        for each in commands:
            if isinstance(each, ConnectTo):
                connected += 1
                assert 1 <= len(each.addresses) <= MAX_ADDRESSES
                assert now <= each.at <= now + MOST_DELAY_S
                assert each.initiate is not opens
            else:
                said.append(each)
        assert commands or core.state == "over"
        assert before not in {"connecting", "over"} or not commands
    assert connected <= 1
    assert len(said) <= 2


def test_a_pair_that_cannot_connect_is_retried_with_growing_pauses_until_an_address_changes():
    pairs, now, tried = Pairs(), 0.0, []
    while now < 20 * LONGEST_PAUSE_S:
        if pairs.may_try("peer", now):
            tried.append(now)
            pairs.failed("peer", now)
        now += FIRST_PAUSE_S / 2
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert max(pauses) <= LONGEST_PAUSE_S + FIRST_PAUSE_S
    assert pairs.may_try("other", now)
    pairs.moved()
    assert pairs.may_try("peer", now)
    pairs.failed("peer", now)
    pairs.met("peer")
    assert pairs.may_try("peer", now)
