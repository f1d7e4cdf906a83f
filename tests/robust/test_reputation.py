"""Fault scores and contributions: decay, thresholds, expiring bans, the owner's decisions, and bounded memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.robust.reputation import (
    ACTIVE,
    EARNED,
    GUEST_MOST,
    HARD,
    INVITER_SHARE,
    LATE_COSTS,
    MAX_GUESTS,
    MOST,
    OK,
    PROOF,
    SOFT,
    WEIGHTS,
    Decision,
    Reputation,
)
from tests.strategies import examples

RANK = ("ban", "quarantine", "probation", "active")
EVENTS = ("late", "not_finite", "equivocation", "exchanged", "clipped", "missed", "invited", "banned", "trusted", "forgiven")

histories = st.lists(st.tuples(st.floats(0, 400), st.sampled_from("abc"), st.sampled_from(EVENTS)), max_size=40)
"""Events of three peers, each after some seconds."""


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
                reputation.invited(peer, "guest", "not_finite", now)
            case "banned":
                reputation.shut_out(peer, now, now + 100.0)
            case "trusted":
                reputation.trust(peer, now)
            case "forgiven":
                reputation.forgive(peer)
            case reason:
                reputation.fault(peer, reason, now)
    return reputation, now


def faults(reputation, reason, *times):
    return [reputation.fault("p", reason, now).state for now in times]


def score(reputation, peer, now):
    return reputation.standing(peer, now).score


@given(events=st.lists(st.tuples(st.floats(0, 400), st.sampled_from(["late", "not_finite"])), max_size=40))
@examples(60)
def test_the_score_is_the_sum_of_the_halving_weights(events):
    """Σ w·2^(−age/half-life), as long as no ban resets it."""
    reputation, now, expected = Reputation(half_life_s=50.0, quarantine=1e6, ban=1e6), 0.0, 0.0
    for wait, reason in events:
        now += wait
        expected = expected * 0.5 ** (wait / 50.0) + WEIGHTS.get(reason, HARD)
        reputation.fault("p", reason, now)
    assert score(reputation, "p", now) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("record", "states"), [(0, ["ok", "quarantine", "quarantine", "ban"]), (10_000, ["ok", "ok", "ok", "quarantine", "quarantine", "ban"])]
)
def test_a_good_record_offsets_two_hard_faults_at_most(record, states):
    reputation = Reputation()
    for now in range(record):
        reputation.exchanged("p", float(now))
    assert reputation.standing("p", float(record)).contribution == pytest.approx(MOST if record else 0.0, rel=0.01)
    assert faults(reputation, "frame_not_msgpack", *[float(record)] * len(states)) == states
    assert reputation.standing("p", record + 1e6).state == "probation"


def test_a_peer_that_is_late_once_a_minute_is_never_banned():
    assert set(faults(Reputation(), "late", *(60.0 * minute for minute in range(10_000)))) == {"ok"}


def test_bans_expire_and_double_also_across_a_restart():
    reputation = Reputation(ban=20.0, quarantine=15.0, ban_s=100.0)
    for now, length in ((0.0, 100.0), (1000.0, 200.0), (2000.0, 400.0)):
        assert faults(reputation, "not_finite", now, now) == ["ok", "ban"]
        assert reputation.verdict("p", now).until == now + length
        assert reputation.verdict("p", now + length - 1.0).state == "ban"
        assert reputation.verdict("p", now + length) == OK
        assert score(reputation, "p", now + length) == 0.0
    again = Reputation(ban_s=100.0)
    again.resume([Decision("p", "ban", 10.0, 3, "x")], 0.0)
    assert again.fault("p", "equivocation", 20.0).until == 20.0 + 800.0


def test_faults_during_a_ban_and_a_clock_that_is_set_back_do_not_move_its_end():
    reputation = Reputation(quarantine=5.0, ban=10.0)
    ban = reputation.fault("p", "not_finite", 0.0)
    assert [reputation.fault("p", "not_finite", 1.0) for _ in range(10)] == [ban] * 10
    reputation = Reputation()
    faults(reputation, "not_finite", 100.0, 100.0)
    assert reputation.fault("p", "late", 50.0).until == reputation.verdict("p", 100.0).until


def test_unlisted_reasons_are_hard():
    reputation = Reputation()
    reputation.fault("p", "an_unlisted_reason", 0.0)
    assert score(reputation, "p", 0.0) == HARD > SOFT
    assert set(WEIGHTS.values()) == {SOFT, PROOF}


@pytest.mark.parametrize("wrong", [{"quarantine": 50.0}, {"half_life_s": 0.0}, {"remembered": 0}, {"quarantine": 0.0}])
def test_thresholds_out_of_order_and_empty_bounds_are_refused(wrong):
    with pytest.raises(ValueError, match=r"need|must"):
        Reputation(**wrong)


@given(history=histories, silence=st.floats(0, 10_000), more=st.floats(0, 10_000))
@examples(150)
def test_scores_never_rise_without_exchanges(history, silence, more):
    """Waiting earns neither blame nor trust, and after a quarantine or ban a peer is on probation, never active."""
    reputation, now = lived(history)
    for peer in "abc":
        first = reputation.standing(peer, now)
        early, late = (reputation.standing(peer, now + wait) for wait in (silence, silence + more))
        assert late.score <= early.score <= first.score
        assert late.contribution <= early.contribution <= first.contribution
        assert (late.staleness, late.clipped) == (early.staleness, early.clipped)
        assert RANK.index(late.state) <= max(RANK.index(early.state), RANK.index("probation"))
        order = ("ok", "quarantine", "ban")
        states = [reputation.verdict(peer, now + wait).state for wait in (silence, silence + more)]
        assert order.index(states[1]) <= order.index(states[0])


@given(history=histories)
@examples(60)
def test_scores_stay_within_bounds_and_a_fault_never_improves_them(history):
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


def test_a_peer_becomes_active_by_exchanges_and_only_for_a_while():
    reputation = Reputation()
    assert reputation.standing("p", 1e9).state == "probation"
    for turn in range(20):
        assert reputation.standing("p", float(turn)).state == "probation"
        reputation.exchanged("p", float(turn))
    assert reputation.standing("p", 20.0).state == "active"
    assert reputation.standing("p", 20.0).contribution == pytest.approx(20 * EARNED, rel=0.01)
    assert 20 * EARNED > ACTIVE
    assert reputation.standing("p", 20.0 + 10 * 3600).state == "probation"


def test_a_proof_bans_at_once_even_the_best_peer():
    reputation = Reputation()
    for turn in range(1000):
        reputation.exchanged("p", float(turn))
    assert faults(reputation, "equivocation", 1000.0) == ["ban"]
    assert reputation.standing("p", 1000.0).why == "equivocation"


def test_a_peer_that_is_always_late_is_never_banned_and_never_active():
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
@examples(40)
def test_distance_alone_is_never_blamed(clipped):
    reputation = Reputation()
    for turn, far in enumerate(clipped):
        for other in ("b", "c", "d", "e"):
            reputation.exchanged(other, float(turn))
        reputation.exchanged("far", float(turn), clipped=far)
    assert score(reputation, "far", float(len(clipped))) == 0.0
    assert reputation.verdict("far", float(len(clipped))) == OK


@pytest.mark.parametrize("others", [True, False])
def test_being_clipped_costs_contribution_only_where_others_are_not(others):
    reputation = Reputation()
    for turn in range(100):
        for other in ("b", "c", "d"):
            reputation.exchanged(other, float(turn), clipped=others)
        reputation.exchanged("a", float(turn), clipped=True)
    assert (reputation.standing("a", 100.0).state == "active") == others
    assert reputation.standing("a", 100.0).clipped == pytest.approx(1.0, abs=0.01)


def test_an_inviter_is_charged_a_quarter_of_the_faults_of_its_invitees():
    reputation = Reputation()
    reputation.invited("host", "guest", "not_finite", 0.0)
    assert score(reputation, "host", 0.0) == INVITER_SHARE * HARD


def test_one_bad_guest_does_not_ban_its_host_and_seven_do():
    reputation = Reputation()
    for second in range(100):
        assert reputation.invited("host", "guest", "equivocation", float(second)) == OK
    assert score(reputation, "host", 100.0) <= GUEST_MOST + 1e-9
    states = [reputation.invited("host", f"guest {n}", "equivocation", 100.0).state for n in range(7)]
    assert states == ["ok", "ok", "quarantine", "quarantine", "quarantine", "quarantine", "ban"]


def test_a_host_may_be_charged_again_as_the_guest_s_charge_decays():
    reputation = Reputation(half_life_s=50.0)
    reputation.invited("host", "guest", "equivocation", 0.0)
    reputation.invited("host", "guest", "equivocation", 50.0)
    assert score(reputation, "host", 50.0) == pytest.approx(GUEST_MOST)


def test_charges_are_stored_for_as_many_guests_as_allowed():
    reputation = Reputation()
    for guest in range(200):
        reputation.invited("host", str(guest), "late", float(guest))
    assert reputation.size == 1 + MAX_GUESTS


def test_trusted_peers_are_never_banned_and_still_counted():
    reputation = Reputation()
    faults(reputation, "equivocation", 0.0)
    reputation.trust("p", 1.0)
    assert reputation.verdict("p", 1.0) == OK
    assert set(faults(reputation, "equivocation", *(2.0 + second for second in range(100)))) == {"ok"}
    assert score(reputation, "p", 102.0) > 0.0
    assert reputation.standing("p", 102.0).trusted


def test_a_manual_ban_lasts_until_its_end_and_can_be_revoked():
    reputation = Reputation()
    reputation.trust("p", 0.0)
    assert reputation.shut_out("p", 0.0, 50.0, "spam").until == 50.0
    assert not reputation.standing("p", 0.0).trusted
    assert reputation.standing("p", 49.0).why == "spam"
    assert reputation.verdict("p", 50.0) == OK
    reputation.shut_out("p", 60.0)
    assert reputation.verdict("p", 1e12).state == "ban"
    assert [reputation.forgive(peer) for peer in ("p", "p", "unknown")] == [True, False, False]
    assert reputation.verdict("p", 61.0) == OK


@given(history=histories)
@examples(60)
def test_decisions_survive_a_restart(history):
    reputation, now = lived(history)
    decisions = reputation.decisions(now)
    again = Reputation(turns=3)
    again.resume(decisions, now)
    for peer in "abc":
        before, after = reputation.standing(peer, now), again.standing(peer, now)
        assert (after.state == "ban") == (before.state == "ban")
        assert after.trusted == before.trusted
        if before.state == "ban":
            assert (after.until, after.why) == (before.until, before.why)
    assert again.decisions(now) == decisions


def test_a_flood_of_new_ids_evicts_neither_bans_nor_trust_nor_contribution():
    reputation = Reputation(remembered=50)
    reputation.trust("friend", 0.0)
    for turn in range(50):
        reputation.exchanged("worker", float(turn))
    faults(reputation, "not_finite", *[0.0] * 4)
    for i in range(500):
        reputation.fault(f"sybil{i}", "late", 50.0 + i)
        assert reputation.size <= 50
    assert reputation.standing("friend", 550.0).trusted
    assert reputation.standing("worker", 550.0).state == "active"
    assert reputation.verdict("p", 550.0).state == "ban"
