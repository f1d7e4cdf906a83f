"""The edge ledger's invariant at message level: after any events both ends store exactly opposite flows."""

import struct
from itertools import combinations
from random import Random

import pytest

from starling.gossip.exchange.calls import Offer
from starling.gossip.wire.schema import Reset
from tests.harness.edge_model import End, Ledger, Pair, random_event

KINDS = {
    "loss and duplication": {"resets": False, "closes": False, "restarts": False},
    "and resets": {"resets": True, "closes": False, "restarts": False},
    "and closes": {"resets": False, "closes": True, "restarts": False},
    "and restarts": {"resets": True, "closes": True, "restarts": True},
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", KINDS)
def test_flows_add_up_to_what_is_committed_and_pending_at_every_step(kind: str, seed: int) -> None:
    pair = Pair(Random(f"{kind} {seed}"))
    for _ in range(2000):
        random_event(pair, loss=0.3, duplication=0.2, **KINDS[kind])
        pair.check()
    pair.drain()
    assert pair.a.edge.inc == pair.b.edge.inc, "both ends agree on the incarnation again"
    assert not pair.a.edge.closing
    assert not pair.b.edge.closing
    assert pair.a.ledger.done.keys() == pair.b.ledger.done.keys()
    assert pair.a.ledger.flow + pair.b.ledger.flow == 0
    assert pair.a.ledger.settled + pair.b.ledger.settled == 0


def test_random_events_leave_room_for_commits() -> None:
    pair = Pair(Random(5))
    for _ in range(6000):
        random_event(pair, loss=0.3, duplication=0.2, resets=True, closes=True, restarts=True)
    for end in pair.ends:
        outcomes = {ended.outcome for ended in end.ended}
        assert {"committed", "aborted", "busy"} <= outcomes
        assert sum(ended.outcome == "committed" for ended in end.ended) > 15


@pytest.mark.parametrize("seed", range(6))
def test_every_transaction_ends_exactly_once_at_the_initiator(seed: int) -> None:
    pair = _reliable_pair(seed)
    _exchange(pair)
    for end in pair.ends:
        end.unreliable = True
        end.ended.clear()
    begun = pair.a.edge.next_seq
    for _ in range(2500):
        random_event(pair, loss=0.3, duplication=0.2, resets=False, closes=False, restarts=False)
    pair.drain()
    seqs = [ended.seq for ended in pair.a.ended if ended.seq]
    assert len(seqs) == len(set(seqs))
    assert set(seqs) == set(range(begun, pair.a.edge.next_seq))


def bfloat16(x: float) -> float:
    """Round to nearest even, as the engine's bfloat16 flows do."""
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    bits += 0x7FFF + (bits >> 16 & 1)
    (rounded,) = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))
    return float(rounded)


def float32(x: float) -> float:
    (rounded,) = struct.unpack("<f", struct.pack("<f", x))
    return float(rounded)


@pytest.mark.parametrize("rounding", [bfloat16, float32])
@pytest.mark.parametrize("seed", range(6))
def test_rounded_and_clamped_flows_are_negatives_bit_for_bit(seed: int, rounding) -> None:
    def ledger() -> Ledger:
        return Ledger(lambda flow, v: max(-3.0, min(3.0, rounding(flow + v))))

    pair = Pair(Random(seed), (ledger(), ledger()))
    for end in pair.ends:
        end.values = lambda: rounding(pair.rng.gauss(0, 0.7))
    for _ in range(2500):
        random_event(pair, loss=0.3, duplication=0.2, resets=False, closes=False, restarts=False)
    pair.drain()
    assert len(pair.a.ledger.done) > 10
    assert pair.a.ledger.flow == -pair.b.ledger.flow


@pytest.mark.parametrize("seed", range(10))
def test_flows_of_survivors_sum_to_zero_after_any_crash(seed: int) -> None:
    rng = Random(seed)
    peers = "abcde"
    pairs = {edge: Pair(rng) for edge in combinations(peers, 2)}
    for _ in range(6000):
        random_event(rng.choice(list(pairs.values())), loss=0.3, duplication=0.2, resets=True, closes=True, restarts=False)
    dead = set(rng.sample(peers, rng.randint(1, 3)))
    sums = dict.fromkeys(sorted(set(peers) - dead), 0.0)
    for (one, other), pair in pairs.items():
        gone = {one, other} & dead
        if not gone:
            pair.drain()
        for name, end in zip((one, other), pair.ends, strict=True):
            if name in dead:
                continue
            if gone:
                end.do(end.edge.reset(rng.randrange(2**48)))
                while end.engine:
                    end.work()
                assert end.total == 0
            sums[name] += end.total
    assert sum(sums.values()) == 0


def _reliable_pair(seed: int = 1) -> Pair:
    """Two ends that know each other's incarnation, over a network without faults except the test's."""
    pair = Pair(Random(seed))
    for end in pair.ends:
        end.unreliable = False
    _exchange(pair)
    pair.b.do(pair.b.edge.close())
    pair.settle_down()
    for end in pair.ends:
        end.ledger.revoke()
    return pair


def _exchange(pair: Pair, times: int = 1) -> None:
    for _ in range(times):
        pair.a.begin()
        pair.settle_down()


def test_first_contact_agrees_on_an_incarnation_before_any_vector_is_encoded() -> None:
    for seed in range(20):
        pair = Pair(Random(seed))
        for end in pair.ends:
            end.unreliable = False
        pair.a.begin()
        assert isinstance(pair.net[0][1], Reset)
        assert not any(isinstance(command, Offer) for command in pair.a.engine)
        pair.settle_down()
        assert pair.a.edge.inc == pair.b.edge.inc
        assert [ended.outcome for ended in pair.a.ended] == [ended.outcome for ended in pair.b.ended] == ["committed"]


def test_an_end_that_lost_its_state_makes_the_other_reset() -> None:
    for forgetful in ("a", "b"):
        pair = _reliable_pair()
        _exchange(pair, 3)
        assert pair.a.ledger.flow != 0
        end = pair.a if forgetful == "a" else pair.b
        end.restart()
        end.edge.inc = 1
        _exchange(pair, 2)
        assert pair.a.edge.inc == pair.b.edge.inc
        assert pair.a.ledger.flow == -pair.b.ledger.flow
        assert len(pair.a.ledger.done) < 3, "what was before is gone at both ends"


def test_both_ends_resetting_at_once_converge() -> None:
    for jump_a, jump_b in ((2, 2), (5, 3), (3, 5)):
        pair = _reliable_pair()
        _exchange(pair, 2)
        inc = pair.a.edge.inc
        pair.a.do([*pair.a.edge.reset(inc + jump_a), *pair.a.edge.greet()])
        pair.b.do([*pair.b.edge.reset(inc + jump_b), *pair.b.edge.greet()])
        pair.settle_down()
        _exchange(pair)
        assert pair.a.edge.inc == pair.b.edge.inc
        assert pair.a.ledger.flow == -pair.b.ledger.flow != 0


@pytest.mark.parametrize("closer", ["a", "b", "both"])
@pytest.mark.parametrize("lost", range(6))
def test_an_orderly_close_settles_the_same_flow_at_both_ends(closer: str, lost: int) -> None:
    pair = _reliable_pair()
    _exchange(pair, 3)
    pair.a.begin()
    while len(pair.a.ledger.done) < 4:  # ends before the Ack of the fourth transaction is delivered
        if pair.a.engine or pair.b.engine:
            for end in pair.ends:
                if end.engine:
                    end.work()
        else:
            pair.deliver(loss=0, duplication=0)
    pair.net.clear()
    assert pair.b.edge.pending is not None
    closers: list[End] = {"a": [pair.a], "b": [pair.b], "both": [pair.a, pair.b]}[closer]
    for end in closers:
        end.do(end.edge.close())
    for _ in range(lost):
        if pair.net:
            pair.deliver(loss=0, duplication=0)
    if pair.net:
        pair.net.pop()
    for _ in range(3):
        pair.settle_down()
        for end in pair.ends:
            end.do(end.edge.retry())
    pair.settle_down()
    assert pair.a.edge.inc == pair.b.edge.inc
    assert not pair.a.edge.closing
    assert not pair.b.edge.closing
    assert len(pair.b.ledger.done) == 4, "the pending fourth was resolved before settling"
    assert pair.a.ledger.settled == -pair.b.ledger.settled != 0
    assert pair.a.ledger.flow == pair.b.ledger.flow == 0
    _exchange(pair)
    assert pair.a.ledger.flow == -pair.b.ledger.flow != 0, "the edge goes on, from zero"
