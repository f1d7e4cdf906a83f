"""Partitions, flapping, sleep, new addresses, clock jumps: each a file of `benchmarks/mishaps`, in virtual time."""

from statistics import mean

import msgspec
import pytest

from tests.harness import mishaps
from tests.harness.stories import virtual


def test_every_scenario_states_its_faults_and_its_requirements():
    for name in mishaps.names():
        story = mishaps.read(name)
        assert all(set(it.nodes) < set(range(story.nodes)) for it in story.mishaps)
        assert story.begins < story.ends + 1.0
    flapping = mishaps.read("flapping").mishaps[0]
    on = [flapping.lasts(flapping.at_s + second) for second in (-1, 0, 1.9, 2, 3.9, 4, flapping.for_s)]
    assert on == [False, True, True, False, False, True, False]


@pytest.mark.acceptance
@pytest.mark.parametrize("name", mishaps.names())
@virtual(1, more=(2,))
async def test_effects_of_network_faults_end_soon_after_them(name, seed):
    story = mishaps.read(name)
    outcome = await mishaps.play(story, seed)
    assert not outcome.misses(story.bars), (story.name, outcome)
    assert not outcome.faults


@pytest.mark.acceptance
@virtual(1, more=(2,))
async def test_a_swarm_that_mostly_slept_for_a_quarter_of_its_run_loses_at_most_a_point(seed):
    """Those that slept miss 90 of 400 rounds, and continue in the others' round."""
    story = mishaps.read("sleep")
    nothing = msgspec.structs.replace(story, mishaps=tuple(msgspec.structs.replace(it, for_s=0.0) for it in story.mishaps))
    undisturbed = mean(await mishaps.accuracy(nothing, seed, 400))
    assert mean(await mishaps.accuracy(story, seed, 400)) >= undisturbed - 0.01
