"""Sampled rounds: the order of aggregators, replacements of silent ones, and false claims of one member."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.commands import SendMessage
from starling.gossip.exchange.doubts import DEMOTED, IN_VAIN
from starling.gossip.exchange.marks import FORGIVEN
from starling.gossip.exchange.sampled import Due, Sampling
from starling.gossip.wire.schema import Claim, Wake
from tests.harness.sampled_swarm import MAX_S, MIN_S, SampledSwarm, claim, machine

SAMPLING = Sampling(sample=4, aggregators=2, success=0.6, slack=1, rounds=20)
NAMES = tuple(f"n{index:02d}" for index in range(12))


def one(me="n05", order=NAMES, sampling=SAMPLING):
    """Return a machine started at 0, in whose view every turn has the same order."""
    it = machine(me, sampling, lambda _turn: order)
    it.begin(0.0)
    return it


def told(turn, *signers, before=(), yours=True):
    return Wake(turn, yours, (*(claim(peer, turn) for peer in signers), *(claim(peer, turn - 1) for peer in before)))


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**20), st.sampled_from((0, 1, 2, 3)), st.sampled_from((0.0, 0.2)))
def test_every_round_is_averaged_by_few_and_all_get_the_last_model(seed, aggregators, loss):
    swarm = SampledSwarm(Sampling(4, aggregators, 0.6, 1, 6), 12, seed, loss=loss)
    swarm.run(400.0)
    assert swarm.finished == swarm.alive
    turns = Counter(turn for _, _, turn in swarm.done)
    assert sorted(turns) == list(range(swarm.sampling.turns)), "no turn is lost"
    trained = sum(count for turn, count in turns.items() if swarm.sampling.trains(turn))
    assert trained <= (2.5 if loss else 1.6) * 6 * (4 + 1), "most sleep: the sample, its slack, and some in place of the slow"


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 2**20), st.sampled_from((0, 1, 2)), st.floats(0.5, 8.0))
def test_four_fifths_fall_silent_at_once_and_the_rest_go_on(seed, aggregators, when_s):
    swarm = SampledSwarm(Sampling(4, aggregators, 0.6, 1, 10), 15, seed)
    swarm.silence(when_s, swarm.rng.sample(swarm.names, 12), 5.0)
    swarm.run(600.0)
    assert swarm.finished == swarm.alive
    rounds = {swarm.sampling.round(turn) for _, _, turn in swarm.done if aggregators == 0 or not swarm.sampling.trains(turn)}
    assert 10 - len(rounds) <= 6, "rounds that nobody averaged"


def test_a_jump_to_a_later_round_needs_two_members():
    it = one()
    assert it.receive("n01", told(20, "n01"), 1.0)[0] == []
    assert it.known < 0
    it.receive("n02", told(20, "n02"), 1.0)
    assert it.known == 20


def test_a_witness_of_the_previous_averaging_is_the_second_vote():
    it = one()
    it.receive("n01", told(7, "n01", before=("n02",)), 1.0)
    due = it.due(1.0)
    assert (due.turn, due.sources) == (8, ("n01",)), "a training turn begins with one aggregate"


def test_an_averaging_waits_for_enough_members_and_as_long_again_for_the_rest():
    it = one()
    it.receive("n01", told(6, "n01"), 1.0)
    it.receive("n02", told(6, "n02"), 2.0)
    assert it.due(2.0) is None, "0.6 of 4 are 3"
    it.receive("n03", told(6, "n03"), 2.5)
    assert it.due(2.9) is None, "since two had signed, enough took half a second"
    assert it.due_at == pytest.approx(3.0)
    assert it.due(3.0).sources == ("n01", "n02", "n03")
    it.receive("n04", told(6, "n04"), 2.6)
    assert it.due(2.6).turn == 7, "all are there"


def test_an_averaging_with_too_few_members_begins_after_a_long_wait():
    it = one()
    for peer in ("n01", "n02"):
        it.receive(peer, told(6, peer), 1.0)
    assert it.due(0.9 + 2.0 * MAX_S) is None
    assert it.due(1.0 + 2.0 * MAX_S).sources == ("n01", "n02")


def test_a_claim_of_another_s_turn_is_ignored():
    it = one()
    it.receive("n09", told(7, "n09", before=("n02",)), 1.0)
    assert it.due(1.0) is None, "two and one in reserve do that turn, and it is the tenth"
    it.receive("n01", told(7, "n01"), 2.0)
    assert it.due(2.0).sources == ("n01",)
    late = one()
    late.receive("n09", told(7, "n09", before=("n02",)), 1.0)
    assert late.due(0.9 + 2.0 * MAX_S) is None
    assert late.due(1.0 + 2.0 * MAX_S).sources == ("n09",), "those whose turn it was are all gone"


def test_with_a_rule_an_averaging_begins_with_most_aggregates():
    it = one(sampling=Sampling(4, 3, 0.6, 1, 20, aggregates=3))
    it.receive("n02", told(7, "n02", before=("n04",)), 1.0)
    assert it.due(1.0) is None
    it.receive("n01", told(7, "n01"), 1.5)
    assert it.due(1.9) is None, "the third may come"
    assert it.due(2.1).sources == ("n01", "n02")
    it.receive("n00", told(7, "n00", yours=False), 1.6)
    assert it.due(1.6).sources == ("n01", "n02", "n00"), "the first of the order are taken, of these who woke us first"
    it.receive("n03", told(7, "n03"), 1.6)
    assert it.due(1.6).sources[:3] == ("n01", "n02", "n00")


def published(it, turn=0):
    """Let the machine do the first turn; return the members that it wakes."""
    due = it.due(MIN_S)
    it.take_on(due, MIN_S)
    messages = it.publish(claim(it.me, turn), (), MIN_S)
    return [message.peer for message in messages if message.message.yours]


def test_a_silent_peer_is_replaced_by_the_next_in_order_until_enough_answer():
    it = one("n00")
    assert published(it) == ["n01"], "this node is one of the first two itself"
    more = it.tick(it.tick_at)
    assert [message.peer for message in more] == ["n02", "n03"]
    it.receive("n02", told(1, "n02", before=("n00",), yours=False), it.tick_at)
    assert [message.peer for message in it.tick(it.tick_at)] == ["n04"]
    it.receive("n04", told(1, "n04", before=("n00",), yours=False), it.tick_at)
    assert not any(message.message.claims for message in it.tick(it.tick_at)), "questions how far others are, nothing else"


def after_a_lone_averaging(turn=0, it=None, now=1.0):
    """Return a machine whose turn `turn` one member has averaged by `now`, and that member.

    The order begins with this node in turn 0, and one place further with each turn.
    """
    it = it or machine("n00", Sampling(4, 1, 0.6, 1, 100), lambda turn: NAMES[turn % 12 :] + NAMES[: turn % 12])
    it.begin(now - 0.5)
    it.take_on(Due(turn, ()), now - 0.4)
    it.publish(claim("n00", turn), (), now - 0.3)
    alone = f"n{(turn + 1) % 12:02d}"
    it.receive(alone, told(turn + 1, alone, before=("n00",), yours=False), now)
    return it, alone


def woken(messages):
    return {message.peer: message.message for message in messages if message.message.yours}


def test_a_lone_averaging_that_nobody_is_woken_for_is_handed_over_by_those_whose_vectors_it_used():
    it, alone = after_a_lone_averaging()
    for turn in (1, 2):
        it.receive(alone, told(turn, alone, yours=False), 2.0)
    assert not woken(it.tick(0.99 + MAX_S))
    assert it.tick_at == pytest.approx(1.0 + MAX_S), "whatever that member alone says"
    calls = woken(it.tick(1.0 + MAX_S))
    assert sorted(calls) == ["n02", "n03", "n04", "n05", "n06"], "four and one in reserve"
    sleeper = one("n02")
    for peer, wake in calls.items():
        assert sleeper.receive("n00", wake, 4.0)[1], peer
    assert sleeper.due(4.0 + 2.0 * MAX_S) == Due(2, (alone,)), "two members' word"
    assert not woken(it.tick(30.0)), "once"


def test_a_lone_averaging_is_not_handed_over_again_if_one_of_the_next_is_known_to_have_published():
    it, alone = after_a_lone_averaging()
    it.receive(alone, told(2, "n03", before=(alone,), yours=False), 2.0)
    assert not woken(it.tick(30.0))
    for turn in range(12, 60, 12):
        it, alone = after_a_lone_averaging(turn, it, now=100.0 * turn)
        it.receive(alone, told(turn + 2, f"n{turn % 12 + 3:02d}", before=(alone,), yours=False), 100.0 * turn + 0.4)
    it, _ = after_a_lone_averaging(60, it, now=6000.0)
    assert it.tick_at == pytest.approx(6000.0 + 2.0 * 0.4, abs=0.05), "learned: twice what is usual, and that was .4 s but for once"


def test_who_averages_alone_tells_those_whose_vectors_it_used_once_that_one_of_the_next_has_published():
    def told_by(aggregators):
        it = one("n00", sampling=Sampling(4, aggregators, 0.6, 1, 20))
        for peer in ("n01", "n02", "n03"):
            it.receive(peer, told(2, peer), 1.0)
        it.take_on(Due(3, ("n01", "n02", "n03")), 2.0)
        it.publish(claim("n00", 3), ("n00", "n01", "n02", "n03"), 3.0)
        it.take_on(Due(4, ("n00",)), 3.0)
        it.publish(claim("n00", 4), ("n00",), 3.5)
        alone, _ = it.receive("n04", told(4, "n04", yours=False), 4.0)
        first, _ = it.receive("n03", told(4, "n03", before=("n00",)), 4.0)
        again, _ = it.receive("n02", told(4, "n02", before=("n00",), yours=False), 4.0)
        assert not alone, "whom it tells must hear two members"
        assert not again
        return {message.peer: message.message for message in first}

    assert not told_by(2), "the other hands over as well"
    news = told_by(1)
    assert sorted(news) == ["n01", "n02"], "the third published it"
    assert all(wake == told(4, "n03", before=("n00",), yours=False) for wake in news.values())


def test_a_silent_first_aggregator_is_replaced_by_the_next():
    assert one("n03").due(MIN_S).turn == 0
    late = one("n04")
    assert late.due(MIN_S + MAX_S - 0.01) is None
    assert late.due(MIN_S + MAX_S).turn == 0
    heard = one("n04")
    heard.receive("n01", told(1, "n01", before=("n00",), yours=False), 0.5)
    assert heard.due(MIN_S + MAX_S) is None


def test_a_call_for_a_finished_averaging_is_answered_with_the_latest_turn():
    it = one()
    it.receive("n01", told(9, "n01", before=("n02",), yours=False), 1.0)
    (answer,), _ = it.receive("n03", told(2, "n03"), 1.0)
    assert (answer.peer, answer.message.turn, answer.message.yours) == ("n03", 9, False)
    assert {each.peer for each in answer.message.claims} == {"n01", "n02"}
    (answer,), _ = it.receive("n04", Wake(0, yours=False, claims=()), 1.0)
    assert answer.message.turn == 9, "and who asks"


def test_signatures_of_strangers_do_not_count():
    it = one()
    it.receive("n01", told(9, "n01", "stranger"), 1.0)
    assert it.known < 0


def test_only_verified_claims_of_members_are_passed_on():
    it = one()
    right = told(9, "n01", "stranger", before=("n02",), yours=False)
    assert {each.peer for each in it.receive("n01", right, 1.0)[1]} == {"n01", "n02"}
    forged = Wake(2, yours=False, claims=(Claim("n02", 1, 2, bytes(32), bytes(64)),))
    assert not it.receive("n03", forged, 1.0)[1], "nobody verifies claims of a turn that is over"
    earlier = told(8, "n01", before=("n02",), yours=False)
    assert it.receive("n01", earlier, 1.0)[1] == earlier.claims, "they came late, and are right"


@pytest.mark.parametrize(
    ("wake", "reason"),
    [
        (told(40, "n01"), "wrong_round"),
        (Wake(6, yours=True, claims=(claim("n01", 4),)), "wrong_claim"),
        (Wake(6, yours=True, claims=(claim("n01", 6), claim("n01", 6))), "wrong_claim"),
        (Wake(6, yours=True, claims=(Claim("n02", 1, 6, bytes(32), bytes(64)),)), "bad_signature"),
    ],
)
def test_impossible_messages_are_faults_and_change_nothing(wake, reason):
    it = one()
    with pytest.raises(RemoteProtocolError, match=reason):
        it.receive("n01", wake, 1.0)
    it.receive("n03", told(min(wake.turn, it.sampling.turns - 1), "n03"), 2.0)
    assert it.known < 0, "one member says so"


def test_a_resting_member_only_installs_the_last_model():
    it = one("n00")
    it.resting = True
    for peer in ("n01", "n02", "n03", "n04"):
        it.receive(peer, told(6, peer), 1.0)
    assert it.due(100.0) is None
    it.receive("n01", told(39, "n01", before=("n02",)), 101.0)
    assert it.due(101.0).last


def test_after_two_failed_vectors_other_members_are_used():
    it = one()
    for peer in ("n01", "n02", "n03", "n04"):
        it.receive(peer, told(6, peer), 1.0)
    due = it.due(1.0)
    it.take_on(due, 1.0)
    it.give_up(due, ("n01", "n02"), 2.0)
    assert it.due(2.5) is None
    it.receive("n06", told(6, "n06"), 3.0)
    assert it.due(3.0 + MAX_S).sources == ("n03", "n04", "n06")


def test_a_member_that_was_waited_for_in_vain_more_often_than_in_one_of_nine_turns_is_not_waited_for():
    """It tells others of its turns when they have gone on: each time enough have published, and the rest is itself alone."""
    it = one(sampling=Sampling(4, 3, 0.6, 1, 1000, aggregates=3))
    turn, now = 5, 0.0

    def begins(*, in_time=False):
        """Two of three aggregators publish, and the third in time or after this node has gone on -> whether the third was waited for."""
        nonlocal turn, now
        turn, now = turn + 2, now + 10.0
        it.receive("n02", told(turn, "n02", before=("n04",)), now)
        if in_time:
            it.receive("n00", told(turn, "n00", yours=False), now)
        it.receive("n01", told(turn, "n01"), now)
        waits = it.due(now) is None
        due = it.due(now + MIN_S + 0.01)
        assert (due.turn, len(due.sources)) == (turn + 1, 3 if in_time else 2)
        it.take_on(due, now + MIN_S)
        if not in_time:
            it.receive("n00", told(turn, "n00", yours=False), now + MIN_S)
        return waits

    assert [begins() for _ in range(6)] == [True] * IN_VAIN + [False] * (6 - IN_VAIN)
    assert not any(begins(in_time=True) for _ in range(round(1 / FORGIVEN)))
    assert [begins(), begins()] == [True, False], "eight turns in time forgive one"
    it.forget("n00")
    assert begins(), "it may come back"


def let_down(*trained):
    """Return a machine that was woken for turn 8 by an aggregator whose vector it could not fetch by 2.0."""
    it = one()
    for peer in trained or ("n02", "n03", "n04"):
        it.receive(peer, told(6, peer, yours=False), 1.0)
    it.receive("n00", told(7, "n00", before=("n02",)), 1.0)
    due = it.due(1.0 + MAX_S)
    assert (due.turn, due.sources) == (8, ("n00",))
    it.take_on(due, 1.0)
    it.withheld(["n00"])
    it.give_up(due, ("n00",), 2.0)
    return it


def test_an_averaging_of_which_nothing_can_be_fetched_is_done_by_who_was_to_go_on_from_it():
    it = let_down()
    due = it.due(2.0)
    assert (due.turn, due.sources) == (7, ("n02", "n03", "n04"))
    it.take_on(due, 2.0)
    it.publish(claim("n05", 7), due.sources, 3.0)
    assert it.due(3.0).sources == ("n05",), "it goes on from its own"
    other = let_down()
    other.receive("n01", told(7, "n01"), 2.0)
    due = other.due(2.0 + MAX_S)
    assert (due.turn, due.sources) == (8, ("n01",)), "the other aggregator delivers"
    few = let_down("n02", "n03")
    assert few.due(0.9 + 2.0 * MAX_S) is None
    assert few.due_at == pytest.approx(1.0 + 2.0 * MAX_S), "others may have published as well"
    due = few.due(1.0 + 2.0 * MAX_S)
    assert (due.turn, due.sources) == (7, ("n02", "n03"))


def called(it, turn):
    """Let the machine do a step; return the members that it wakes for the next."""
    it.take_on(Due(turn, ()), 4.0)
    return [message.peer for message in it.publish(claim("n05", turn), (), 4.0) if message.message.yours]


@pytest.mark.parametrize("delivers", [False, True])
@pytest.mark.parametrize("turns", [DEMOTED, 2 * DEMOTED])
def test_a_member_that_does_not_deliver_what_it_signed_is_woken_last_for_a_while(turns, delivers):
    it = let_down()
    for _ in range(turns // DEMOTED - 1):
        if delivers:
            it.delivered(["n00"])
        it.take_on(Due(8, ("n00",)), 1.0)
        it.withheld(["n00"])
        it.give_up(Due(8, ("n00",)), ("n00",), 2.0)
    assert called(it, 9) == ["n01", "n02", "n03", "n04"], "and this node, of twelve in this order"
    assert called(it, 6 + turns) == ["n01", "n02"]
    assert called(it, 8 + turns) == ["n00", "n01"]


def test_a_member_that_delivers_again_is_woken_again():
    it = let_down()
    it.delivered(["n00"])
    assert "n00" in called(it, 9)


def test_a_member_whose_vector_is_not_there_any_more_keeps_its_place():
    it = one()
    it.receive("n00", told(7, "n00", before=("n02",)), 1.0)
    due = it.due(1.0)
    it.take_on(due, 1.0)
    it.give_up(due, ("n00",), 1.1)
    assert it.due(1.1) is None
    assert "n00" in called(it, 9)


@pytest.mark.parametrize(("values", "word"), [((1, 1, 0.6, 0), "sample"), ((4, 1, 0.5, 0), "success")])
def test_errors_about_values_out_of_bounds_name_the_key(values, word):
    with pytest.raises(ValueError, match=word):
        Sampling(*values)


def test_a_member_that_averages_alone_and_wakes_nobody_costs_few_rounds():
    """Found by the adversarial search: each time, the others had its word that the turn was done, and slept for twelve `max_wait_s`."""

    def rounds(*liars):
        class Swarm(SampledSwarm):
            def send(self, me, messages):
                if me in liars:
                    wakes = [structs.replace(it.message, yours=False) for it in messages]
                    messages = [SendMessage(peer, wake) for wake in dict.fromkeys(wakes) for peer in self.names if peer != me]
                super().send(me, messages)

        swarm = Swarm(Sampling(4, 1, 0.6, 1, 1000), 6, seed=0)
        swarm.run(60.0)
        return max(turn for _, name, turn in swarm.done if name not in liars) // 2

    assert rounds("n00") >= 0.8 * rounds(), "37 and 40; 10 before"


@pytest.mark.parametrize("seed", range(3))
def test_a_swarm_continues_after_all_members_restarted(seed):
    swarm = SampledSwarm(Sampling(4, 2, 0.6, 1, 8), 10, seed)
    for name in swarm.names:
        turn = 2 * swarm.rng.randint(2, 4) - 1  # the average of the round before the checkpoint

        def resume(name=name, turn=turn):
            swarm.send(name, swarm.nodes[name].publish(claim(name, turn), (), swarm.now))

        swarm.at(0.01, resume)
    swarm.run(300.0)
    assert swarm.finished == swarm.alive
    assert min(turn for _, _, turn in swarm.done) >= 4, "no round is done again that most had behind them"
