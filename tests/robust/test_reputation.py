"""Fault scores and contributions: decay, thresholds, bans that end, the owner's word, and a bounded memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starling.robust.reputation import (
    ACTIVE,
    EARNED,
    HARD,
    INVITER_SHARE,
    LATE_COSTS,
    MOST,
    OK,
    PROOF,
    SOFT,
    WEIGHTS,
    Decision,
    Reputation,
)

faults = st.lists(st.tuples(st.floats(0, 400), st.sampled_from(["late", "not_finite"])), max_size=40)


@given(faults=faults, silence=st.floats(0, 10_000), more=st.floats(0, 10_000))
@settings(max_examples=60)
def test_silence_never_raises_a_score_nor_worsens_a_verdict(faults, silence, more):
    """Peers that say nothing cost nothing: only faults count."""
    reputation, now = Reputation(), 0.0
    for wait, reason in faults:
        now += wait
        reputation.fault("p", reason, now)
    early, late = now + silence, now + silence + more
    assert reputation.score("p", late) <= reputation.score("p", early)
    order = ("ok", "quarantine", "ban")
    assert order.index(reputation.verdict("p", late).state) <= order.index(reputation.verdict("p", early).state)


@given(faults=faults)
@settings(max_examples=60)
def test_the_score_is_the_sum_of_the_halving_weights(faults):
    """The closed form Σ w·2^(−age/half-life), as long as no ban wipes it."""
    reputation, now, events = Reputation(half_life_s=50.0, quarantine=1e6, ban=1e6), 0.0, []
    for wait, reason in faults:
        now += wait
        events.append((now, WEIGHTS.get(reason, HARD)))
        reputation.fault("p", reason, now)
    expected = sum(weight * 0.5 ** ((now - at) / 50.0) for at, weight in events)
    assert reputation.score("p", now) == pytest.approx(expected)


def test_one_hard_fault_is_forgiven_two_are_quarantined_four_are_banned():
    """One bad frame may be a broken cable; a series is not."""
    reputation = Reputation()
    states = [reputation.fault("p", "frame_not_msgpack", float(second)).state for second in range(4)]
    assert states == ["ok", "quarantine", "quarantine", "ban"]


def test_a_peer_that_is_late_once_a_minute_stays_for_ever():
    """An honest volunteer on a slow line must never be driven out by soft faults."""
    reputation = Reputation()
    assert all(reputation.fault("p", "late", 60.0 * minute) == OK for minute in range(10_000))
    assert reputation.faults("p") == 10_000


def test_quarantines_and_bans_end_and_bans_grow():
    """Everybody gets another chance; who abuses it waits twice as long."""
    reputation = Reputation(ban=20.0, quarantine=15.0, ban_s=100.0)

    def offend(now: float) -> float:
        reputation.fault("p", "not_finite", now)
        verdict = reputation.fault("p", "not_finite", now)
        assert verdict.state == "ban"
        return verdict.until - now

    assert offend(0.0) == 100.0
    assert reputation.verdict("p", 99.0).state == "ban"
    assert reputation.verdict("p", 100.0) == OK
    assert reputation.score("p", 100.0) == 0.0
    assert offend(1000.0) == 200.0
    assert offend(2000.0) == 400.0


def test_what_arrives_during_a_ban_changes_nothing():
    """Frames sent before the ban are still under way: they must not lengthen it."""
    reputation = Reputation(quarantine=5.0, ban=10.0)
    ban = reputation.fault("p", "not_finite", 0.0)
    assert [reputation.fault("p", "not_finite", 1.0) for _ in range(10)] == [ban] * 10


def test_a_soft_fault_does_not_shorten_a_quarantine():
    """An end once given is never moved to an earlier time, even if the clock is."""
    reputation = Reputation()
    reputation.fault("p", "not_finite", 100.0)
    until = reputation.fault("p", "not_finite", 100.0).until
    assert reputation.fault("p", "late", 50.0).until == until


def test_peers_do_not_pay_for_each_other():
    """A score belongs to one id."""
    reputation = Reputation()
    for _ in range(9):
        reputation.fault("bad", "not_finite", 0.0)
    assert reputation.verdict("good", 0.0) == OK
    assert reputation.score("good", 0.0) == 0.0


def test_a_flood_of_new_ids_does_not_wash_out_a_ban():
    """Memory is bounded, and what is forgotten is the cleanest, so an attacker cannot buy oblivion with fresh ids."""
    reputation = Reputation(remembered=50)
    for _ in range(4):
        reputation.fault("liar", "not_finite", 0.0)
    for i in range(500):
        reputation.fault(f"sybil{i}", "late", 1.0 + i)
        assert len(reputation) <= 50
    assert reputation.verdict("liar", 501.0).state == "ban"


def test_soft_weighs_less_than_hard_and_unknown_words_are_hard():
    """A new reason in the code must not be free of charge because this table was forgotten."""
    reputation = Reputation()
    reputation.fault("p", "a_reason_nobody_listed", 0.0)
    assert reputation.score("p", 0.0) == HARD > SOFT
    assert set(WEIGHTS.values()) == {SOFT, PROOF}


@pytest.mark.parametrize("wrong", [{"quarantine": 50.0}, {"half_life_s": 0.0}, {"remembered": 0}, {"quarantine": 0.0}])
def test_senseless_parameters_are_refused(wrong):
    """Thresholds out of order would ban before they warn."""
    with pytest.raises(ValueError, match=r"need|must"):
        Reputation(**wrong)


# --- contribution, states ---------------------------------------------------------------------------------------

RANK = ("ban", "quarantine", "probation", "active")


@st.composite
def histories(draw):
    """What may happen to three peers, in any order, and how long nothing happens in between."""
    happen = st.sampled_from(
        ["late", "not_finite", "equivocation", "exchanged", "clipped", "missed", "invited", "banned", "trusted", "forgiven"]
    )  # fmt: skip
    step = st.tuples(st.floats(0, 400), st.sampled_from("abc"), happen)
    return draw(st.lists(step, max_size=40))


def lived(history, **changes) -> tuple[Reputation, float]:
    reputation, now = Reputation(turns=3, **changes), 0.0
    for wait, peer, event in history:
        now += wait
        match event:
            case "exchanged" | "clipped":
                reputation.exchanged(peer, now, clipped=event == "clipped")
            case "missed":
                reputation.missed(peer, now)
            case "invited":
                reputation.invited(peer, "not_finite", now)
            case "banned":
                reputation.shut_out(peer, now, now + 100.0)
            case "trusted":
                reputation.trust(peer, now)
            case "forgiven":
                reputation.forgive(peer)
            case reason:
                reputation.fault(peer, reason, now)
    return reputation, now


@given(history=histories(), silence=st.floats(0, 10_000), more=st.floats(0, 10_000))
@settings(max_examples=150)
def test_nothing_rises_by_saying_nothing_whatever_happened_before(history, silence, more):
    """Neither number grows in silence, so neither blame nor trust can be had by waiting; and whoever sits out a quarantine or ban is
    on probation, never active."""
    reputation, now = lived(history)
    for peer in "abc":
        first = reputation.standing(peer, now)
        early, late = (reputation.standing(peer, now + wait) for wait in (silence, silence + more))
        assert late.score <= early.score <= first.score
        assert late.contribution <= early.contribution <= first.contribution
        assert (late.staleness, late.clipped) == (early.staleness, early.clipped)
        assert RANK.index(late.state) <= max(RANK.index(early.state), RANK.index("probation"))


@given(history=histories())
@settings(max_examples=60)
def test_numbers_stay_in_their_bounds_and_a_fault_never_helps(history):
    """A penalty with the wrong sign would make every offence a reward."""
    reputation, now = lived(history)
    for peer in "abc":
        before = reputation.standing(peer, now)
        assert before.score >= 0.0
        assert 0.0 <= before.contribution <= MOST
        assert before.staleness is None or 0.0 <= before.staleness <= 1.0
        assert before.clipped is None or 0.0 <= before.clipped <= 1.0
        reputation.fault(peer, "not_finite", now)
        after = reputation.standing(peer, now)
        assert after.contribution <= before.contribution
        assert RANK.index(after.state) <= RANK.index(before.state)
        assert after.score >= before.score or after.state == "ban"


def test_a_peer_becomes_active_by_exchanges_and_only_by_them():
    """New means: nothing known that speaks for it, however long it has been there."""
    reputation = Reputation()
    assert reputation.standing("p", 1e9).state == "probation"
    for turn in range(20):
        assert reputation.standing("p", float(turn)).state == "probation"
        reputation.exchanged("p", float(turn))
    assert reputation.standing("p", 20.0).state == "active"
    assert reputation.standing("p", 20.0).contribution == pytest.approx(20 * EARNED, rel=0.01)
    assert 20 * EARNED > ACTIVE
    assert reputation.standing("p", 20.0 + 10 * 3600).state == "probation"  # nobody lives on old merits


def test_a_sleepers_good_past_is_spent_by_two_hard_faults():
    """Ten thousand good exchanges buy no more than a hundred: who turns bad late is out a few faults later than who begins bad."""
    reputation, now = Reputation(), 0.0
    for _ in range(10_000):
        now += 1.0
        reputation.exchanged("sleeper", now)
    assert reputation.standing("sleeper", now).contribution == pytest.approx(MOST, rel=0.01)
    states = [reputation.fault("sleeper", "not_finite", now).state for _ in range(6)]
    assert states == ["ok", "ok", "ok", "quarantine", "quarantine", "ban"]
    assert reputation.standing("sleeper", now + 1e6).state == "probation"


def test_proof_bans_at_once_even_the_best():
    """No past pays for a proven lie."""
    reputation = Reputation()
    for turn in range(1000):
        reputation.exchanged("p", float(turn))
    assert reputation.fault("p", "equivocation", 1000.0).state == "ban"
    assert reputation.standing("p", 1000.0).why == "equivocation"


def test_who_is_always_late_is_never_shut_out_but_never_active():
    """A slow line is no crime."""
    reputation = Reputation()
    for turn in range(5000):
        reputation.missed("slow", float(turn))
        reputation.exchanged("half", float(turn))
        reputation.missed("half", float(turn))
    for peer, share in (("slow", 1.0), ("half", 0.5)):
        standing = reputation.standing(peer, 5000.0)
        assert (standing.state, standing.score, standing.contribution) == ("probation", 0.0, 0.0)
        assert standing.staleness == pytest.approx(share, abs=0.05)
    assert LATE_COSTS > EARNED


@given(clipped=st.lists(st.booleans(), min_size=1, max_size=200))
@settings(max_examples=40)
def test_distance_alone_is_never_blamed(clipped):
    """Honest minorities are far from the others for as long as they live."""
    reputation = Reputation()
    for turn, far in enumerate(clipped):
        for other in ("b", "c", "d", "e"):
            reputation.exchanged(other, float(turn))
        reputation.exchanged("far", float(turn), clipped=far)
    assert reputation.standing("far", float(len(clipped))).score == 0.0
    assert reputation.verdict("far", float(len(clipped))) == OK


def test_being_clipped_counts_only_where_others_are_not():
    """Early in training, or with a tight threshold, everybody is clipped: that says nothing of anybody."""
    for others, earns in ((True, True), (False, False)):
        reputation = Reputation()
        for turn in range(100):
            for other in ("b", "c", "d"):
                reputation.exchanged(other, float(turn), clipped=others)
            reputation.exchanged("a", float(turn), clipped=True)
        assert (reputation.standing("a", 100.0).state == "active") == earns
        assert reputation.standing("a", 100.0).clipped == pytest.approx(1.0, abs=0.01)


def test_an_inviter_bears_a_quarter_of_what_its_invitees_do():
    """Whoever lets strangers in answers for them: a proven liar costs its inviter a quarantine, two of them a ban."""
    reputation = Reputation()
    reputation.invited("host", "not_finite", 0.0)
    assert reputation.score("host", 0.0) == INVITER_SHARE * HARD
    reputation = Reputation()
    assert reputation.invited("host", "equivocation", 0.0).state == "quarantine"
    assert reputation.invited("host", "equivocation", 0.0).state == "ban"


# --- the owner's word -------------------------------------------------------------------------------------------


def test_whom_the_owner_trusts_is_never_shut_out():
    """It is counted all the same, so that the owner can see what it trusts."""
    reputation = Reputation()
    reputation.fault("p", "equivocation", 0.0)
    reputation.trust("p", 1.0)
    assert reputation.verdict("p", 1.0) == OK
    for second in range(100):
        assert reputation.fault("p", "equivocation", 2.0 + second) == OK
    assert reputation.score("p", 102.0) > 0.0
    assert reputation.standing("p", 102.0).trusted


def test_a_ban_by_hand_holds_as_long_as_was_said_and_can_be_taken_back():
    reputation = Reputation()
    reputation.trust("p", 0.0)
    assert reputation.shut_out("p", 0.0, 50.0, "spam").until == 50.0
    assert not reputation.standing("p", 0.0).trusted
    assert reputation.standing("p", 49.0).why == "spam"
    assert reputation.verdict("p", 50.0) == OK
    reputation.shut_out("p", 60.0)
    assert reputation.verdict("p", 1e12).state == "ban"
    assert reputation.forgive("p")
    assert reputation.verdict("p", 61.0) == OK
    assert not reputation.forgive("p")
    assert not reputation.forgive("nobody")


@given(history=histories())
@settings(max_examples=60)
def test_decisions_survive_a_restart(history):
    """What is kept says all that a next run must know: who is out until when, and whom the owner trusts."""
    reputation, now = lived(history)
    kept = reputation.decisions(now)
    again = Reputation(turns=3)
    again.resume(kept, now)
    for peer in "abc":
        before, after = reputation.standing(peer, now), again.standing(peer, now)
        assert (after.state == "ban") == (before.state == "ban")
        assert after.trusted == before.trusted
        if before.state == "ban":
            assert (after.until, after.why) == (before.until, before.why)
    assert again.decisions(now) == kept


def test_bans_double_over_a_restart_too():
    """Else a liar would only have to wait until its victims restart."""
    again = Reputation(ban_s=100.0)
    again.resume([Decision("p", "ban", 10.0, 3, "x")], 0.0)
    assert again.fault("p", "equivocation", 20.0).until == 20.0 + 800.0


def test_a_flood_of_new_ids_washes_out_neither_trust_nor_merit():
    """What is forgotten first is whom there is least to say of."""
    reputation = Reputation(remembered=50)
    reputation.trust("friend", 0.0)
    for turn in range(50):
        reputation.exchanged("worker", float(turn))
    for i in range(500):
        reputation.fault(f"sybil{i}", "late", 50.0 + i)
    assert len(reputation) == 50
    assert reputation.standing("friend", 550.0).trusted
    assert reputation.standing("worker", 550.0).state == "active"
