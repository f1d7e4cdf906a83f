"""Lost exchanges, late proofs, crashes, leaves and joins: invariants of a simulated swarm through all of them."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from starling.gossip.api import Phase
from starling.gossip.compress.quantize import Float32, Fp16, Int4
from starling.gossip.compress.select.approximate import ChunkTopK
from starling.gossip.compress.select.coordinates import Everything, Mask
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.pet import Pet
from starling.gossip.mix.sparse_outer import SparseOuter
from starling.node.simulate.matrix.faults import FEWEST, Change, ExchangeFaults, churn, exchange_faults
from starling.node.simulate.matrix.schedule import Exchanges
from starling.node.simulate.matrix.swarm import Swarm
from starling.node.simulate.schema import FaultsSection
from starling.robust.clip import clip
from tests.harness.faulty_loop import FaultyLoop
from tests.harness.volunteers import Volunteers, owed
from tests.strategies import examples, seeds

ROWS, DIM, LR, STEPS, MOST = 7, 40, 0.05, 2, 2
PEERS = ("e", "b", "g", "a", "d", "c", "f")
CODED = ExchangeCodec(Fp16(), Int4(), 1.0, clip)
EXACT = ExchangeCodec(Float32(), Float32(), 0.0, clip)

NO_EXCHANGES = Exchanges(np.zeros((2, 0), np.int64), np.zeros((2, 0)))

quick = examples(12)


def bowls(dtype=torch.float64):
    chance = torch.Generator().manual_seed(3)
    return torch.rand(ROWS, DIM, generator=chance).add(0.2).to(dtype), torch.randn(ROWS, DIM, generator=chance).to(dtype)


def exchanges(chance, living, *, repeated=False):
    """Draw pairs of live rows; several of one row, and in a slot possibly the same pair twice."""
    pairs = [(i, j) for place, i in enumerate(living) for j in living[place + 1 :]]
    many = int(chance.integers(0, min(6, len(pairs)) + 1))
    chosen = [pairs[at] for at in chance.choice(len(pairs), many, replace=repeated)] if pairs else []
    turned = [pair[::-1] if chance.random() < 0.5 else pair for pair in chosen]
    return Exchanges(np.array(turned, np.int64).reshape(-1, 2).T, np.full((2, len(chosen)), 0.25))


def everybody(living):
    """Return all pairs."""
    pairs = [(i, j) for i in living for j in living if i < j]
    return Exchanges(np.array(pairs, np.int64).T, np.full((2, len(pairs)), 1.0 / len(living)))


def drawn(chance, many, loss=0.3):
    return ExchangeFaults(*(chance.random((2, many)) < loss))


def changed(chance, alive):
    """With some probability a row crashes, leaves, closes an edge or joins."""
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


def made(mixer, codec, seed, dtype=torch.float64, alive=range(5), **more):
    x = torch.full((ROWS, DIM), 0.5, dtype=dtype)
    at_first = torch.zeros(ROWS, dtype=torch.bool)
    at_first[list(alive)] = True
    keys = {"selector": Mask(0.3, 8), "settled_edges": MOST} | more
    return Swarm(PEERS, x, mixer, codec, seed=seed, alive=at_first, **keys)


def stories(seed, swarm, other, rounds=12):
    """Apply the same events to the matrix swarm and to `other`, in either pace; yield after each."""
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
        met = exchanges(chance, sorted(other.alive), repeated=clock)
        what, phase = drawn(chance, len(met)), Phase(number, float(STEPS), LR, highest_lr=2 * LR, climb=10.0)
        if clock:
            swarm.slot(phase, step, STEPS, met, what)
            other.slot(phase, local, met, what)
        else:
            swarm.round(phase, step, STEPS, met, what)
            other.round(phase, local, met, what)
        yield number


@pytest.mark.slow
@example(seed=89525, codec=EXACT, leak=0.0, kappa=0.3)  # a correction is only rounding error, in the matrix alone
@given(seed=seeds, codec=st.sampled_from([CODED, EXACT]), leak=st.sampled_from([0.0, 0.2]), kappa=st.sampled_from([0.3, None]))
@quick
def test_the_matrix_follows_the_loop_s_trajectory_with_faults(seed, codec, leak, kappa):
    """The shared flows, their totals and delayed answers agree with the loop but for the order of sums."""
    mixer = Pet(kappa, 0.02, leak)
    swarm = made(mixer, codec, 9)
    loop = FaultyLoop(PEERS, swarm.x.clone(), mixer, codec, Mask(0.3, 8), 9, range(5), MOST)
    for _ in stories(seed, swarm, loop):
        for row in loop.alive:
            torch.testing.assert_close(swarm.x[row], loop.loop.x[row], rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(swarm.state.c[row], loop.loop.states[row].c, rtol=1e-9, atol=1e-12)
            known = loop.loop.states[row].known[1:]  # the first row's state decides for all rows whether there are flows
            torch.testing.assert_close(swarm.state.known[row, 1:], known, rtol=1e-9, atol=1e-12)
        assert len(swarm.exchanges.pending) == len(loop.pending)
        assert set(np.flatnonzero(swarm.alive.numpy())) == loop.alive


class AliveOnly:
    """Only records which rows are alive."""

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
    """PET's invariant: the corrections of live rows sum to the changes that responders have not applied yet.
    This holds while settled flows can be revoked: a flow too old for that stays when the other end goes.
    """
    swarm = made(Pet(0.3, 0.02), CODED, 9, settled_edges=99)
    others = AliveOnly(range(5))
    for _ in stories(seed, swarm, others):
        living = sorted(others.alive)
        total = swarm.state.c[living].double().sum(0)
        torch.testing.assert_close(total, -owed(swarm), rtol=0.0, atol=1e-12)
        assert not swarm.flows.totals[sorted(set(range(ROWS)) - others.alive)].any()
    swarm.change(Change(crashed=tuple(sorted(others.alive))[:-1]))
    assert swarm.flows.totals.abs().max() < 1e-12  # nothing but roundings
    assert not list(swarm.flows.open)


def pending_changes(swarm):
    """Return (DIM,) the sum of changes that responders have yet to apply."""
    vectors = torch.zeros(2 * DIM, dtype=torch.float64)
    for update in swarm.exchanges.pending.values():
        vectors[update.group.coordinates[0]] += update.change[0]
    return vectors[:DIM]


@pytest.mark.slow
@given(seed=seeds, name=st.sampled_from(["dsgd", "pet", "gradient_tracking", "quasi_global", "choco", "beer"]))
@quick
def test_exchanges_conserve_the_sum_of_models(seed, name):
    """One end gains what the other loses, at once or when the proof arrives: only gradients move the mean."""
    params = {"pet": {"kappa": 0.3, "flow_limit": 1.0}, "choco": {"gamma": 0.3}, "beer": {"gamma": 0.3}}
    averages = name not in ("choco", "beer")  # late swaps are complete; see the next test
    swarm = made(MIXERS[name](**params.get(name, {})), ExchangeCodec(Fp16(), Int4(), 1.0, clip), 4, torch.float64, range(ROWS))
    chance, (a, b) = np.random.default_rng(seed), bowls(torch.float64)

    def step(rows, round, number, x, correct):
        return x - LR * correct(a[rows] * (x - b[rows]))

    for number in range(8):
        phase, met = Phase(number, float(STEPS), LR), exchanges(chance, range(ROWS))
        what = drawn(chance, len(met))
        if not averages:
            what.unproven[:] = False
        swarm.round(phase, step, STEPS, NO_EXCHANGES)
        before = swarm.x.sum(0) + (pending_changes(swarm) if averages else 0.0)
        swarm.round(phase, None, 0, met, what)
        after = swarm.x.sum(0) + (pending_changes(swarm) if averages else 0.0)
        torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)
    assert not swarm.x.std(0).eq(0.0).any()


@pytest.mark.slow
@given(seed=seeds, name=st.sampled_from(["push_sum", "r_fast"]))
@quick
def test_running_sums_are_conserved_over_lost_and_late_swaps(seed, name):
    """The sum of what nodes hold and what is in transit changes by gradients only."""
    swarm = made(MIXERS[name](), EXACT, 4, torch.float64, range(ROWS))
    chance, (a, b) = np.random.default_rng(seed), bowls(torch.float64)
    pushed = slice(0, DIM + 1) if name == "push_sum" else slice(DIM, None)

    def everything():
        held, kept = swarm.mixer.shared(swarm.state, swarm.x)[:, pushed].sum(0), swarm.exchanges.kept
        for me, peer in kept:
            given, seen = (kept.get(end).tensor_split(2)[at] for at, end in enumerate(((me, peer), (peer, me))))
            held = held + (given - seen)
        return held

    swarm.round(Phase(0, 1.0, LR), lambda rows, _r, _n, x, correct: x - LR * correct(a[rows] * (x - b[rows])), 1, NO_EXCHANGES)
    begun = everything()
    for number in range(8):
        met = exchanges(chance, range(ROWS))
        swarm.round(Phase(number, 1.0, LR), None, 0, met, drawn(chance, len(met)))
        torch.testing.assert_close(everything(), begun, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@given(seed=seeds)
@quick
def test_public_copies_agree_at_both_ends_whatever_swaps_were_lost(seed):
    """A message that counts at one end only would separate the copies for ever; a late proof does so until it arrives."""
    swarm, chance = made(MIXERS["choco"](0.3), CODED, 4, alive=range(ROWS)), np.random.default_rng(seed)
    swarm.x += torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(seed))
    kept = swarm.exchanges.kept
    for number in range(8):
        met = exchanges(chance, range(ROWS))
        swarm.round(Phase(number, 1.0, LR), None, 0, met, drawn(chance, len(met)))
        for me, peer in kept:
            if swarm.edges.pair(me, peer) not in swarm.exchanges.pending:
                ours, theirs = kept.get((me, peer)).tensor_split(2)
                torch.testing.assert_close(torch.cat((theirs, ours)), kept.get((peer, me)), rtol=1e-9, atol=1e-12)
    assert list(kept)


def test_a_seed_replays_and_another_one_does_not():
    first, again, other = (list(walk(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    assert not torch.equal(first[-1], other[-1])


def walk(seed):
    swarm, (a, b) = made(Pet(0.3, 1.0), CODED, seed), bowls()
    faults = FaultsSection(loss=0.3, tries=1, crash=0.3, join=0.3)
    for number in range(6):
        swarm.change(churn(faults, seed, number, swarm.alive, swarm.used, 4))
        met = exchanges(np.random.default_rng(number), np.flatnonzero(swarm.alive.numpy()).tolist())
        swarm.round(
            Phase(number, 1.0, LR),
            lambda rows, _r, _n, x, correct: x - LR * correct(a[rows] * (x - b[rows])),
            1,
            met,
            exchange_faults(faults, seed, number, len(met)),
        )
        yield swarm.x.clone()


def test_a_late_joiner_gets_a_members_model_and_no_other_state():
    swarm = made(Pet(0.3, 1.0), CODED, 3)
    for _ in stories(6, swarm, AliveOnly(range(5)), rounds=4):
        pass
    source, dead = (int(row) for row in np.flatnonzero(swarm.alive.numpy())[:2])
    swarm.change(Change(crashed=(dead,)))
    swarm.change(Change(joined=((dead, source),)))
    assert torch.equal(swarm.x[dead], swarm.x[source])
    assert not swarm.state.c[dead].any()
    assert bool(swarm.alive[dead])
    assert all(dead not in pair for pair in swarm.flows.open)


def test_a_late_joiner_starts_from_its_sources_outer_parameters():
    """Not at its source's model, which includes a residual that only the source has."""
    swarm, met = made(SparseOuter(), CODED, 3, selector=ChunkTopK(0.1, 64)), everybody(range(5))
    a, b = bowls()
    for number in range(3):
        swarm.round(Phase(number, 1.0, LR), lambda rows, _r, _n, x, _correct: x - LR * a[rows] * (x - b[rows]), 1, met)
    assert len(swarm.settled[:5].unique(dim=0)) == 1
    assert len(swarm.x[:5].unique(dim=0)) == 5
    swarm.change(Change(joined=((5, 0),)))
    assert torch.equal(swarm.x[5], swarm.settled[0])
    assert not swarm.state.owed[5].any()
    swarm.round(Phase(3, 1.0, LR), None, 1, everybody(range(6)))
    assert len(swarm.settled[:6].unique(dim=0)) == 1


def test_exchanges_are_lost_at_the_configured_rate():
    """Request and response must both arrive in one of the tries, then the proof in one of as many."""
    for loss, tries in ((0.3, 1), (0.3, 3), (0.0, 1)):
        faults = exchange_faults(FaultsSection(loss=loss, tries=tries), 1, 0, 20_000)
        assert abs(faults.lost.mean() - (1 - (1 - loss) ** 2) ** tries) < 0.01
        assert abs(faults.unproven.mean() - loss**tries) < 0.01


def changes_of(faults, rounds=400, nodes=10, rows=500, fewest=FEWEST):
    """Return the churn of a whole run, without a swarm."""
    alive = torch.arange(rows) < nodes
    used, changes = alive.clone(), []
    for number in range(rounds):
        change = churn(faults, 1, number, alive, used, fewest)
        assert not {*change.left} & {*change.crashed, *(source for _, source in change.joined)}
        for row in (*change.crashed, *change.left):
            assert alive[row]
            alive[row] = False
        for row, source in change.joined:
            assert alive[source]
            assert row == int(used.sum())  # the lowest unused row
            alive[row] = used[row] = True
        assert int(alive.sum()) >= fewest
        changes.append(change)
    return changes


def test_rates_are_nodes_a_round_on_average():
    """Within three standard deviations over 400 draws; the integer part of a rate is deterministic."""
    changes = changes_of(FaultsSection(crash=1.3, leave=0.2, join=1.5), rows=800, nodes=100)
    for kind, rate in (("crashed", 1.3), ("left", 0.2), ("joined", 1.5)):
        counts = [len(getattr(change, kind)) for change in changes]
        assert set(counts) <= {int(rate), int(rate) + 1}
        assert abs(sum(counts) - 400 * rate) < 3 * (400 * (rate % 1) * (1 - rate % 1)) ** 0.5


def test_nothing_happens_outside_of_its_rounds():
    changes = changes_of(FaultsSection(crash=1, leave=1, join=2, churn_from=100, churn_until=110))
    busy = [at for at, change in enumerate(changes) if change.crashed or change.left or change.joined]
    assert busy == list(range(100, 110))


@pytest.mark.parametrize("fewest", [2, 7])
def test_the_fewest_nodes_always_stay(fewest):
    changes = changes_of(FaultsSection(crash=3, leave=3), fewest=fewest)
    assert sum(len(change.crashed) + len(change.left) for change in changes) == 10 - fewest


@pytest.mark.slow
def test_pet_finds_the_remaining_nodes_optimum_under_churn_and_a_tracker_per_node_does_not():
    """A third of all messages lost, crashes and joins: a departed node's tracker share is lost, while its flows can be deleted."""
    faults = FaultsSection(loss=0.3, tries=1, crash=0.03, join=0.03, churn_from=20, churn_until=150)
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
