"""libFuzzer, by way of atheris, against every decoder: a second or two each here, `make fuzz` for ten minutes each.

STARLING_FUZZ_SECONDS says how long. The targets run in processes of their own, two at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.fuzz.catalogue import PLANTED, TARGETS
from tests.fuzz.outcome import Outcome, attack
from tests.fuzz.target import load

pytest.importorskip("atheris", reason="the fuzzer is for CPython on Linux x86_64")
pytestmark = [pytest.mark.fuzz, pytest.mark.slow]

SECONDS = int(os.environ.get("STARLING_FUZZ_SECONDS", "1"))
AT_A_TIME = 2
PLANTED_S = 60  # ends at once when the bug is found
SOME = 20  # inputs beyond those it starts from, on the busiest machine

Attack = Callable[[str], Outcome]


@pytest.fixture(scope="module")
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attack]:
    """What came of the attack on a target. All that are asked for begin with the first question."""
    wanted = [
        item.callspec.params["name"]
        for item in request.session.items
        if item.fspath == request.fspath and hasattr(item, "callspec")
    ]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        attacks: dict[str, Future[Outcome]] = {}
        for name in wanted:
            corpus = tmp_path_factory.mktemp(name)
            hangs = ("--timeout", "1") if name == "planted_hangs" else ()
            attacks[name] = pool.submit(attack, name, SECONDS if name in TARGETS else PLANTED_S, corpus, *hangs)
        yield lambda name: attacks[name].result()
        for each in attacks.values():
            each.cancel()


@pytest.mark.timeout(600 + 60 * SECONDS)
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_the_promise_of_its_decoder(name, attacked):
    """Another exception than the documented one, ten seconds, or two gigabytes end the fuzzer with another code than 0."""
    outcome = attacked(name)
    assert outcome.code == 0, f"{outcome.why}\n{[path.read_bytes() for path in outcome.broken]}"
    target = load(TARGETS[name])
    started = len({*target.seeds(), *target.lures()})
    assert outcome.executed >= started + SOME, "it tried something of its own"
    assert outcome.coverage >= target.reach, "it got into the decoder"


@pytest.mark.parametrize(("name", "kind", "says"), [
    ("planted_raises", "crash", "KeyError"), ("planted_believes", "crash", "MemoryError"), ("planted_hangs", "timeout", "timeout after"),
])  # fmt: skip
def test_a_bug_that_is_planted_is_found(name, kind, says, attacked):
    """Behind four bytes that chance does not guess: if these stay hidden, silence means nothing."""
    outcome = attacked(name)
    assert outcome.code != 0
    assert says in outcome.log
    assert [path.name.startswith(f"{kind}-") for path in outcome.broken] == [True]
    assert outcome.broken[0].read_bytes().startswith(b"Star")


def test_every_planted_bug_is_looked_for():
    assert set(PLANTED) == {"planted_raises", "planted_believes", "planted_hangs"}
