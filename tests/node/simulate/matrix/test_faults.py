"""Lost exchanges, late proofs, nodes that crash, leave, join: what a swarm as matrices keeps through all of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.api import Phase
from starling.gossip.compress.quantize import Float32, Fp16, Int4
from starling.gossip.compress.select.coordinates import Everything, Mask
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.exchange_codec import Terms
from starling.gossip.mix.pet import Pet
from starling.node.simulate.matrix.faults import Change, Fate, Faults, churn, fate, kind
from starling.node.simulate.matrix.schedule import Meetings
from starling.node.simulate.matrix.swarm import Swarm
from starling.robust.clip import clip
from tests.harness.faulty_loop import FaultyLoop
from tests.harness.volunteers import Volunteers
from tests.strategies import examples, seeds

ROWS, DIM, LR, STEPS, MOST = 7, 40, 0.05, 2, 2
PEERS = ("e", "b", "g", "a", "d", "c", "f")
CODED = Terms(Fp16(), Int4(), 1.0, clip)
EXACT = Terms(Float32(), Float32(), 0.0, clip)

NOBODY_MEETS = Meetings(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))

quick = examples(12)


def bowls(dtype=torch.float64):
    chance = torch.Generator().manual_seed(3)
    return torch.rand(ROWS, DIM, generator=chance).add(0.2).to(dtype), torch.randn(ROWS, DIM, generator=chance).to(
        dtype
    )


def meetings(chance, living, *, repeated=False):
    """Some pairs of those alive; several of one row, and in a slot perhaps of one pair."""
    pairs = [(i, j) for place, i in enumerate(living) for j in living[place + 1 :]]
    many = int(chance.integers(0, min(6, len(pairs)) + 1))
    chosen = [pairs[at] for at in chance.choice(len(pairs), many, replace=repeated)] if pairs else []
    turned = [pair[::-1] if chance.random() < 0.5 else pair for pair in chosen]
    one, other = np.array(turned, np.int64).reshape(-1, 2).T
    weights = np.full(len(chosen), 0.25)
    return Meetings(one.copy(), other.copy(), weights, weights)


def drawn(chance, many, loss=0.3):
    lost, unproven, forth, back = torch.from_numpy(chance.random((4, many)) < loss)
    return Fate(lost, unproven, forth, back)


def changed(chance, alive):
    """Now and then somebody crashes, leaves, closes an edge or joins."""
    living = sorted(alive)
    crashed, left, closed, joined = [], [], [], []
    if len(living) > 3 and chance.random() < 0.2:
        crashed = [living.pop(int(chance.integers(len(living))))]
    if len(living) > 3 and chance.random() < 0.2:
        left = [living.pop(int(chance.integers(len(living))))]
    if chance.random() < 0.5:
        closed = [tuple(int(row) for row in chance.choice(living, 2, replace=False))]
    if len(living) < ROWS and chance.random() < 0.5:
        fresh = [row for row in range(ROWS) if row not in alive]
        joined = [(fresh[0], living[0])] if fresh else []
    return Change(tuple(crashed), tuple(joined), tuple(left), tuple(closed))


def made(mixer, terms, seed, dtype=torch.float64, alive=range(5), **more):
    x = torch.full((ROWS, DIM), 0.5, dtype=dtype)
    at_first = torch.zeros(ROWS, dtype=torch.bool)
    at_first[list(alive)] = True
    return Swarm(PEERS, x, mixer, terms, Mask(0.3, 8), seed, at_first, **{"settled_edges": MOST} | more)


def stories(seed, swarm, other, rounds=12):
    """The same events to a swarm as matrices and to `other`, in either pace; yields after each."""
    a, b = bowls()
    chance = np.random.default_rng(seed)

    def step(rows, round, number, x, correct):
        return x - LR * correct(a[rows] * (x - b[rows]))

    def local(row, round, x, correct):
        for _ in range(STEPS):
            x = x - LR * correct(a[row] * (x - b[row]))
        return x

    for number in range(rounds):
        change = changed(chance, other.alive)
        swarm.change(change)
        other.change(change)
        clock = chance.random() < 0.4
        met = meetings(chance, sorted(other.alive), repeated=clock)
        what, phase = drawn(chance, len(met)), Phase(number, float(STEPS), LR)
        if clock:
            swarm.slot(phase, step, STEPS, met, what)
            other.slot(phase, local, met, what)
        else:
            swarm.round(phase, step, STEPS, met, what)
            other.round(phase, local, met, what)
        yield number


@pytest.mark.slow
@given(seed=seeds, terms=st.sampled_from([CODED, EXACT]))
@quick
def test_with_faults_too_the_matrix_walks_the_loops_trajectory(seed, terms):
    """Flows that live once for both ends, totals that move with them, answers of earlier rounds: bookkeeping, but for the order of sums."""
    mixer = Pet(0.3, 0.02)
    swarm = made(mixer, terms, 9)
    loop = FaultyLoop(PEERS, swarm.x.clone(), mixer, terms, Mask(0.3, 8), 9, range(5), MOST)
    for _ in stories(seed, swarm, loop):
        for row in loop.alive:
            torch.testing.assert_close(swarm.x[row], loop.loop.x[row], rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(swarm.state.c[row], loop.loop.states[row].c, rtol=1e-9, atol=1e-12)
        assert swarm.pending == len(loop.pending)
        assert set(np.flatnonzero(swarm.alive.numpy())) == loop.alive


def owed(flows):
    """(D,) what initiators have committed beyond their responders."""
    return sum(
        (flows.slab.rows[flows._slots[pair]] - flows.slab.rows[own] for pair, own in flows._own.items()),
        torch.zeros(flows.slab.width, dtype=torch.float64),
    )


class Nobody:
    """Only keeps count of who is alive."""

    def __init__(self, alive):
        self.alive = set(alive)

    def change(self, change):
        self.alive -= {*change.crashed, *change.left}
        self.alive |= {row for row, _ in change.joined}

    def round(self, *_told):
        pass

    def slot(self, *_told):
        pass


@pytest.mark.slow
@given(seed=seeds)
@quick
def test_flows_cancel_at_every_moment_but_for_what_is_pending(seed):
    """The invariant that PET stands on: the corrections of the living sum to what responders have yet to hear, and to nothing else.

    As long as settled flows can be revoked: one that is too old for that stays when the other end goes.
    """
    swarm = made(Pet(0.3, 0.02), CODED, 9, settled_edges=99)
    others = Nobody(range(5))
    for _ in stories(seed, swarm, others):
        living = sorted(others.alive)
        total = swarm.state.c[living].double().sum(0)
        torch.testing.assert_close(total, owed(swarm.flows), rtol=0.0, atol=1e-12)
        assert not swarm.flows.totals.rows[sorted(set(range(ROWS)) - others.alive)].any()
    swarm.change(Change(crashed=tuple(sorted(others.alive))[:-1]))
    assert swarm.flows.totals.rows.abs().max() < 1e-12  # nothing but roundings
    assert len(swarm.flows._free) == swarm.flows.slab.wide.shape[0]


def still_to_take_off(swarm):
    """(DIM,) what initiators have added to their models and responders have yet to take off theirs."""
    owed = torch.zeros(swarm._vectors.wide.shape[1], dtype=torch.float64)
    for late in swarm._exchanges.late.values():
        pieces, unit = late.picks.pieces[0], late.picks.unit
        owed[(pieces[:, None] * unit + torch.arange(unit)).view(-1)] += late.change[0].double()
    return owed[:DIM]


@pytest.mark.slow
@given(seed=seeds, name=st.sampled_from(["dsgd", "pet", "gradient_tracking", "quasi_global", "choco", "beer"]))
@quick
def test_exchanges_conserve_the_sum_of_models(seed, name):
    """What one end gains the other loses, at once or when it hears of it: the mean is moved by gradients alone."""
    params = {"pet": {"kappa": 0.3, "flow_limit": 1.0}, "choco": {"gamma": 0.3}, "beer": {"gamma": 0.3}}
    averages = name not in ("choco", "beer")  # late swaps are whole ones at a time: see the next test
    swarm = made(MIXERS[name](**params.get(name, {})), Terms(Fp16(), Int4(), 1.0, clip), 4, torch.float64, range(ROWS))
    chance, (a, b) = np.random.default_rng(seed), bowls(torch.float64)

    def step(rows, round, number, x, correct):
        return x - LR * correct(a[rows] * (x - b[rows]))

    for number in range(8):
        phase, met = Phase(number, float(STEPS), LR), meetings(chance, range(ROWS))
        what = (
            drawn(chance, len(met)) if averages else replace(drawn(chance, len(met)), unproven=kind(len(met)).unproven)
        )
        swarm.round(phase, step, STEPS, NOBODY_MEETS)
        before = swarm.x.sum(0) - (still_to_take_off(swarm) if averages else 0.0)
        swarm.round(phase, None, 0, met, what)
        after = swarm.x.sum(0) - (still_to_take_off(swarm) if averages else 0.0)
        torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)
    assert not swarm.x.std(0).eq(0.0).any()


@pytest.mark.slow
@given(seed=seeds, name=st.sampled_from(["push_sum", "r_fast"]), atomic=st.booleans())
@quick
def test_running_sums_lose_nothing_over_messages_that_are_lost(seed, name, atomic):
    """What nodes hold and what was given and not yet seen never change but by gradients: whether each message has a fate of its own,
    or a swap waits for its proof."""
    swarm = made(MIXERS[name](), EXACT, 4, torch.float64, range(ROWS), atomic=atomic)
    chance, (a, b) = np.random.default_rng(seed), bowls(torch.float64)
    pushed = slice(0, DIM + 1) if name == "push_sum" else slice(DIM, None)

    def everything():
        held, kept = swarm.mixer.shared(swarm.state, swarm.x)[:, pushed].sum(0), swarm._exchanges.kept
        for me, peer in kept._slots:
            given, seen = (kept.of(end).tensor_split(2)[at] for at, end in enumerate(((me, peer), (peer, me))))
            held = held + (given - seen)
        return held

    swarm.round(
        Phase(0, 1.0, LR), lambda rows, _r, _n, x, correct: x - LR * correct(a[rows] * (x - b[rows])), 1, NOBODY_MEETS
    )
    begun = everything()
    for number in range(8):
        met = meetings(chance, range(ROWS))
        swarm.round(Phase(number, 1.0, LR), None, 0, met, drawn(chance, len(met)))
        torch.testing.assert_close(everything(), begun, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@given(seed=seeds)
@quick
def test_public_copies_agree_at_both_ends_whatever_swaps_were_lost(seed):
    """One message that counts at one end alone would set them apart for ever; a proof that is late does so only until it is there."""
    swarm, chance = made(MIXERS["choco"](0.3), CODED, 4, alive=range(ROWS)), np.random.default_rng(seed)
    swarm.x += torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(seed))
    kept = swarm._exchanges.kept
    for number in range(8):
        met = meetings(chance, range(ROWS))
        swarm.round(Phase(number, 1.0, LR), None, 0, met, drawn(chance, len(met)))
        for me, peer in kept._slots:
            if swarm._edges.pair(me, peer) not in swarm._exchanges.late:
                ours, theirs = kept.of((me, peer)).tensor_split(2)
                torch.testing.assert_close(torch.cat((theirs, ours)), kept.of((peer, me)), rtol=1e-9, atol=1e-12)
    assert kept._slots


def test_a_seed_replays_and_another_one_does_not():
    first, again, other = (list(walk(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    assert not torch.equal(first[-1], other[-1])


def walk(seed):
    swarm, (a, b) = made(Pet(0.3, 1.0), CODED, seed), bowls()
    faults = Faults(loss=0.3, crashes=0.3, joins=0.3)
    for number in range(6):
        swarm.change(churn(faults, seed, number, swarm.alive, swarm.used))
        met = meetings(np.random.default_rng(number), np.flatnonzero(swarm.alive.numpy()).tolist())
        swarm.round(
            Phase(number, 1.0, LR), lambda rows, _r, _n, x, correct: x - LR * correct(a[rows] * (x - b[rows])), 1,
            met, fate(faults, seed, number, len(met)),
        )  # fmt: skip
        yield swarm.x.clone()


def test_who_joins_has_a_members_model_and_nothing_else():
    swarm = made(Pet(0.3, 1.0), CODED, 3)
    for _ in stories(5, swarm, Nobody(range(5)), rounds=4):
        pass
    dead = int(np.flatnonzero(~swarm.alive.numpy())[0])
    source = int(np.flatnonzero(swarm.alive.numpy())[0])
    swarm.change(Change(joined=((dead, source),)))
    assert torch.equal(swarm.x[dead], swarm.x[source])
    assert not swarm.state.c[dead].any()
    assert bool(swarm.alive[dead])
    assert all(dead not in pair for pair in swarm.flows._slots)


def test_fates_come_as_often_as_they_should():
    """A request and its response must both arrive in one of the tries, then the proof in one of as many."""
    for loss, tries in ((0.3, 1), (0.3, 3), (0.0, 1)):
        what = fate(Faults(loss=loss, tries=tries), 1, 0, 20_000)
        expected = (1 - (1 - loss) ** 2) ** tries
        assert abs(float(what.lost.double().mean()) - expected) < 0.01
        for one_way in (what.unproven, what.forth_lost, what.back_lost):
            assert abs(float(one_way.double().mean()) - loss**tries) < 0.01


def test_churn_keeps_its_rates_its_rounds_and_the_fewest():
    alive, used = torch.arange(400) < 100, torch.arange(400) < 100
    faults = Faults(crashes=1.3, joins=0.4, churn_from=10, churn_until=310, fewest=95)
    changes = [churn(faults, 1, number, alive, used) for number in range(320)]
    assert all(changes[number] == Change() for number in (*range(10), *range(310, 320)))
    crashed = [len(change.crashed) for change in changes[10:310]]
    assert set(crashed) == {1, 2}
    assert abs(sum(crashed) / 300 - 1.3) < 0.1
    assert abs(sum(len(change.joined) for change in changes) / 300 - 0.4) < 0.1
    assert len({row for change in changes for row in change.crashed}) > 80
    for change in changes:
        assert all(row == 100 and source not in change.crashed for row, source in change.joined)
    few = churn(faults, 1, 20, torch.arange(400) < 96, used)
    assert len(few.crashed) == 1
    assert not churn(faults, 1, 20, torch.arange(400) < 95, used).crashed


@pytest.mark.parametrize(
    ("values", "what"),
    [({"loss": 1.0}, "loss"), ({"loss": -0.1}, "loss"), ({"tries": 0}, "tries"), ({"crashes": -1.0}, "crashes")],
)
def test_faults_that_cannot_be_are_refused(values, what):
    with pytest.raises(ValueError, match=what):
        Faults(**values)


@pytest.mark.slow
def test_pet_finds_the_optimum_of_those_who_stayed_where_a_tracker_per_node_is_stuck():
    """A third of all messages lost, crashes and newcomers: a departed node's share of a sum is gone, a deleted flow is not missed."""
    faults = Faults(loss=0.3, crashes=0.03, joins=0.03, churn_from=20, churn_until=150)
    error = {}
    for name, mixer, lr in (("pet", Pet(0.1, 1e6), 0.1), ("tracking", MIXERS["gradient_tracking"](), 0.05)):
        volunteers = Volunteers(8, mixer, Everything(), lr, faults, dim=16)
        for number in range(900):
            volunteers.come_and_go(number)
            volunteers.match(number)
        error[name] = volunteers.error
        assert int(volunteers.swarm.used.sum()) > 8
    assert error["pet"] < 1e-15
    assert error["tracking"] > 1e-3
