"""The bounded history of finished exchanges for display: peer, outcome, bytes and duration."""

import trio

from starling.gossip.exchange.commands import Ended
from starling.node.daemon.exchange.facts import Accepted, Called
from starling.node.daemon.exchange.history import MAX_ENDED, MAX_UNDER_WAY, SHOWN_UNTIL_S, Transactions
from starling.node.net.faults import loss
from starling.node.status.snapshot import Transaction, Transfer
from tests.harness.exchange_swarm import PairwiseSwarm
from tests.harness.facts import queued_pull, queued_request, received_request, received_response, received_vector, sent_ack
from tests.harness.pull_swarm import PullSwarm
from tests.harness.virtual import virtual


@virtual
async def test_both_ends_record_the_same_exchange_from_their_own_side():
    swarm = PairwiseSwarm(2)
    async with swarm.serving():
        await swarm.all(lambda member: member.rounds(2, lambda _: {"ab".replace(member.name, ""): 0.5}, lambda: 0.0))
    (first, _), (other, _) = (swarm[name].transactions.ended for name in "ab")
    assert (first.peer, first.round, first.number, first.asked, first.outcome) == ("b", 0, 1, True, "committed")
    assert (other.peer, other.round, other.number, other.asked, other.outcome) == ("a", 0, 1, False, "committed")
    assert (first.bytes_sent, first.bytes_received) == (other.bytes_received, other.bytes_sent) == (1, 3)
    assert min(first.seconds, other.seconds) > 0.0
    assert first.waited_s is None
    assert 0.0 <= other.waited_s < other.seconds


@virtual
async def test_an_unanswered_exchange_is_recorded_as_a_timeout_without_a_number():
    swarm = PairwiseSwarm(2, rules=[loss(1.0, seed=1)])
    async with swarm.serving():
        await swarm["a"].rounds(1, lambda _: {"b": 0.5}, lambda: 0.0)
        await swarm["b"].rounds(1, lambda _: {"a": 0.5}, lambda: 0.0)
    for name, asked in (("a", True), ("b", False)):
        (it,) = swarm[name].transactions.ended
        assert (it.outcome, it.number, it.asked, it.bytes_received) == ("timeout", 0, asked, 0)


@virtual
async def test_requests_and_responses_are_recorded_for_pulled_models():
    swarm = PullSwarm("abc")

    async with swarm.serving() as nursery:
        nursery.start_soon(swarm["b"].round, 0, "")
        await swarm["a"].round(0, "bx")
    ended = {it.peer: it for it in swarm["a"].transactions.ended}
    assert (ended["b"].asked, ended["b"].outcome, ended["b"].bytes_received) == (True, "committed", len(b"b 0"))
    assert (ended["x"].asked, ended["x"].outcome, ended["x"].bytes_received) == (True, "timeout", 0)
    assert ended["b"].number != ended["x"].number
    (told,) = swarm["b"].transactions.ended
    assert (told.peer, told.asked, told.bytes_sent, told.number) == ("a", False, len(b"b 0"), ended["b"].number)


@virtual
async def test_a_requests_wait_counts_until_its_first_answer():
    kept = Transactions(lambda: 1000.0 + trio.current_time())
    kept.observe(received_request("b", 1, 12))
    await trio.sleep(2.0)
    kept.observe(Accepted("b", 1))
    await trio.sleep(1.0)
    kept.observe(Accepted("b", 1))
    kept.observe(Accepted("c", 1))
    kept.observe(Ended("b", 0, 1, "committed", "", "responder"))
    (it,) = kept.ended
    assert (it.seconds, it.waited_s) == (3.0, 2.0)


@virtual
async def test_time_is_counted_from_the_first_frame_however_often_it_is_repeated():
    kept = Transactions(lambda: 1000.0 + trio.current_time())
    kept.observe(queued_request("b", 1, 12))
    await trio.sleep(2.0)
    kept.observe(queued_request("b", 1, 12))
    kept.observe(received_response("b", 1, len(b"three")))
    kept.observe(Called("b", 1, 0.1, 0.25))
    await trio.sleep(1.0)
    kept.observe(Ended("b", 7, 1, "committed", "", "initiator"))
    (it,) = kept.ended
    expected = Transaction(it.time_s, "b", 7, 1, True, "committed", 12, 5, 0.25, 3.0)
    assert it == expected
    assert it.time_s == 1000.0 + trio.current_time()


@virtual
async def test_a_peer_s_unfinished_exchanges_are_bounded():
    kept = Transactions(lambda: 0.0)
    for number in range(3 * MAX_UNDER_WAY):
        kept.observe(received_request("liar", number, 12))
        kept.observe(Called("stranger", number, 0.1, 1.0))
    kept.observe(queued_pull("b", 1))
    kept.observe(received_vector("b", 1, len(b"vector")))
    assert kept.size == MAX_UNDER_WAY
    for _ in range(2 * MAX_ENDED):
        kept.observe(Ended("b", 3, 0, "busy", "", "initiator"))
    kept.observe(Ended("b", 0, 1, "committed", "", "initiator"))
    assert len(kept.ended) == MAX_ENDED
    assert kept.ended[-1].bytes_received == len(b"vector")
    assert kept.ended[0] == Transaction(0.0, "b", 3, 0, True, "busy")


@virtual
async def test_a_running_exchange_is_shown_with_its_bytes_until_it_ends():
    kept = Transactions(lambda: 0.0)
    kept.observe(received_request("stranger", 7, 12))  # a peer's request that is not answered yet
    kept.observe(queued_request("a", 1, 10))
    kept.observe(sent_ack("a", 5, 0.1))
    assert kept.under_way == ()
    await trio.sleep(5.0)
    assert kept.under_way == (Transfer("a", "exchange", 10, None, 5.0),)
    kept.observe(received_response("a", 1, 5))
    assert kept.under_way[0].done_bytes == 15
    kept.observe(Ended("a", 1, 1, "committed", "", "initiator"))
    assert kept.under_way == ()
    kept.observe(queued_request("a", 2, 12))
    await trio.sleep(SHOWN_UNTIL_S)
    assert kept.under_way == ()
