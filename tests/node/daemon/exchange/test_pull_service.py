"""The service of pulled exchanges over a memory network in virtual time, with an engine whose vectors are words."""

import time

import pytest
import trio

from starling.gossip.errors import EngineError
from starling.gossip.exchange.attestation import body, digest, genuine
from starling.gossip.exchange.pull import MAX_ANSWERS, MAX_QUESTIONS
from starling.gossip.wire.frames import encode
from starling.gossip.wire.schema import Ack, Pull, Pulled
from starling.node.daemon.exchange.pull_service import FRAME_BYTES
from starling.node.daemon.membership.neighbors import Caps, RandomNeighbors, secret_draws
from starling.node.rpc import calls
from starling.node.status.snapshot import Exchanges
from tests.harness.pull_swarm import FIRST_NUMBER, INCARNATION, PullSwarm, sign, verify
from tests.harness.virtual import virtual


def forged(sender: str, nonce: int, number: int, payload: bytes) -> bytes:
    """Return a frame with an answer signed by `sender`."""
    told = digest(payload)
    return encode(Pulled(nonce, number, INCARNATION, told, sign(sender, body("swarm", sender, INCARNATION, number, told)), payload))


@virtual
async def test_pulls_return_published_vectors_and_need_no_pull_back():
    swarm = PullSwarm("abc")
    async with swarm.serving() as nursery:
        for name, peers in {"a": "bc", "b": "c", "c": ""}.items():
            nursery.start_soon(swarm[name].round, 0, peers)
        await trio.sleep(1.0)
        told = {name: member.engine.mixed for name, member in swarm.members.items()}
        assert told == {"a": [(0, {"b": b"b 0", "c": b"c 0"})], "b": [(0, {"c": b"c 0"})], "c": [(0, {})]}
        assert swarm["a"].exchange.stats == Exchanges(committed=2)
        assert swarm["c"].exchange.stats == Exchanges()
        assert swarm["c"].exchange.payload_bytes == 2 * len(b"c 0")
        assert swarm["a"].exchange.committed("b") == 1
        assert swarm["a"].exchange.edges == ("b", "c")
        assert [(s.peer, s.round) for s in swarm["a"].witnessed] == [("b", 0), ("c", 0)]
        assert all(genuine(statement, verify) for statement in swarm["a"].witnessed)
        assert not any(member.facts.faults for member in swarm.members.values())
        assert all(member.engine.count(calls.Publish) == 1 for member in swarm.members.values())


@pytest.mark.slow
@virtual
async def test_thousands_of_requests_cost_two_vectors_and_one_signature():
    swarm = PullSwarm("abc")
    a = swarm["a"]
    async with swarm.serving():
        await a.round(0, "")
        began = time.process_time()
        for nonce in range(3_000):
            await swarm["b"].network.send("a", "exchange", encode(Pull(nonce, 0)))
            if nonce % 32 == 0:
                await trio.sleep(0.01)  # otherwise the inbox is full, and frames are dropped at no cost
        spent_s = time.process_time() - began
        await swarm["c"].round(0, "a")
        assert swarm["c"].engine.mixed == [(0, {"a": b"a 0"})]
        assert a.exchange.payload_bytes == (MAX_ANSWERS + 1) * len(b"a 0")
        assert a.engine.count(calls.Publish) == 1
        assert {reason for _, reason in a.facts.faults} == {"asked_too_often"}
        assert len(a.facts.faults) == 3_000 - MAX_QUESTIONS
        assert not a.exchange.under_way
        assert spent_s < 6.0  # 2 ms each, including the sender's and the network's work


LIES = {
    "bad_vector": lambda nonce: forged("z", nonce, 0, b"bad"),
    "bad_signature": lambda nonce: forged("b", nonce, 0, b"z 0"),
    "wrong_round": lambda nonce: forged("z", nonce, 2**40, b"z 0"),
    "frame_too_long": lambda nonce: forged("z", nonce, 0, bytes(FRAME_BYTES + 99)),
    "frame_not_msgpack": lambda _: b"\xc1",
    "frame_not_a_message": lambda _: b"\x91\xa3pul",
    "wrong_kind_of_exchange": lambda _: encode(Ack(1, 1)),
    "answer_unasked": lambda nonce: forged("z", nonce + 1, 0, b"z 0"),
}


@pytest.mark.parametrize("reason", LIES)
@virtual
async def test_a_proven_lie_is_a_fault_of_its_sender_only(reason):
    swarm = PullSwarm("abz")
    a, z = swarm["a"], swarm["z"]
    async with swarm.serving() as nursery:
        nursery.start_soon(swarm["b"].round, 0, "")
        nursery.start_soon(a.round, 0, "bz")
        await trio.sleep(0.1)  # z is still training, and has queued the request
        await z.network.send("a", "exchange", LIES[reason](FIRST_NUMBER + 2))
        await trio.sleep(5.0)
        assert a.facts.faults == [("z", reason)]
        assert a.engine.mixed == [(0, {"b": b"b 0", "z": None})]
        assert a.exchange.stats.committed == 1


@virtual
async def test_an_engine_crash_during_a_comparison_costs_the_round_and_blames_no_peer():
    swarm = PullSwarm("ab")
    a = swarm["a"]
    async with swarm.serving():
        await swarm["b"].round(0, "")
        a.engine.dead = (calls.VerifyUpdate,)
        assert (await a.round(0, "b")).outcomes == {"b": "aborted"}
        await swarm["b"].round(1, "")
        a.engine.dead = (calls.Mix,)
        with pytest.raises(EngineError):
            await a.round(1, "b")
        a.engine.dead = ()
        await a.exchange.reset_all()
        await a.round(1, "b")
        assert a.engine.mixed[-1] == (1, {"b": b"b 1"})
        assert not a.facts.faults


@virtual
async def test_a_repeated_round_is_not_published_again():
    swarm = PullSwarm("ab")
    a, b = swarm["a"], swarm["b"]
    async with swarm.serving():
        await a.round(4, "")
        a.engine.padding = b" once more"
        await a.round(4, "")
        await b.round(4, "a")
        assert b.engine.mixed == [(4, {"a": b"a 4"})]
        await a.round(5, "")
        b.engine.padding = b" once more"  # otherwise the answer would take longer than any the node has measured
        await b.round(5, "a")
        assert b.engine.mixed[-1] == (5, {"a": b"a 5 once more"})
        assert not b.facts.faults


@virtual
async def test_a_node_without_records_says_so_and_requests_none():
    swarm = PullSwarm("ab")
    a, b = swarm["a"], swarm["b"]
    a.engine.refuse = lambda call: calls.Refused("state", "it would rather not") if isinstance(call, calls.Publish) else None
    async with swarm.serving() as nursery:
        nursery.start_soon(b.round, 0, "a")
        await trio.sleep(0.1)
        assert (await a.round(0, "b")).outcomes == {}
        await trio.sleep(0.1)
        assert b.exchange.stats == Exchanges(busy=1)
        assert a.facts.names == ["not_published"]
        assert [number for number, _ in a.engine.mixed] == [0]


@virtual
async def test_a_peer_that_reads_nothing_uses_memory_briefly_and_delays_no_other():
    swarm = PullSwarm("abc")
    a = swarm["a"]
    send, stuck = a.network.send, []

    async def sending(peer, lane, frame):
        if peer == "b":
            stuck.append(frame)
            await trio.sleep_forever()
        await send(peer, lane, frame)

    a.network.send = sending
    async with swarm.serving() as nursery:
        await a.round(0, "")
        nursery.start_soon(swarm["b"].round, 0, "a")
        await trio.sleep(0.1)
        assert stuck
        assert a.exchange.queued_bytes >= len(b"a 0")
        await swarm["c"].round(0, "a")
        assert swarm["c"].exchange.stats == Exchanges(committed=1)
        await trio.sleep(5.0)
        assert a.exchange.queued_bytes == 0
        assert not a.exchange.under_way


@virtual
async def test_a_banned_peers_reports_of_this_round_do_not_count():
    swarm = PullSwarm("abz")
    a = swarm["a"]
    async with swarm.serving() as nursery:
        nursery.start_soon(swarm["z"].round, 0, "")
        nursery.start_soon(a.round, 0, "bz")
        await trio.sleep(0.2)
        assert a.engine.heard == {"z": b"z 0"}
        await a.exchange.revoke("z")
        await swarm["b"].round(0, "")
        await trio.sleep(0.2)
        assert a.engine.mixed == [(0, {"b": b"b 0", "z": None})]


@virtual
async def test_peers_clipped_by_the_rule_are_reported_with_the_outcomes_of_requests():
    swarm = PullSwarm("ab")
    a = swarm["a"]
    async with swarm.serving():
        await swarm["b"].round(0, "")
        a.engine.held = ("b",)
        a.engine.dead = (calls.Mix,)
        with pytest.raises(EngineError):
            await a.round(0, "b")
        a.engine.dead = ()
        await a.round(0, "b")
        await swarm["b"].round(1, "")
        a.engine.held = None
        await a.round(1, "b")
    assert a.noted == [({"b": "committed"}, ("b",)), ({"b": "committed"}, None)]


def test_partners_are_drawn_from_a_secret_anew_in_every_round_and_run():
    members = tuple(f"peer{i:02}" for i in range(20))

    def drawn(secret=b"s" * 32, incarnation=1, caps=None, allowed=lambda _peer: True):
        draw = RandomNeighbors(lambda: members, "peer03", 4, caps or Caps(), allowed, secret_draws(secret, incarnation))
        return [tuple(draw.weights(number)) for number in range(30)]

    rows = drawn()
    assert rows == drawn()
    assert len(set(rows)) > 25
    for other in (drawn(secret=b"t" * 32), drawn(incarnation=2)):
        assert sum(one == two for one, two in zip(rows, other, strict=True)) < 3
    assert all(len(set(row)) == 4 and "peer03" not in row for row in rows)
    assert all("peer07" not in row for row in drawn(allowed=lambda peer: peer != "peer07"))
    near = drawn(caps=Caps(1, lambda peer: {"1.2.3.0/24"} if peer < "peer10" else set()))
    assert all(sum(peer < "peer10" for peer in row) <= 1 for row in near)
    draw = RandomNeighbors(lambda: members, "peer03", 4, Caps(), lambda _: True, secret_draws(b"s", 1))
    assert sum(draw.weights(0).values()) == 4 / 5


@virtual
async def test_a_changed_cap_applies_to_the_next_response():
    swarm = PullSwarm("ab")
    a, b = swarm["a"], swarm["b"]
    a.engine.padding = b.engine.padding = bytes(100_000)
    async with swarm.serving():
        for number, (cap, committed) in enumerate([(0, 1), (1000, 2), (1000, 2), (10**8, 3), (0, 4)]):
            a.limits.up_bytes_per_s = cap
            await a.round(number, "")
            await b.round(number, "a")
            assert b.exchange.stats.committed == committed
