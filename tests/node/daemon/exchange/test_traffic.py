"""Who is told what of messages."""

import pytest
import trio

from starling.gossip.exchange.estimates import Deadline
from starling.gossip.exchange.patience import Patience
from starling.gossip.wire.schema import Ack, Pull, Pulled, Request, Response
from starling.node.daemon.context import Limits
from starling.node.daemon.exchange.budget import FixedBudget
from starling.node.daemon.exchange.history import Transactions
from starling.node.daemon.exchange.slow_watch import SlowWatch
from starling.node.daemon.exchange.traffic import PairwiseTraffic, PulledTraffic
from tests.harness.daemons import Reports
from tests.harness.virtual import virtual

MOST_S = 2.0
REQUEST, RESPONSE = Request(1, 7, 0, 0, b"view", 0.5, 1.0, b"x" * 100), Response(1, 7, b"y" * 50)


def pairwise():
    report, moved = Reports(), []
    watch, transactions = SlowWatch(report, Limits(0, 0, 1)), Transactions(trio.current_time)
    patience = Patience(Deadline(0.1, MOST_S))
    made = PairwiseTraffic(
        report, FixedBudget(1), watch, transactions, patience, lambda peer, size: moved.append((peer, size))
    )
    return made, report, moved


@virtual
async def test_a_transaction_is_recorded_from_both_of_its_messages_and_every_frame_counts_as_moved():
    traffic, _, moved = pairwise()
    traffic.queued("a", REQUEST)
    traffic.sent("a", REQUEST, 130, 0.1)
    traffic.received("a", RESPONSE, 70)
    traffic.queued("a", Ack(1, 7))
    traffic.sent("a", Ack(1, 7), 5, 0.0)
    await trio.sleep(3.0)
    (under_way,) = traffic.transactions.under_way
    assert (under_way.peer, under_way.done_bytes) == ("a", 150)
    assert moved == [("a", 130), ("a", 70), ("a", 5)]
    assert traffic.patience.transfers.usual_s() == pytest.approx(0.1), "an acknowledgement has no payload"


@virtual
async def test_payloads_that_take_too_long_are_told_of_once():
    traffic, report, _ = pairwise()
    for seconds in (0.1, 10.0 * MOST_S, 10.0 * MOST_S, 10.0 * MOST_S, 10.0 * MOST_S):
        traffic.sent("a", REQUEST, 130, seconds)
    assert report.names == ["exchanges_slow"]


@virtual
async def test_of_pulled_vectors_those_asked_for_and_those_given_are_recorded():
    traffic = PulledTraffic(Transactions(trio.current_time))
    ours = Pulled(9, 4, 1, b"d" * 32, b"s" * 64, b"vector")
    traffic.queued("a", ours)
    traffic.sent("a", ours, 200, 0.5)
    assert traffic.payload_bytes == len(b"vector")
    (ended,) = traffic.transactions.ended
    assert (ended.peer, ended.round, ended.number, ended.bytes_sent, ended.seconds) == ("a", 4, 9, 6, 0.5)
    traffic.queued("b", Pull(1, 4))
    traffic.sent("b", Pull(1, 4), 20, 0.0)
    traffic.received("b", Pulled(1, 4, 1, b"d" * 32, b"s" * 64, b"theirs"))
    traffic.transactions.answered("b", 4, 1, "committed")
    assert traffic.transactions.ended[-1].bytes_received == 6
    assert traffic.payload_bytes == 6
