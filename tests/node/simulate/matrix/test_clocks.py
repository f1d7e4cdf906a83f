"""Virtual time of simulated rounds: what waits for what, and for how long."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.exchange.timeouts import Deadline
from starling.gossip.overlay.sticky import Sticky
from starling.node.simulate.matrix.clocks import Clocks, Pace
from starling.node.simulate.matrix.round_stats import Done
from starling.node.simulate.matrix.schedule import Meetings, Schedule
from starling.node.simulate.matrix.timeouts import Patience
from tests.strategies import examples


@given(
    outcomes=st.lists(
        st.tuples(st.integers(0, 2), st.one_of(st.floats(0.0, 60.0), st.none())), min_size=0, max_size=150
    )
)
@examples(60)
def test_patience_is_that_of_each_nodes_own_deadline(outcomes):
    """The same numbers whichever way they are kept, timeouts and forgetting included; several at once come in their order."""
    deadlines = [Deadline(0.5, 30.0) for _ in range(3)]
    patience = Patience(3, Deadline(0.5, 30.0))
    for start in range(0, len(outcomes), 4):
        some = outcomes[start : start + 4]
        for row, wait in some:
            deadlines[row].observe_timeout() if wait is None else deadlines[row].observe(wait)
        patience.observe(
            np.array([row for row, _ in some], np.int64), np.array([np.nan if w is None else w for _, w in some])
        )
        assert patience.wait_s().tolist() == [deadline.wait_s() for deadline in deadlines]
    patience.forget(1)
    assert patience.wait_s()[1] == 30.0


def clocks(step_s, latency_s=0.0, up=np.inf, down=np.inf, **more):
    n = len(step_s)
    full = [np.full(n, value) if np.isscalar(value) else np.asarray(value, float) for value in (latency_s, up, down)]
    return Clocks(Pace(np.asarray(step_s, float), *full), **more)


def meet(*pairs):
    one, other = np.array(pairs, np.int64).reshape(-1, 2).T
    return Meetings(one.copy(), other.copy(), np.full(len(pairs), 0.5), np.full(len(pairs), 0.5))


def done(meetings, request=1000, response=250, lost=(), unproven=()):
    m = len(meetings)
    committed = np.array([place not in lost for place in range(m)])
    return Done(
        committed, np.array([place in unproven for place in range(m)]), meetings.one, meetings.other,
        np.full(m, request), np.where(committed, response, 0),
    )  # fmt: skip


def everybody(n):
    return np.ones(n, bool)


def test_a_pair_begins_when_both_are_ready_and_takes_its_transfers():
    """Steps 1 s and 3 s; request 1 kB at .5 kB/s, response .25 kB at 1 kB/s, .1 s of latency each way and for the proof."""
    made = clocks([0.1, 0.3], latency_s=0.1, up=[500.0, 1000.0], down=[2000.0, 4000.0], frame_bytes=0)
    met = meet((0, 1))
    steps, late = made.begin(10, everybody(2), met)
    assert steps.tolist() == [10, 10]
    assert not late.any()
    made.end(met, done(met))
    assert made.now_s == pytest.approx([3.0 + 0.1 + 2.0 + 0.1 + 0.25, 3.0 + 0.1 + 2.0 + 0.1 + 0.25 + 0.1])
    assert made.up_bytes.tolist() == [1000, 250]
    assert made.down_bytes.tolist() == [250, 1000]


def test_links_share_a_nodes_rate_and_the_slowest_exchange_ends_the_round():
    made = clocks([0.0, 0.0, 0.0], up=100.0, down=[100.0, 1e9, 1e9], frame_bytes=0)
    met = meet((0, 1), (0, 2))
    made.begin(1, everybody(3), met)
    made.end(met, done(met, request=100, response=0))
    assert made.now_s == pytest.approx([2.0, 2.0, 2.0])


def test_who_meets_nobody_waits_for_nobody():
    made = clocks([0.1, 0.2, 0.3])
    met = meet((0, 1))
    made.begin(10, everybody(3), met)
    made.end(met, done(met))
    assert made.now_s == pytest.approx([2.0, 2.0, 3.0])


def test_a_lost_exchange_costs_both_ends_their_patience_and_a_lost_proof_the_responder():
    made = clocks([0.1, 0.1, 0.1, 0.1], max_wait_s=5.0)
    met = meet((0, 1), (2, 3))
    made.begin(10, everybody(4), met)
    made.end(met, done(met, lost=(0,), unproven=(1,)))
    full = 1.0 + 5.0 + 2.0  # its steps, the longest wait, as nothing is learned yet, and two rounds of its own steps
    assert made.now_s == pytest.approx([full, full, 1.0, full])


def story(step_s, rounds, **more):
    made, schedule = (
        clocks(step_s, latency_s=0.02, **more),
        Schedule(Sticky(1), [str(k) for k in range(len(step_s))], b""),
    )
    steps, late = [], []
    for number in range(rounds):
        met = schedule.at(number, everybody(len(step_s)))
        does, missed = made.begin(20, everybody(len(step_s)), met)
        made.end(met, done(met, lost=np.flatnonzero(missed)))
        steps.append(does)
        late.append([missed[(met.one == row) | (met.other == row)].any() for row in range(len(step_s))])
    return made, np.array(steps), np.array(late)


def test_a_straggler_neither_stops_the_others_nor_is_left_to_itself():
    """Five times slower: the others wait at worst a deadline and one round of their own for it; it does fewer local steps, and is met."""
    fair, _, never = story([0.1] * 8, 60)
    slow, steps, late = story([0.1] * 7 + [0.5], 60)
    assert not never.any()
    assert slow.now_s[:7].max() < 3.0 * fair.now_s.max()
    assert late[:20, 7].any()
    assert not late[-20:, 7].all()
    assert steps[:, :7].mean() > 19.0
    assert 0.0 < steps[-20:, 7].mean() < 10.0


def test_a_node_a_little_slower_is_waited_for():
    _, steps, late = story([0.1] * 7 + [0.15], 40)
    assert not late.any()
    assert (steps == 20).all()


def test_rounds_without_local_steps_take_the_time_of_their_messages():
    made = clocks([1.0, 1.0], latency_s=0.5)
    met = meet((0, 1))
    assert made.begin(0, everybody(2), met)[0].tolist() == [0, 0]
    made.end(met, done(met))
    assert made.now_s == pytest.approx([1.0, 1.5])


def test_the_dead_stand_still_and_who_joins_begins_where_its_source_is():
    made = clocks([0.1, 0.1, 0.1])
    met, alive = meet((0, 1)), np.array([True, True, False])
    assert made.begin(10, alive, met)[0].tolist() == [10, 10, 0]
    made.end(met, done(met))
    made.joined(2, 0)
    assert made.now_s == pytest.approx([1.0, 1.0, 1.0])
    assert made.up_bytes[2] == 0
