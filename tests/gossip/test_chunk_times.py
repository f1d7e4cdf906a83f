"""Silent peers in a fetch are detected by other peers' times, never by a peer's own claims."""

from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.chunk_times import LEAST_S, SLACK, SPREADS, ChunkTimes


def came(times: ChunkTimes, peer: str, took_s: float, at: float = 0.0) -> None:
    times.asked(peer, at)
    times.arrived(peer, took_s, at + took_s)


def test_a_peer_is_silent_while_it_owes_a_chunk_for_longer_than_others_take():
    times = ChunkTimes()
    came(times, "a", 1.0)
    came(times, "b", 1.0)
    bound_s = 1.0 + SPREADS * SLACK
    assert times.usual_s("c") == bound_s
    assert not times.is_silent("c", 99.0), "of whom nothing was asked"
    times.asked("c", 10.0)
    times.asked("c", 11.0)
    assert not times.is_silent("c", 10.0 + bound_s)
    assert times.is_silent("c", 10.1 + bound_s)
    times.arrived("c", 4.0, 14.0)
    assert not times.is_silent("c", 14.0 + bound_s), "it sends, and owes another"
    assert times.is_silent("c", 14.1 + bound_s)
    times.given_up("c", 14.0)
    assert not times.is_silent("c", 99.0)
    assert not times.let_down


def test_quick_peers_leave_the_others_a_few_seconds_and_slow_ones_what_they_take_themselves():
    times = ChunkTimes()
    came(times, "a", 0.01)
    assert times.usual_s() == LEAST_S
    assert times.usual_s("a") is None
    times.offered("b", 3.0)
    assert times.usual_s() == 3.0 * (1.0 + SPREADS * SLACK), "an engine in a long step answers as late"
    for each in "bcd":
        came(times, each, 8.0)
    assert times.usual_s("a") == 8.0 * (1.0 + SPREADS * SLACK)


def test_nobody_is_silent_for_long_while_no_other_has_sent_a_chunk():
    times = ChunkTimes(unknown_s=16.0)
    came(times, "a", 0.01)
    times.asked("a", 1.0)
    times.offered("b", 0.01)
    assert not times.is_silent("a", 17.0)
    assert times.is_silent("a", 17.1)


def test_who_was_silent_when_it_was_given_up_let_the_fetch_down_until_it_sends_something():
    times = ChunkTimes()
    came(times, "a", 0.01)
    for peer in ("b", "c", "late"):
        times.asked(peer, 0.0)
    times.given_up("b", LEAST_S)
    times.given_up("c", LEAST_S + 0.1)
    assert times.let_down == {"c"}
    times.end(LEAST_S + 0.2)
    assert times.let_down == {"c", "late"}
    assert times.delivered == {"a"}
    came(times, "late", 0.1, 10.0)
    assert (times.let_down, times.delivered) == ({"c"}, {"a", "late"})
    times.asked("late", 20.0)
    times.end(20.0 + 2 * LEAST_S)
    assert (times.let_down, times.delivered) == ({"c", "late"}, {"a"})
    assert not times.is_silent("late", 99.0), "nothing is waited for any more"


@given(st.lists(st.floats(0.0, 1e4), max_size=20), st.lists(st.floats(0.1, 5.0), min_size=3, max_size=6))
def test_one_peer_never_moves_its_own_bound_and_others_no_further_than_they_span(liars, honest):
    times, without = ChunkTimes(), ChunkTimes()
    for number, took_s in enumerate(honest):
        came(times, f"p{number}", took_s)
        came(without, f"p{number}", took_s)
    for took_s in liars:
        came(times, "liar", took_s)
    times.offered("liar", 0.0)
    assert times.usual_s("liar") == without.usual_s("liar")
    middle, spread = max(honest), max(honest)
    assert times.usual_s("p0") <= max(LEAST_S, middle + SPREADS * max(spread, SLACK * middle))
