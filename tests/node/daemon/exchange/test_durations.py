"""Estimates from the durations of payloads and calls."""

import pytest

from starling.gossip.exchange.estimates import Deadline
from starling.gossip.exchange.link_deadlines import LinkDeadlines
from starling.node.daemon.exchange.durations import Durations
from starling.node.daemon.exchange.facts import Called
from tests.harness.daemons import Reports
from tests.harness.facts import sent_ack, sent_request
from tests.harness.virtual import virtual

MOST_S = 2.0


def durations():
    return Durations(Reports(), LinkDeadlines(Deadline(0.1, MOST_S)))


def test_only_payloads_update_the_estimate_of_payload_durations():
    it = durations()
    it.observe(sent_request("a", 130, 0.1))
    for _ in range(5):
        it.observe(sent_ack("b", 5, 9.0))
    assert it.link_deadlines.transfers.usual_s() == pytest.approx(0.1)


def test_calls_update_the_estimate_of_engine_durations():
    it = durations()
    it.observe(Called("a", 1, 0.3, None))
    assert it.link_deadlines.calls.usual_s() == 0.3


@virtual
async def test_payloads_that_take_too_long_are_reported_once():
    it = durations()
    for seconds in (0.1, 10.0 * MOST_S, 10.0 * MOST_S, 10.0 * MOST_S, 10.0 * MOST_S):
        it.observe(sent_request("a", 130, seconds))
    assert it.report.names == ["exchanges_slow"]
