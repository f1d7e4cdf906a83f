"""How a node treats claims that the swarm is at a later round."""

from itertools import pairwise

import pytest
import trio

from starling.node.config.schema import PaceSection
from starling.node.daemon.exchange.outcome import RoundOutcome
from starling.node.daemon.progress import Progress
from starling.node.daemon.training.catch_up import FETCH_PAUSE_S, LONGEST_FETCH_PAUSE_S, CatchUp, Jumps
from starling.node.rpc.calls import Divergence
from tests.harness.virtual import virtual

PATIENCE = PaceSection().ramp_rounds
ROUND, FAR = 5, 500


class Peers:
    """Peers that return these models, by round, in order; `asked`: when and for which round."""

    def __init__(self, *models: int | None, last=1000):
        self.asked, self.repaired, self.resets, self.forgot, self._models = [], [], 0, 0, iter(models)
        self.progress, self.believed = Progress(), []
        catch_up = CatchUp(self.fetch, self.progress, PATIENCE, self.reset_all, self.forget)
        self.jumps = Jumps(catch_up, PaceSection(rounds=last), self.left_behind, self.repair)

    async def fetch(self, newer_than, live):
        self.asked.append((trio.current_time(), newer_than, live))
        return next(self._models)

    async def repair(self, _needed):
        self.repaired.append(self._current)

    async def reset_all(self):
        self.resets += 1

    def forget(self):
        self.forgot += 1

    def left_behind(self, _round, reach):
        self.believed.append(reach)
        return ROUND + reach

    async def after(self, behind, current=ROUND, diverged=None):
        """Return the round after `current`, given that exchanges reported peers at `behind`."""
        self._current = current
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
async def test_outer_parameters_are_replaced_at_once_and_then_with_growing_rests():
    """Each time costs a model's bytes, and while the cause lasts they differ again. After quiet rounds it is at once again."""
    peers, needed = Peers(), Divergence(((b"12345678", ("a", "b")),), 2)
    for current in range(3, 60):
        assert await peers.after(current, current=current, diverged=needed if current < 33 else None) == current + 1
    assert peers.repaired == [3, 4, 6, 10, 18, 26]
    await peers.after(60, current=60, diverged=needed)
    await peers.after(61, current=61, diverged=needed)
    assert peers.repaired[-2:] == [60, 61]
    assert not peers.asked


@virtual
async def test_a_node_that_skips_rounds_replaces_no_outer_parameters():
    """What it would continue from lacks the messages of these rounds."""
    peers = Peers()
    assert await peers.after(ROUND + 3, diverged=Divergence(((b"12345678", ("a", "b")),), 2)) == ROUND + 3
    assert not peers.repaired
