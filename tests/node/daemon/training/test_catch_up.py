"""How a node treats claims that the swarm is at a later round."""

from itertools import pairwise

import pytest
import trio

from starling.node.config.schema import PaceSection
from starling.node.daemon.exchange.service import RoundOutcome
from starling.node.daemon.progress import Progress
from starling.node.daemon.state.snapshots import SNAPSHOT_FRESH_S
from starling.node.daemon.training.catch_up import DIVERGED_ROUNDS, FETCH_PAUSE_S, LONGEST_FETCH_PAUSE_S, CatchUp, Jumps
from tests.harness.daemons import Reports
from tests.harness.virtual import virtual

PATIENCE = PaceSection().ramp_rounds
ROUND, FAR = 5, 500


class Peers:
    """Peers that return these models, by round, in order; `asked`: when and for which round."""

    def __init__(self, *models: int | None, last=1000):
        self.asked, self.first, self.resets, self.forgot, self._models = [], [], 0, 0, iter(models)
        self.report, self.progress, self.believed = Reports(), Progress(), []
        catch_up = CatchUp(self.fetch, self.progress, PATIENCE, self.reset_all, self.forget)
        self.jumps = Jumps(catch_up, PaceSection(rounds=last), self.report, self.left_behind)

    async def fetch(self, newer_than, live, first):
        self.asked.append((trio.current_time(), newer_than, live))
        self.first.append(first)
        return next(self._models)

    async def reset_all(self):
        self.resets += 1

    def forget(self):
        self.forgot += 1

    def left_behind(self, _round, reach):
        self.believed.append(reach)
        return ROUND + reach

    async def after(self, behind, current=ROUND, diverged=()):
        """Return the round after `current`, given that exchanges reported peers at `behind`."""
        outcome = RoundOutcome(current, {}, behind, diverged=diverged)
        self.jumps.ended(outcome, 1.0)
        return await self.jumps.following(outcome)


@virtual
async def test_claims_without_a_model_are_checked_less_and_less_often():
    peers = Peers(*[None] * 12)
    while trio.current_time() < 4 * LONGEST_FETCH_PAUSE_S:
        assert await peers.after(FAR) == ROUND + 1
        await trio.sleep(1.0)
    pauses = [later - earlier for (earlier, *_), (later, *_) in pairwise(peers.asked)]
    assert pauses == [pytest.approx(min(FETCH_PAUSE_S * 2**n, LONGEST_FETCH_PAUSE_S)) for n in range(len(pauses))]
    assert all(it[1:] == (ROUND + 1 + PATIENCE, True) for it in peers.asked), "with a model of its own to lose"
    assert (peers.resets, peers.forgot) == (0, 0)


@virtual
async def test_after_a_confirmed_claim_the_next_one_is_checked_at_once():
    peers = Peers(None, FAR, None)
    await peers.after(FAR)
    await trio.sleep(FETCH_PAUSE_S)
    assert await peers.after(FAR) == FAR
    await peers.after(FAR)
    await peers.after(FAR)
    assert [at for at, *_ in peers.asked] == [0.0, FETCH_PAUSE_S, FETCH_PAUSE_S]


@virtual
async def test_installing_a_model_voids_edges_and_overlapped_steps():
    peers = Peers(FAR - 3)
    assert await peers.after(FAR) == FAR, "however long the download took"
    assert (peers.resets, peers.forgot, peers.progress.round) == (1, 1, FAR - 3)


@virtual
async def test_a_short_jump_needs_no_model():
    peers = Peers()
    assert await peers.after(ROUND + 1 + PATIENCE) == ROUND + 1 + PATIENCE
    assert await peers.after(ROUND) == ROUND + 1
    assert not peers.asked


@virtual
async def test_a_node_never_jumps_beyond_the_last_round():
    peers = Peers(FAR, last=ROUND + 2)
    assert await peers.after(ROUND + 1 + PATIENCE) == ROUND + 2
    assert await peers.after(FAR) == ROUND + 2
    assert await peers.after(ROUND + 3, current=ROUND + 1) == ROUND + 2


@virtual
async def test_a_suspended_node_jumps_with_its_own_model_by_the_rounds_it_can_have_missed():
    """Of many nodes that slept at once too few have a newer model; a claim beyond that is not believed."""
    peers = Peers(None, None)
    for _ in range(5):
        await peers.after(ROUND)
    assert not peers.believed, "nobody is believed more than others say while this node keeps up"
    outcome = RoundOutcome(ROUND, {}, ROUND)
    peers.jumps.ended(outcome, 100.0)
    assert await peers.jumps.following(outcome) == ROUND + 100
    assert peers.believed == [100]
    assert await peers.after(FAR) == ROUND + 1, "it has caught up, and is believed no more"


@virtual
async def test_a_node_diverged_for_many_rounds_fetches_the_majoritys_outer_parameters_and_waits_before_a_retry():
    peers, most = Peers(None, ROUND + 1, ROUND + 4), ("a", "b")

    async def diverged(rounds):
        return [await peers.after(ROUND, diverged=most) for _ in range(rounds)]

    assert await diverged(DIVERGED_ROUNDS - 1) == [ROUND + 1] * (DIVERGED_ROUNDS - 1)
    await peers.after(ROUND)
    await diverged(DIVERGED_ROUNDS - 1)
    assert not peers.asked, "one after the other"
    await diverged(1)
    assert (peers.asked, peers.first) == ([(0.0, ROUND, True)], [most])
    await diverged(3 * DIVERGED_ROUNDS)
    assert len(peers.asked) == 1
    await trio.sleep(SNAPSHOT_FRESH_S)
    assert await diverged(1) == [ROUND + 1]
    assert peers.resets == 1
    await trio.sleep(SNAPSHOT_FRESH_S)
    assert await diverged(DIVERGED_ROUNDS) == [ROUND + 1] * (DIVERGED_ROUNDS - 1) + [ROUND + 4]
    assert peers.report.names == ["anchor_parted"] * 3
