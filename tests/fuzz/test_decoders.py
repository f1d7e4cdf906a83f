"""Every decoder takes what is valid and refuses the rest, in the one way it promises, soon, and without much memory.

Here hypothesis mutates; `test_fuzzer.py` does the same with a fuzzer that sees branches.
"""

import time
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.catalogue import TARGETS
from tests.fuzz.memory import peak_bytes
from tests.fuzz.mutation import mutated
from tests.fuzz.target import CORPUS, Target, load, regressions

MOST_SECONDS = 5.0  # seconds of the processor for one input, while traced
EXAMPLES = 40


@cache
def target_of(name: str) -> tuple[Target, tuple[bytes, ...]]:
    """A target, and the inputs to start from; each was run once, so that caches and late imports are no input's memory."""
    target = load(TARGETS[name])
    inputs = (*target.seeds(), *target.lures(), *(path.read_bytes() for path in regressions(name)), b"")
    for data in inputs:
        target.run(data)
    return target, inputs


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_accepted(name):
    target = load(TARGETS[name])
    seeds = list(target.seeds())
    assert seeds
    assert [index for index, data in enumerate(seeds) if not target.run(data)] == []


@pytest.mark.parametrize(
    ("name", "path"), [pytest.param(name, path, id=f"{name}-{path.name}") for name in TARGETS for path in regressions(name)]
)
def test_regressions_stay_fixed(name, path):
    target = target_of(name)[0]
    data = path.read_bytes()
    target.run(data)
    assert peak_bytes(lambda: target.run(data)) <= target.spare_bytes + target.bytes_per_byte * len(data)


def test_every_folder_of_regressions_belongs_to_a_target():
    assert {path.name for path in CORPUS.iterdir()} <= TARGETS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_are_accepted_or_refused_fast_and_cheaply(name):
    target, inputs = target_of(name)

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=mutated(inputs, target.most_bytes) | st.binary(max_size=200))
    def attack(data):
        began = time.process_time()
        peak = peak_bytes(lambda: target.run(data))
        assert time.process_time() - began <= MOST_SECONDS
        assert peak <= target.spare_bytes + target.bytes_per_byte * len(data)

    attack()
