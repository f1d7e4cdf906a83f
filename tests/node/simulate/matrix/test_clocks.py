"""Virtual time of simulated rounds: which events wait for which, and for how long."""

import numpy as np
import pytest

from starling.gossip.overlay.sticky import Sticky
from starling.node.simulate.matrix.batch import RoundStats
from starling.node.simulate.matrix.clocks import Clocks
from starling.node.simulate.matrix.schedule import Exchanges, Schedule


def clocks(step_s, bytes_per_s=np.inf, **more):
    return Clocks(np.asarray(step_s, float), np.broadcast_to(np.asarray(bytes_per_s, float), len(step_s)), **more)


def meet(*pairs):
    return Exchanges(np.array(pairs, np.int64).reshape(-1, 2).T, np.full((2, len(pairs)), 0.5))


def stats(exchanges, request=1000, response=250, lost=(), unproven=()):
    m = len(exchanges)
    committed = ~np.isin(np.arange(m), lost)
    sizes = np.stack((np.full(m, request), np.where(committed, response, 0)))
    return RoundStats(committed, np.isin(np.arange(m), unproven), exchanges.ends, sizes)


def all_alive(n):
    return np.ones(n, bool)


def test_a_pair_begins_when_both_are_ready_and_takes_its_transfers():
    """Steps 1 s and 3 s; request 1 kB and response .25 kB at .5 kB/s, .1 s of latency each way and for the proof."""
    made = clocks([0.1, 0.3], [500.0, 1000.0], latency_s=0.1, frame_bytes=0)
    met = meet((0, 1))
    steps, late = made.begin(10, all_alive(2), met)
    assert steps.tolist() == [10, 10]
    assert not late.any()
    made.end(met, stats(met))
    assert made.now_s == pytest.approx([3.0 + 0.1 + 2.0 + 0.1 + 0.5, 3.0 + 0.1 + 2.0 + 0.1 + 0.5 + 0.1])
    assert made.sent_bytes.tolist() == [1000, 250]


def test_links_share_a_nodes_rate_and_the_slowest_exchange_ends_the_round():
    made = clocks([0.0, 0.0, 0.0], [100.0, 1e9, 1e9], frame_bytes=0)
    met = meet((0, 1), (0, 2))
    made.begin(1, all_alive(3), met)
    made.end(met, stats(met, request=100, response=0))
    assert made.now_s == pytest.approx([2.0, 2.0, 2.0])


def test_a_node_without_exchanges_does_not_wait():
    made = clocks([0.1, 0.2, 0.3])
    met = meet((0, 1))
    made.begin(10, all_alive(3), met)
    made.end(met, stats(met))
    assert made.now_s == pytest.approx([2.0, 2.0, 3.0])


@pytest.mark.parametrize("met_between", [True, False])
def test_a_row_without_exchanges_for_some_rounds_waits_longer_at_the_next(met_between):
    made = clocks([0.1, 0.1, 0.1], max_wait_s=5.0)
    for pair in [(0, 1), (0, 1), (0, 2) if met_between else (0, 1), (1, 2)]:
        made.begin(10, all_alive(3), meet(pair))
        made.end(meet(pair), stats(meet(pair), lost=(0,) if pair == (1, 2) else ()))
    once = 4.0 + 5.0 + 2.0  # its steps, the longest wait, and two rounds of steps
    assert made.now_s[2] == pytest.approx(once if met_between else once + 3 * 2.0)


def test_a_lost_exchange_costs_both_ends_their_deadline_and_a_lost_proof_the_responder():
    made = clocks([0.1, 0.1, 0.1, 0.1], max_wait_s=5.0)
    met = meet((0, 1), (2, 3))
    made.begin(10, all_alive(4), met)
    made.end(met, stats(met, lost=(0,), unproven=(1,)))
    full = 1.0 + 5.0 + 2.0  # its steps, the longest wait, as no duration is known yet, and two rounds of its own steps
    assert made.now_s == pytest.approx([full, full, 1.0, full])


def story(step_s, rounds, **more):
    made, schedule = (clocks(step_s, latency_s=0.02, **more), Schedule(Sticky(1), [str(k) for k in range(len(step_s))], b""))
    steps, late = [], []
    for number in range(rounds):
        met = schedule.at(number, all_alive(len(step_s)))
        does, missed = made.begin(20, all_alive(len(step_s)), met)
        made.end(met, stats(met, lost=np.flatnonzero(missed)))
        steps.append(does)
        late.append([missed[(met.ends == row).any(axis=0)].any() for row in range(len(step_s))])
    return made, np.array(steps), np.array(late)


def test_a_straggler_neither_stops_the_others_nor_stays_without_exchanges():
    """It is five times slower: others wait at most a deadline and one round of their own; it does fewer local steps and still exchanges."""
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
    assert made.begin(0, all_alive(2), met)[0].tolist() == [0, 0]
    made.end(met, stats(met))
    assert made.now_s == pytest.approx([1.0, 1.5])


def test_dead_rows_stand_still_and_a_joiner_starts_at_its_source_s_time():
    made = clocks([0.1, 0.1, 0.1])
    met, alive = meet((0, 1)), np.array([True, True, False])
    assert made.begin(10, alive, met)[0].tolist() == [10, 10, 0]
    made.end(met, stats(met))
    made.joined(2, 0)
    assert made.now_s == pytest.approx([1.0, 1.0, 1.0])
    assert made.sent_bytes[2] == 0
