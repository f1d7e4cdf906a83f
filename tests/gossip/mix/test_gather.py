"""Gathering: nodes request peers' vectors and combine them; the loop and the matrix agree, and liars and losses are distinguished."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from starling.gossip.api import Phase
from starling.gossip.compress.catalogue import quantizer
from starling.gossip.compress.select.coordinates import Everything
from starling.gossip.errors import BreakdownExceeded
from starling.gossip.mix.dsgd import Dsgd
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.gather import Gather
from starling.gossip.overlay.measure import matrix
from starling.gossip.overlay.one_peer import Hypercube
from starling.gossip.overlay.pull import Pull
from starling.gossip.overlay.ranks import ranked_at
from starling.gossip.overlay.static import Complete, Ring
from starling.node.simulate.matrix.faults import no_faults
from starling.node.simulate.matrix.schedule import Exchanges, Schedule
from starling.node.simulate.matrix.swarm import Swarm
from starling.robust.clip import clip
from tests.harness.reference import Reference, descent
from tests.harness.stub_rules import Counting, Mean, Wary

N, D, LR = 8, 70, 0.1
PEERS = tuple("gcafbedh")  # rows are not in the order of peer ids
LIAR, VICTIM = 3, 5


def exchange_codec(response, clip_norm=0.0):
    return ExchangeCodec(quantizer("fp16", torch.float32), quantizer(response, torch.float32), clip_norm, clip)


def gaussian(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def swarm(mixer=None, response="identity", **more):
    mixer = Gather(Mean()) if mixer is None else mixer
    everybody = torch.ones(N, dtype=torch.bool)
    return Swarm(PEERS, gaussian(1, N, D), mixer, exchange_codec(response), Everything(), 5, everybody, **more)


def meetings(overlay, number=0):
    return Schedule(overlay, PEERS, b"salt").at(number, np.ones(N, bool))


def neighbors(met, row):
    return set(met.ends[::-1][met.ends == row].tolist())


def links(met):
    return zip(*met.ends.tolist(), *met.weights.tolist(), strict=True)


def phase(number=0):
    return Phase(number, 1.0, LR)


class Liars:
    """An attack with one lying row that sends all the same lie, and records the vectors it saw."""

    attack = SimpleNamespace(targets="model")

    def __init__(self, lie, bad=(LIAR,)):
        self.lie, self.seen = lie, []
        self.rows = np.isin(np.arange(N), bad)

    def messages(self, view, attacker, receivers):
        self.seen.append((replace(view, now=view.now.clone(), before=view.before.clone()), attacker, tuple(receivers)))
        lie = self.lie(view, attacker, receivers) if callable(self.lie) else self.lie
        return None if lie is None else lie.expand(len(receivers), D)


@pytest.mark.parametrize("response", ["identity", "fp16", "int8"])
@pytest.mark.parametrize("overlay", [Pull(3, 3), Ring(), Hypercube()], ids=lambda part: type(part).__name__)
def test_the_matrix_walks_the_loops_trajectory_bit_for_bit(overlay, response):
    """With a rule that uses everything: memory, losses, the model before local steps."""
    target = gaussian(2, N, D)

    def worth(rows, models):
        return (models - target[rows][:, None]).square().mean(-1)

    x = torch.zeros(N, D)
    loop = Reference(
        PEERS,
        x.clone(),
        Gather(Wary()),
        exchange_codec(response),
        Everything(),
        5,
        losses=lambda node: lambda models: (models - target[node]).square().mean(-1),
    )
    both = Swarm(PEERS, x.clone(), Gather(Wary()), exchange_codec(response), Everything(), 5, torch.ones(N, dtype=torch.bool), losses=worth)
    local = descent(lambda node, x, _round, _step: x - target[node], steps=2, lr=LR)

    def step(rows, _round, _number, x, correct):
        return x - LR * correct(x - target[rows])

    for number in range(4):
        met = meetings(overlay, number)
        loop.round(phase(number), local, links(met))
        both.round(phase(number), step, 2, met)
        assert torch.equal(loop.x, both.x)
        for node, state in enumerate(loop.states):
            assert torch.equal(state.origin, both.state.origin[node])
            assert torch.equal(state.kept, both.state.kept[node])


@pytest.mark.parametrize("overlay", [Pull(3, 3), Complete()], ids=lambda part: type(part).__name__)
def test_both_engines_assign_the_same_stages(overlay):
    """Three slots for seven peers: almost every round forgets a peer, or leaves one waiting."""
    loop = Reference(PEERS, gaussian(1, N, D), Gather(Counting()), exchange_codec("identity"), Everything(), 5)
    both = swarm(Gather(Counting()))
    for number in range(5):
        met = meetings(overlay, number)
        loop.round(phase(number), None, links(met))
        both.round(phase(number), None, 0, met)
        assert torch.equal(loop.x, both.x)
        assert torch.equal(torch.stack([state.kept for state in loop.states]), both.state.kept)
    assert both.state.kept.max() < 5 or isinstance(overlay, Complete)


@pytest.mark.parametrize("overlay", [Pull(3, 3), Complete(), Hypercube()], ids=lambda part: type(part).__name__)
def test_gathering_with_the_mean_applies_the_overlay_s_matrix(overlay):
    """DSGD by pulling: x <- W x, where every row of W weighs all received models alike."""
    made = swarm()
    x = made.x.clone()
    order = Schedule(overlay, PEERS, b"salt")
    made.round(phase(), None, 0, order.at(0, np.ones(N, bool)))
    ranks = [PEERS.index(peer) for peer in ranked_at(PEERS, b"salt", 0, 0)]
    W = torch.from_numpy(matrix(overlay, N, 0)).float()
    torch.testing.assert_close(made.x[ranks], W @ x[ranks])


def test_all_requesters_get_the_same_bytes():
    """A message is encoded once per round; otherwise two peers could get different roundings, which nobody could compare."""
    first, second = torch.zeros(2, D), []

    class Keeps(Mean):
        def combine(self, kept, own, told, present, before, losses, slots=None):
            second.append(told.clone())
            return super().combine(kept, own, told, present, before, losses)

    made = swarm(Gather(Keeps()), "int4")
    made.round(phase(), None, 0, meetings(Complete()))
    (told,) = second
    heard = {row: [peer for peer in sorted(range(N), key=PEERS.__getitem__) if peer != row] for row in range(N)}
    for peer in range(N):
        copies = [told[row, heard[row].index(peer)] for row in range(N) if row != peer]
        assert all(torch.equal(copy, copies[0]) for copy in copies)
        assert not torch.equal(copies[0], first[0])


def test_a_lost_vector_is_absent():
    made = swarm()
    x, met = made.x.clone(), meetings(Ring())
    faults = no_faults(len(met))
    place = int(np.flatnonzero((met.ends == 0).any(axis=0))[0])
    faults.lost[place] = True
    (other,) = neighbors(met, 0) - set(met.ends[:, place].tolist())
    done = made.round(phase(), None, 0, met, faults)
    torch.testing.assert_close(made.x[0], (x[0] + x[other] + x[0]) / 3)
    assert not done.committed[place]


def test_dead_peers_count_as_absent():
    """They are among the requested: a rule that counts peers must not take two of three for two of two."""
    made = swarm()
    gone = np.zeros(N, np.int64)
    gone[0] = 2
    made.round(phase(), None, 0, meetings(Complete()), None, gone)
    x = gaussian(1, N, D)
    torch.testing.assert_close(made.x[0], (x.sum(0) + 2 * x[0]) / (N + 2))
    torch.testing.assert_close(made.x[1], x.mean(0))


def test_below_a_rule_s_minimum_no_vector_is_used():
    """Churn may leave so few; it must neither end a node nor weaken the agreed rule."""

    class Needs(Mean):
        def combine(self, kept, own, told, present, before, losses, slots=None):
            if told.shape[-2] < N - 1:
                raise BreakdownExceeded("too few")
            return super().combine(kept, own, told, present, before, losses)

    few, all_ = swarm(Gather(Needs())), swarm(Gather(Needs()))
    few.round(phase(), None, 0, meetings(Ring()))
    all_.round(phase(), None, 0, meetings(Complete()))
    assert torch.equal(few.x, gaussian(1, N, D))
    assert not torch.equal(all_.x, gaussian(1, N, D))


def test_a_node_whose_rule_gives_non_finite_numbers_keeps_its_own_vector():
    class Breaks(Mean):
        def start(self, own):
            return own.new_zeros((*own.shape[:-1], 1))

        def combine(self, kept, own, told, present, before, losses, slots=None):
            mixed, _, _ = super().combine(kept, own, told, present, before, losses)
            return torch.where((own[..., :1] == victim[0]), torch.nan, mixed), kept + 1.0, None

    x = gaussian(1, N, D)
    victim = x[VICTIM]
    made = swarm(Gather(Breaks()))
    made.round(phase(), None, 0, meetings(Complete()))
    assert torch.equal(made.x[VICTIM], victim)
    torch.testing.assert_close(made.x[0], x.mean(0))
    assert made.state.kept[:, 0].tolist() == [0.0 if row == VICTIM else 1.0 for row in range(N)]


def test_bytes_count_one_payload_from_responder_to_requester():
    """A pull costs one payload, not two: a node that is not asked sends nothing."""
    made = swarm()
    one_way = Exchanges(np.array([[0], [2]]), np.array([[0.5], [0.0]]))
    done = made.round(phase(), None, 0, one_way)
    size = 4 * D
    sent = dict(zip(done.ends[:, 0].tolist(), done.sizes[:, 0].tolist(), strict=True))
    assert sent[0] == 0
    assert size < sent[2] < size + 32
    assert not torch.equal(made.x[0], gaussian(1, N, D)[0])
    assert torch.equal(made.x[2], gaussian(1, N, D)[2])


def test_a_liar_sends_its_lie_and_mixes_honestly():
    lie = torch.full((D,), 9.0)
    liars = Liars(lie)
    honest, lied = swarm(), swarm(byzantine=liars)
    for made in (honest, lied):
        made.round(phase(), None, 0, meetings(Complete()))
    x = gaussian(1, N, D)
    torch.testing.assert_close(lied.x[0], honest.x[0] + (lie - x[LIAR]) / N)
    assert torch.equal(lied.x[LIAR], honest.x[LIAR])
    ((seen, liar, receivers),) = liars.seen
    assert liar == LIAR
    assert sorted(receivers) == [row for row in range(N) if row != LIAR]
    assert torch.equal(seen.now, x)


def test_attackers_see_vectors_before_and_after_local_steps():
    liars = Liars(None)
    made = swarm(byzantine=liars)
    x = made.x.clone()
    made.round(phase(), lambda _rows, _round, _number, x, correct: x - correct(torch.ones_like(x)), 1, meetings(Complete()))
    (seen, _, _) = liars.seen[0]
    assert torch.equal(seen.before, x)
    assert torch.equal(seen.now, x - 1.0)


def test_an_attacker_may_send_each_receiver_another_vector():
    liars = Liars(lambda _seen, _liar, receivers: torch.stack([torch.full((D,), float(row)) for row in receivers]))
    honest, lied = swarm(), swarm(byzantine=liars)
    for made in (honest, lied):
        made.round(phase(), None, 0, meetings(Complete()))
    x = gaussian(1, N, D)
    for row in (0, VICTIM):
        torch.testing.assert_close(lied.x[row], honest.x[row] + (float(row) - x[LIAR]) / N)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e31])
def test_an_undecodable_vector_counts_as_missing(value):
    lied = swarm(response="fp16", byzantine=Liars(torch.full((D,), value)))
    lied.round(phase(), None, 0, meetings(Ring()))
    assert bool(torch.isfinite(lied.x).all())
    met = meetings(Ring())
    (one, other) = neighbors(met, LIAR)
    x = gaussian(1, N, D)
    for victim in (one, other):
        (honest,) = neighbors(met, victim) - {LIAR}
        torch.testing.assert_close(lied.x[victim], (2 * x[victim] + x[honest].half().float()) / 3)


def test_in_pairwise_exchanges_an_attacker_forges_the_difference():
    lie = torch.full((D,), 3.0)
    pair = Exchanges(np.array([[LIAR], [VICTIM]]), np.full((2, 1), 0.5))
    made = swarm(Dsgd(), byzantine=Liars(lie))
    made.round(phase(), None, 0, pair)
    x = gaussian(1, N, D)
    torch.testing.assert_close(made.x[VICTIM], (x[VICTIM] + lie) / 2, atol=2e-3, rtol=0)
    torch.testing.assert_close(made.x[LIAR], x[LIAR] + (x[VICTIM] - lie) / 2, atol=2e-3, rtol=0)


def test_an_undecodable_message_loses_a_pairwise_exchange():
    pair = Exchanges(np.array([[LIAR], [VICTIM]]), np.full((2, 1), 0.5))
    made = swarm(Dsgd(), byzantine=Liars(torch.full((D,), float("nan"))))
    done = made.round(phase(), None, 0, pair)
    assert torch.equal(made.x, gaussian(1, N, D))
    assert not done.committed.any()


def test_attackers_exchange_honestly_with_each_other():
    liars = Liars(torch.full((D,), 9.0), bad=(LIAR, VICTIM))
    pair = Exchanges(np.array([[LIAR], [VICTIM]]), np.full((2, 1), 0.5))
    for mixer in (None, Dsgd()):
        made = swarm(mixer, byzantine=liars)
        made.round(phase(), None, 0, pair)
        x = gaussian(1, N, D)
        torch.testing.assert_close(made.x[VICTIM], (x[VICTIM] + x[LIAR]) / 2, atol=2e-3, rtol=0)
    assert liars.seen == []


def test_in_clock_pace_every_visit_is_forged_separately():
    liars = Liars(torch.full((D,), 3.0))
    made = swarm(Dsgd(), byzantine=liars)
    visits = Exchanges(np.array([[LIAR, LIAR], [VICTIM, 0]]), np.full((2, 2), 0.5))
    made.slot(phase(), None, 0, visits)
    assert [receivers for _, _, receivers in liars.seen] == [(VICTIM,), (0,)]
    x = gaussian(1, N, D)
    torch.testing.assert_close(made.x[0], (x[0] + 3.0) / 2, atol=2e-3, rtol=0)
