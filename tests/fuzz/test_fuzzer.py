"""libFuzzer, through atheris, against decoders that meet strangers first: 400 inputs or five seconds each; all, for longer, in `make fuzz`.

STARLING_FUZZ_SECONDS is the time for each, STARLING_FUZZ_CORPUS a folder that keeps findings for the next run. Targets run in processes of
their own, two at a time.
"""

import os
from functools import cache
from pathlib import Path

import pytest

from tests.fuzz.catalogue import FIRST, PLANTED, TARGETS
from tests.fuzz.run import Attacks
from tests.fuzz.target import load

pytest.importorskip("atheris", reason="the fuzzer is for CPython on Linux x86_64")
pytestmark = [pytest.mark.fuzz, pytest.mark.slow]

SECONDS = int(os.environ.get("STARLING_FUZZ_SECONDS", "5"))
INPUTS = 400  # number of inputs of each target if findings are not stored
PLANTED_S = 60  # ends at once when the bug is found
SOME = 20  # inputs beyond those it starts from, on the busiest machine


@pytest.fixture(scope="module")
def attacked(request, tmp_path_factory):
    """Name -> outcome; the attacks of all selected tests start with the first use."""
    items = [it for it in request.session.items if it.fspath == request.fspath and hasattr(it, "callspec")]
    names = {item.callspec.params["name"]: None for item in items}
    kept, scratch = os.environ.get("STARLING_FUZZ_CORPUS"), tmp_path_factory.mktemp("fuzz")

    def group(name):
        return "hangs" if name == "planted_hangs" else "bugs" if name in PLANTED else "decoders"

    @cache
    def attacks(which):
        some = [name for name in names if group(name) == which]
        if which == "decoders" and kept:
            return Attacks(some, Path(kept).resolve(), f"--seconds={SECONDS}")
        if which == "decoders":
            return Attacks(some, scratch, f"--seconds={SECONDS}", f"--inputs={INPUTS}")
        for name in some:
            (scratch / name).mkdir()
            (scratch / name / "code").write_text("0")  # as an earlier attack may have left it
        return Attacks(some, scratch, f"--seconds={PLANTED_S}", *(["--timeout=1"] if which == "hangs" else []))

    begun = {}
    yield lambda name: begun.setdefault(group(name), attacks(group(name))).outcome(name)
    for each in begun.values():
        each.stop()


@pytest.mark.timeout(600 + 60 * SECONDS)
@pytest.mark.parametrize("name", [name if name in FIRST else pytest.param(name, marks=pytest.mark.acceptance) for name in TARGETS])
def test_no_input_breaks_its_decoder_s_contract(name, attacked):
    """Another exception than the documented one, ten seconds, or two gigabytes end the fuzzer with another code than 0."""
    outcome = attacked(name)
    figures = f"{outcome.executed:,} inputs, {outcome.per_s:,} per second, {outcome.coverage:,} branches"
    print(f"\n{name}: {figures}, {outcome.wall_s:.0f} s")  # noqa: T201
    assert outcome.code == 0, f"{outcome.why}\n{[path.read_bytes() for path in outcome.broken]}"
    target = load(TARGETS[name])
    started = len({*target.seeds(), *target.lures()})
    assert outcome.executed >= started + SOME, "it tried inputs of its own"
    assert outcome.coverage >= target.reach, "it got into the decoder"


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [("planted_raises", "crash", "KeyError"), ("planted_believes", "crash", "MemoryError"), ("planted_hangs", "timeout", "timeout after")],
)
def test_a_planted_bug_is_detected(name, kind, says, attacked):
    outcome = attacked(name)
    assert outcome.code != 0
    assert says in outcome.log
    assert [path.name.startswith(f"{kind}-") for path in outcome.broken] == [True]
    assert outcome.broken[0].read_bytes().startswith(b"Star")
