"""Whole swarms of failure detectors in virtual time: what the members believe together."""

from __future__ import annotations

from math import ceil

import pytest

from starling.gossip.membership.events import Died, Joined, Left, Reborn, Suspected
from starling.gossip.membership.member_list import version_of
from starling.gossip.wire.schema import Rumor, Spread
from tests.harness.detectors import TIMING, DetectorSwarm, detector, loss, names

NOTICE_S = 4 * TIMING.timeout_s + TIMING.suspicion_s
"""From the first unanswered probe to death: one timeout, two for the helpers, one of slack, the time to refute."""


def settled(n, **options):
    swarm = DetectorSwarm(n, **options)
    swarm.run(10.0)
    assert swarm.agreed()
    swarm.events.clear()
    return swarm


@pytest.mark.parametrize("n", [2, 3, 16, pytest.param(64, marks=pytest.mark.slow)])
def test_all_join_through_one_member_and_agree_within_a_fraction_of_a_second(n):
    """Message delay is 20 ms: two hops where all are told at once, a few more in a large swarm."""
    swarm = DetectorSwarm(n)
    assert swarm.run(1.0, swarm.agreed) < 0.3
    assert len({node.member_list.digest for node in swarm.nodes.values()}) == 1
    assert swarm.faults == []


@pytest.mark.parametrize("n", [16, 40])
@pytest.mark.slow
def test_a_newcomer_is_known_to_all_at_once(n):
    swarm = settled(n)
    began = swarm.now
    swarm.add("new")
    assert swarm.run(began + 1.0, swarm.agreed) - began < 0.3
    assert {who for _, who, event in swarm.events if event == Joined("new")} == set(names(n))


@pytest.mark.parametrize(("n", "noticed"), [(3, False), (16, False), (16, True)])
def test_a_crash_is_known_to_all_in_bounded_time(n, noticed):
    """Probes in laps bound it without the network's help; a broken connection is the usual, fast way."""
    swarm = settled(n)
    began = swarm.now
    swarm.crash("p001", noticed=noticed)
    bound = NOTICE_S if noticed else NOTICE_S + (n - 1) * TIMING.probe_s
    assert swarm.run(began + bound, swarm.agreed) - began < bound
    swarm.run(began + 30.0)
    assert {peer for _, _, peer in swarm.deaths()} == {"p001"}
    assert len(swarm.deaths()) == n - 1  # each tells its node once


@pytest.mark.slow
def test_a_crash_in_a_large_swarm_is_found_by_whoever_probes_first():
    """64 members probe 64 times a second: nobody waits for its own lap."""
    swarm = settled(64)
    began = swarm.now
    swarm.crash("p005")
    assert swarm.run(began + 30.0, swarm.agreed) - began < NOTICE_S + 3 * TIMING.probe_s


def test_half_a_swarm_that_vanishes_is_mourned_in_bounded_time():
    """Many suspects at once do not wait for one another."""
    swarm = settled(16)
    began = swarm.now
    for peer in names(16)[8:]:
        swarm.crash(peer, noticed=True)
    assert swarm.run(began + 20.0, swarm.agreed) - began < NOTICE_S + 1.0


@pytest.mark.parametrize(("n", "share", "seed"), [(3, 0.3, 1), (5, 0.3, 2), (16, 0.1, 3), (16, 0.3, 4)])
@pytest.mark.slow
def test_loss_makes_suspects_but_no_false_deaths(n, share, seed):
    """Refutation and our own probes outrun the clock even where three of ten messages are lost."""
    swarm = settled(n)
    swarm.lost = loss(share, seed)
    swarm.run(40.0)
    assert any(isinstance(event, Suspected) for _, _, event in swarm.events)  # the test is not empty
    assert swarm.deaths() == []
    assert swarm.agreed()


@pytest.mark.parametrize("n", [2, 8, 16])
def test_a_partition_makes_two_swarms_and_healing_one(n):
    swarm = settled(n)
    half = set(names(n)[: ceil(n / 2)])
    swarm.lost = lambda source, target, now: (source in half) != (target in half)
    swarm.run(swarm.now + 20.0)
    assert {node.member_list.alive for node in swarm.nodes.values()} == {
        tuple(sorted(half)),
        tuple(sorted(set(names(n)) - half)),
    }
    swarm.lost = lambda source, target, now: False
    healed = swarm.now
    assert swarm.run(healed + 30.0, swarm.agreed) - healed < 2 * TIMING.sync_s
    assert all(node.own.incarnation == 1 for node in swarm.nodes.values())


def test_one_member_cut_off_for_a_while_returns_without_a_restart():
    swarm = settled(8)
    swarm.lost = lambda source, target, now: "p003" in {source, target}
    swarm.run(swarm.now + 20.0)
    swarm.lost = lambda source, target, now: False
    healed = swarm.now
    assert swarm.run(healed + 30.0, swarm.agreed) - healed < 2 * TIMING.sync_s


def test_a_restart_is_seen_as_a_new_life_by_all():
    """However short the pause was: edges with the old life are void."""
    swarm = settled(8)
    del swarm.nodes["p004"]
    swarm.add("p004", incarnation=2)
    swarm.run(swarm.now + 5.0)
    assert {who for _, who, event in swarm.events if event == Reborn("p004")} == set(names(8)) - {"p004"}
    assert swarm.deaths() == []


def test_leaving_is_known_at_once_and_no_death():
    swarm = settled(8)
    began = swarm.now
    swarm.do("p002", swarm.nodes["p002"].leave(began))
    del swarm.nodes["p002"]
    assert swarm.run(began + 1.0, swarm.agreed) - began < 0.1
    swarm.run(began + 20.0)
    assert [event for _, _, event in swarm.events] == [Left("p002")] * 7


@pytest.mark.slow
def test_a_liar_that_calls_everybody_dead_kills_nobody():
    """It speaks for itself only, and the accused answer for themselves."""
    swarm = settled(8)
    liar = swarm.nodes["p000"]
    until = swarm.now + 20.0
    while swarm.now < until:
        others = [member.record for peer, member in sorted(liar.member_list.members.items()) if peer != "p000"]
        rumors = tuple(Rumor(r.peer, *version_of(r), "dead", "p000") for r in others)
        for other in names(8)[1:]:
            swarm.do(other, swarm.nodes[other].receive("p000", Spread((), rumors), swarm.now))
        swarm.run(swarm.now + 0.2)
    assert swarm.deaths() == []
    assert swarm.agreed()
    assert swarm.faults == []


def test_a_quiet_swarm_costs_a_few_small_frames_a_second():
    """A probe, its answer, and now and then a Sync."""
    swarm = settled(16)
    frames, octets = swarm.frames, swarm.octets
    swarm.run(swarm.now + 20.0)
    assert (swarm.frames - frames) / 20.0 / 16 < 3.0
    assert (swarm.octets - octets) / 20.0 / 16 < 1000


def test_a_seed_replays_exactly():
    """All chance is drawn from the seed: a failure can be looked at twice."""

    def history(seed):
        swarm = DetectorSwarm(6, seed=seed)
        swarm.lost = loss(0.2, 7)
        swarm.run(15.0)
        return swarm.events, swarm.frames

    assert history(1) == history(1)
    assert history(1) != history(2)


def test_a_swarm_of_one_is_alone():
    core = detector("p000")
    assert core.member_list.alive == ("p000",)
    assert not any(isinstance(event, Died) for t in range(50) for event in core.tick(float(t)))
