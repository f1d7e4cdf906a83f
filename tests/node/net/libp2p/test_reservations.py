"""The relays that a node asks: two at a time, renewed in time, with growing pauses after refusals."""

from hypothesis import given, settings
from hypothesis import strategies as st

from starling.node.net.libp2p.reservations import AGAIN_S, LEAST_S, MOST_AGAIN_S, MOST_S, RENEW_S, WANTED, Reservations

PEERS = ("a", "b", "c", "d", "e")


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["grant", "refuse", "lose", "wait"]), st.sampled_from(PEERS), st.floats(-1e9, 1e9)), max_size=40))
def test_reservations_and_requests_never_exceed_the_wanted_number(steps):
    core, now, asked = Reservations(), 0.0, set()
    for kind, peer, seconds in steps:
        fresh = core.ask(PEERS, now)
        assert not asked & set(fresh), "each is asked once at a time"
        asked |= set(fresh)
        assert len(set(core.held(now)) | asked) <= WANTED
        if kind == "grant" and peer in asked:
            core.granted(peer, seconds, now)
            asked.discard(peer)
            assert peer in core.held(now + LEAST_S / 2)
            assert peer not in core.held(now + MOST_S)
        elif kind == "refuse" and peer in asked:
            core.refused(peer, now)
            asked.discard(peer)
        elif kind == "lose":
            core.lost(peer)
        else:
            now += abs(seconds) % 100.0
    for peer in sorted(asked):
        core.refused(peer, now)
    assert len(core.ask(PEERS, now + MOST_AGAIN_S + MOST_S)) == WANTED


def test_a_reservation_is_renewed_at_half_of_its_time_and_lasts_while_the_relay_does_not_answer():
    core = Reservations()
    assert core.ask(("r",), 0.0) == ("r",)
    core.granted("r", 500.0, 0.0)
    assert core.ask(("r",), 249.0) == ()
    assert core.ask(("r",), 250.0) == ("r",)
    core.refused("r", 251.0)
    assert core.held(499.0) == ("r",)
    assert core.ask(("r",), 255.0) == ()
    assert core.ask(("r",), 251.0 + AGAIN_S) == ("r",)
    core.granted("r", 500.0, 262.0)
    assert core.held(700.0) == ("r",)


def test_a_long_reservation_is_renewed_often_as_a_relay_may_have_given_it_to_another():
    core = Reservations()
    core.ask(("r",), 0.0)
    core.granted("r", MOST_S, 0.0)
    assert core.ask(("r",), RENEW_S - 1.0) == ()
    assert core.ask(("r",), RENEW_S) == ("r",)


def test_a_refusing_relay_is_retried_after_growing_pauses():
    core, now, asked = Reservations(), 0.0, []
    while now < 200.0:
        if core.ask(("r",), now):
            asked.append(now)
            core.refused("r", now)
        now += 1.0
    assert asked == [0.0, AGAIN_S, 3 * AGAIN_S, 7 * AGAIN_S, 15 * AGAIN_S]


def test_a_lost_relay_is_replaced():
    core = Reservations()
    for relay in core.ask(("a", "b", "c"), 0.0):
        core.granted(relay, 1000.0, 0.0)
    assert core.held(1.0) == ("a", "b")
    core.lost("a")
    assert core.ask(("a", "b", "c"), 1.0) == ("a",), "it may be connected again"
    core.refused("a", 1.0)
    assert core.ask(("a", "b", "c"), 2.0) == ("c",)
