"""A relay's bounds hold for every schedule of requests, data and disconnections, and ended circuits free their places."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starling.node.net.libp2p.relay_slots import (
    ALLOWANCES,
    ASKS,
    BURST_S,
    KNOCKS,
    RESERVATION_S,
    STRANGERS_SHARE,
    Allowance,
    Circuit,
    RelaySlots,
)

SMALL = Allowance(1000, 60.0, 100.0, 250.0, reservations=8, circuits=8, circuits_from=3, circuits_to=4)
PEERS = tuple(f"peer{number}" for number in range(12))

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.sampled_from(PEERS), st.sampled_from(["", "a", "b"]), st.booleans()),
        st.tuples(st.just("begin"), st.sampled_from(PEERS), st.sampled_from(PEERS), st.booleans()),
        st.tuples(st.just("bytes"), st.integers(0, 20), st.integers(1, 600)),
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("lost"), st.sampled_from(PEERS)),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 3.0, 61.0, RESERVATION_S])),
    ),
    max_size=60,
)


@settings(max_examples=60)
@given(STEPS)
def test_no_schedule_exceeds_a_bound_and_ended_circuits_free_their_place(steps):
    slots, now, made, passed = RelaySlots(SMALL), 0.0, [], {}
    for kind, *rest in steps:
        match kind, rest:
            case "reserve", [peer, origin, member]:
                slots.reserve(peer, origin, member, now)
            case "begin", [source, target, member]:
                begun = slots.begin(source, source[:1], target, member, now)
                if isinstance(begun, Circuit):
                    assert target in slots.holders(now)
                    made.append(begun)
                    passed[begun.number] = 0
            case "bytes", [place, amount] if place < len(made):
                if slots.passed(made[place], amount, now) is not None:
                    passed[made[place].number] += amount
            case "end", [place] if place < len(made):
                slots.end(made[place])
            case "lost", [peer]:
                slots.lost(peer)
                assert peer not in slots.holders(now)
                assert all(peer not in (it.source, it.target) for it in slots.circuits)
            case "wait", [seconds]:
                now += seconds
        every = slots.circuits
        assert len(every) <= SMALL.circuits
        assert len(slots.holders(now)) <= SMALL.reservations
        assert len({(it.source, it.target) for it in every}) == len(every)
        assert sum(not it.member for it in every) <= SMALL.circuits // STRANGERS_SHARE
        for peer in PEERS:
            assert sum(it.source == peer for it in every) <= SMALL.circuits_from
            assert sum(it.target == peer for it in every) <= SMALL.circuits_to
        assert all(amount <= SMALL.circuit_bytes for amount in passed.values())
    for peer in PEERS:
        slots.lost(peer)
    assert not slots.circuits
    assert not slots.holders(now)
    assert slots.buckets == 0


def test_freed_places_are_reused_without_limit():
    """The stock relay gives eight circuits in its lifetime."""
    slots, now = RelaySlots(SMALL), 0.0
    for _ in range(100):
        now += 10.0
        assert isinstance(slots.reserve("holder", "", True, now), float)
        circuit = slots.begin("source", "", "holder", True, now)
        assert isinstance(circuit, Circuit)
        slots.lost("holder")
        assert not slots.is_open(circuit)
        assert slots.buckets == 0


def test_strangers_get_no_reservation_and_a_share_of_the_circuits():
    slots = RelaySlots(SMALL)
    assert slots.reserve("stranger", "", False, 0.0) == "refused"
    assert isinstance(slots.reserve("honest", "192.0.2.0/24", True, 0.0), float)
    begun = [slots.begin(f"stranger{n}", "", "honest", False, 0.0) for n in range(5)]
    assert [isinstance(it, Circuit) for it in begun] == [True, False, False, False, False]
    assert isinstance(slots.begin("member", "", "honest", True, 0.0), Circuit)


def test_reservations_are_shared_by_prefix_and_no_one_keeps_them_for_having_come_first():
    slots = RelaySlots(SMALL)
    floods = [[f"{prefix} {number}" for number in range(4)] for prefix in ("a", "b")]
    for flood in floods:
        for peer in flood:
            assert isinstance(slots.reserve(peer, peer[0], True, 0.0), float)
    circuit = slots.begin("caller", "c", "a 3", True, 0.0)
    assert slots.reserve("a 4", "a", True, 0.0) == "full", "its own prefix holds as much as any"
    assert isinstance(slots.reserve("home", "", True, 0.0), float), "addresses at home are no prefix"
    assert isinstance(slots.reserve("honest 1", "h", True, 0.0), float)
    assert isinstance(slots.reserve("honest 2", "h", True, 0.0), float)
    assert slots.reserve("honest 3", "h", True, 0.0) == "full", "nobody holds two more than that prefix"
    assert slots.holders(0.0) == ("a 0", "a 1", "b 0", "b 1", "b 2", "home", "honest 1", "honest 2")
    assert isinstance(circuit, Circuit)
    assert slots.is_open(circuit), "what was begun goes on"
    assert slots.begin("other", "c", "a 3", True, 0.0) == "no reservation"


def test_identities_of_one_prefix_cannot_take_others_circuits():
    """Eight identities once filled all 64 places permanently, and 0 of 30 honest attempts succeeded."""
    slots = RelaySlots(Allowance(1000, 60.0, 100.0, 250.0))
    for number in range(16):
        assert slots.reserve(f"target {number}", f"192.0.{number}.0/24", True, 0.0) > 0.0
    for number in range(8):
        for target in range(8):
            assert isinstance(slots.begin(f"identity {number}", "198.51.100.0/24", f"target {target}", True, 0.0), Circuit)
    assert len(slots.circuits) == 64
    begun = [slots.begin(f"honest {number}", f"203.0.{number}.0/24", f"target {number % 16}", True, 10.0) for number in range(30)]
    assert all(isinstance(it, Circuit) and slots.is_open(it) for it in begun)
    assert len(slots.circuits) == 64
    one_target = [slots.begin(f"honest {number}", f"203.0.{number}.0/24", "target 0", True, 20.0) for number in range(8)]
    assert sum(isinstance(it, Circuit) for it in one_target) == 6, "of those to one target, where each prefix has one at last"


def test_identities_of_one_prefix_use_at_most_half_of_a_target_s_requests():
    slots, begun = RelaySlots(Allowance(1000, 60.0, 100.0, 250.0)), 0
    slots.reserve("target", "", True, 0.0)
    for second in range(60):
        for number in range(8):
            slots.begin(f"identity {number}", "198.51.100.0/24", "target", True, float(second))
        begun += isinstance(slots.begin(f"honest {second % 4}", "203.0.113.0/24", "target", True, float(second)), Circuit)
    assert begun == 60


@given(st.integers(1, 40))
def test_a_flooding_requester_gets_few_answers_and_causes_few_dials_of_a_target(askers):
    slots = RelaySlots(Allowance(1000, 60.0, 100.0, 250.0, circuits=10**6, circuits_from=10**6, circuits_to=10**6))
    slots.reserve("target", "", True, 0.0)
    begun = [slots.begin(f"asker{n}", "", "target", True, 0.0) for n in range(askers) for _ in range(20)]
    assert sum(isinstance(it, Circuit) for it in begun) <= min(KNOCKS, ASKS * askers)
    assert slots.reserve("other", "", True, 0.0) > 0.0  # others are not slowed down by it


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8))
def test_bytes_above_the_rate_wait_and_are_not_lost(amounts):
    slots = RelaySlots(SMALL)
    slots.reserve("b", "", True, 0.0)
    circuit, now, sent = slots.begin("a", "", "b", True, 0.0), 0.0, 0
    for amount in amounts:
        now += slots.passed(circuit, amount, now)
        sent += amount
        assert sent <= SMALL.peer_bytes_per_s * (now + BURST_S) + 1e-6
    assert circuit.left == SMALL.circuit_bytes - sent


@pytest.mark.parametrize("mode", ["control", "small"])
def test_a_circuit_ends_at_its_limit_of_bytes_or_time(mode):
    allowance = ALLOWANCES[mode]
    slots = RelaySlots(allowance)
    slots.reserve("b", "", True, 0.0)
    full = slots.begin("a", "", "b", True, 0.0)
    assert slots.passed(full, allowance.circuit_bytes, 1.0) is not None
    assert slots.passed(full, 1, 2.0) is None
    assert not slots.is_open(full)
    late = slots.begin("a", "", "b", True, 3.0)
    assert slots.passed(late, 1, 3.0 + allowance.circuit_s) is None


def test_a_second_circuit_between_two_replaces_the_first():
    """Its source lost its connection, and the relay has not noticed yet."""
    slots = RelaySlots(SMALL)
    slots.reserve("b", "", True, 0.0)
    first, second = slots.begin("a", "", "b", True, 0.0), slots.begin("a", "", "b", True, 1.0)
    assert slots.circuits == (second,)
    assert slots.passed(first, 1, 1.0) is None


def test_a_node_that_relays_nothing_refuses_reservations():
    slots = RelaySlots(ALLOWANCES.get("off"))
    assert slots.reserve("a", "", True, 0.0) == slots.begin("a", "", "b", True, 0.0) == "not allowed"
    assert RelaySlots(SMALL).begin("a", "", "b", True, 0.0) == "no reservation"
