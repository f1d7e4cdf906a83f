"""The service of pulled exchanges over a memory network in virtual time, with an engine that tells words instead of vectors."""

from __future__ import annotations

import time

import pytest
import trio

from starling.gossip.errors import EngineError, PeerUnreachable
from starling.gossip.exchange.attestation import body, digest, genuine
from starling.gossip.exchange.pull import MAX_ANSWERS, MAX_QUESTIONS
from starling.gossip.wire.frames import encode
from starling.gossip.wire.schema import Ack, Pull, Pulled
from starling.node.daemon.exchange.pull_service import FRAME_BYTES
from starling.node.daemon.membership.neighbors import RandomNeighbors
from starling.node.net.faults import loss
from starling.node.rpc import calls
from starling.node.status.snapshot import Exchanges
from tests.harness.pull_swarm import INCARNATION, PullSwarm, sign, verify
from tests.harness.virtual import virtual


def forged(sender: str, nonce: int, number: int, payload: bytes) -> bytes:
    """A frame with an answer that `sender` signed."""
    told = digest(payload)
    return encode(
        Pulled(nonce, number, INCARNATION, told, sign(sender, body("swarm", sender, INCARNATION, number, told)), payload)
    )  # fmt: skip


@virtual
async def test_everybody_is_told_what_those_asked_have_published_and_who_is_asked_need_not_ask_back():
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


@virtual
async def test_who_is_early_waits_for_who_is_at_work_and_who_is_late_is_told_the_newest():
    swarm = PullSwarm("ab")
    async with swarm.serving() as nursery:
        nursery.start_soon(swarm["a"].round, 0, "b", 0.0)
        await swarm["b"].round(0, "", 0.9)
        assert swarm["a"].engine.mixed == []
        await trio.sleep(0.1)
        assert swarm["a"].engine.mixed == [(0, {"b": b"b 0"})]
        for number in range(1, 6):
            await swarm["b"].round(number, "")
        outcome = await swarm["a"].round(1, "b")
        assert swarm["a"].engine.mixed[-1] == (1, {"b": b"b 5"})
        assert outcome.outcomes == {"b": "committed"}
        assert not swarm["a"].facts.faults


@pytest.mark.slow
@virtual
async def test_rounds_end_and_nobody_runs_away_from_the_others_with_a_third_of_the_frames_lost():
    """Who is ahead is answered by nobody: it must learn to wait, or it trains alone to the end."""
    swarm = PullSwarm("abcdef", rules=[loss(0.3, seed=7)])

    async def play(member):
        for number in range(20):
            at = (ord(member.name) + number) % 6
            others = sorted(swarm.members.keys() - {member.name})
            await member.round(number, "".join(others[(at + i) % 5] for i in range(2)), 0.1)

    async with swarm.serving():
        async with trio.open_nursery() as nursery:
            for member in swarm.members.values():
                nursery.start_soon(play, member)
        for member in swarm.members.values():
            assert [number for number, _ in member.engine.mixed] == list(range(20))
            assert member.exchange.stats.committed > 20
            assert not member.facts.faults
            for _, told in member.engine.mixed:
                assert all(vector is None or vector.startswith(peer.encode()) for peer, vector in told.items())


@pytest.mark.slow
@virtual
async def test_who_asks_thousands_of_times_costs_two_vectors_one_signature_and_no_time():
    """Whatever is asked, the engine encodes once and nobody else waits."""
    swarm = PullSwarm("abc")
    a = swarm["a"]
    async with swarm.serving():
        await a.round(0, "")
        began = time.process_time()
        for nonce in range(3_000):
            await swarm["b"].network.send("a", "exchange", encode(Pull(nonce, 0)))
            if nonce % 32 == 0:
                await trio.sleep(0.01)  # else the inbox is full, which costs nothing at all
        spent_s = time.process_time() - began
        await swarm["c"].round(0, "a")
        assert swarm["c"].engine.mixed == [(0, {"a": b"a 0"})]
        assert a.exchange.payload_bytes == (MAX_ANSWERS + 1) * len(b"a 0")
        assert a.engine.count(calls.Publish) == 1
        assert {reason for _, reason in a.facts.faults} == {"asked_too_often"}
        assert len(a.facts.faults) == 3_000 - MAX_QUESTIONS
        assert not a.exchange._shell._peers
        assert spent_s < 6.0  # 2 ms each, though the sender and the network are counted as well


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
async def test_a_lie_is_a_fault_with_a_name_and_costs_its_teller_alone(reason):
    """It knows the number of the question, as it was asked: what it answers is looked at, and everybody else's word stands."""
    swarm = PullSwarm("abz")
    a, z = swarm["a"], swarm["z"]
    async with swarm.serving() as nursery:
        nursery.start_soon(swarm["b"].round, 0, "")
        nursery.start_soon(a.round, 0, "bz")
        await trio.sleep(0.1)  # z is at work and has parked the question
        await z.network.send("a", "exchange", LIES[reason](a.exchange._core._questions["z"]))
        await trio.sleep(5.0)
        assert a.facts.faults == [("z", reason)]
        assert a.engine.mixed == [(0, {"b": b"b 0", "z": None})]
        assert a.exchange.stats.committed == 1


@virtual
async def test_a_stranger_is_not_answered():
    swarm = PullSwarm("ab")
    async with swarm.serving():
        await swarm["a"].round(0, "")
        swarm["a"].strangers.add("b")
        await swarm["b"].round(0, "a")
        assert swarm["a"].facts.faults
        assert set(swarm["a"].facts.faults) == {("b", "not_a_member")}
        assert swarm["a"].exchange.payload_bytes == 0
        assert swarm["b"].exchange.stats == Exchanges(timeout=1)


@virtual
async def test_an_engine_that_dies_while_it_looks_costs_the_round_and_blames_nobody():
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
async def test_a_round_that_is_done_again_is_not_published_again():
    """A restarted engine comes to another vector; two signed ones for one round would prove the node a liar."""
    swarm = PullSwarm("ab")
    a, b = swarm["a"], swarm["b"]
    async with swarm.serving():
        await a.round(4, "")
        a.engine.padding = b" once more"
        await a.round(4, "")
        await b.round(4, "a")
        assert b.engine.mixed == [(4, {"a": b"a 4"})]
        await a.round(5, "")
        b.engine.padding = b" once more"  # or the answer would be longer than any it knows
        await b.round(5, "a")
        assert b.engine.mixed[-1] == (5, {"a": b"a 5 once more"})
        assert not b.facts.faults


@virtual
async def test_who_has_nothing_to_tell_says_so_and_asks_nobody():
    """Its own numbers cannot be sent: others need not wait for it."""
    swarm = PullSwarm("ab")
    a, b = swarm["a"], swarm["b"]
    a.engine.refuse = lambda call: (
        calls.Refused("state", "it would rather not") if isinstance(call, calls.Publish) else None
    )
    async with swarm.serving() as nursery:
        nursery.start_soon(b.round, 0, "a")
        await trio.sleep(0.1)
        assert (await a.round(0, "b")).outcomes == {}
        await trio.sleep(0.1)
        assert b.exchange.stats == Exchanges(busy=1)
        assert a.facts.events == ["not_published"]
        assert [number for number, _ in a.engine.mixed] == [0]


@virtual
async def test_a_volunteers_cap_bounds_what_others_are_served():
    """100 bytes a second: two vectors of 50 at once, then one every half second; who is refused goes on without."""
    swarm = PullSwarm("abcdef", cap=100)
    a = swarm["a"]
    for member in swarm.members.values():
        member.engine.padding = b"." * 47
    async with swarm.serving() as nursery:
        await a.round(0, "")
        for name in "bcdef":
            nursery.start_soon(swarm[name].round, 0, "a")
        await trio.sleep(0.1)
        outcomes = [swarm[name].exchange.stats for name in "bcdef"]
        assert outcomes.count(Exchanges(committed=1)) == 2
        assert outcomes.count(Exchanges(busy=1)) == 3
        await trio.sleep(1.0)
        assert (await swarm["f"].round(0, "a")).outcomes == {"a": "committed"}


@virtual
async def test_a_peer_that_takes_no_frame_holds_memory_for_a_while_only_and_delays_nobody():
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
        assert a.exchange._shell.queued_bytes >= len(b"a 0")
        await swarm["c"].round(0, "a")
        assert swarm["c"].exchange.stats == Exchanges(committed=1)
        await trio.sleep(5.0)
        assert a.exchange._shell.queued_bytes == 0
        assert not a.exchange._shell._peers


@virtual
async def test_who_cannot_be_reached_is_not_waited_for():
    swarm = PullSwarm("ab")

    async def nobody(peer, lane, frame):
        raise PeerUnreachable(peer, "no answer")

    swarm["a"].network.send = nobody
    async with swarm.serving():
        began = trio.current_time()
        assert (await swarm["a"].round(0, "b")).outcomes == {"b": "timeout"}
        assert trio.current_time() - began < 0.1


@virtual
async def test_what_a_banned_peer_told_this_round_does_not_count():
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
async def test_whom_the_rule_held_back_is_told_with_how_the_questions_ended():
    """The engine knows it only after Mix. A rule that does not say leaves None, which is not nobody. A round done again counts once."""
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


def test_partners_are_drawn_by_a_secret_anew_in_every_round_and_life():
    """Nobody else can know who will be asked; the node itself, in a simulation, draws the same again."""
    members = tuple(f"peer{i:02}" for i in range(20))

    def drawn(secret=b"s" * 32, incarnation=1, **options):
        caps = {"prefixes": lambda _peer: (), "per_prefix": 0, "allowed": lambda _peer: True} | options
        draw = RandomNeighbors(lambda: members, "peer03", 4, secret=secret, incarnation=incarnation, **caps)
        return [tuple(draw.weights(number)) for number in range(30)]

    rows = drawn()
    assert rows == drawn()
    assert len(set(rows)) > 25
    for other in (drawn(secret=b"t" * 32), drawn(incarnation=2)):
        assert sum(one == two for one, two in zip(rows, other, strict=True)) < 3
    assert all(len(set(row)) == 4 and "peer03" not in row for row in rows)
    assert all("peer07" not in row for row in drawn(allowed=lambda peer: peer != "peer07"))
    near = drawn(prefixes=lambda peer: {"1.2.3.0/24"} if peer < "peer10" else set(), per_prefix=1)
    assert all(sum(peer < "peer10" for peer in row) <= 1 for row in near)
    assert (
        sum(RandomNeighbors(lambda: members, "peer03", 4, lambda _: (), 0, lambda _: True, b"s", 1).weights(0).values())
        == 4 / 5
    )
