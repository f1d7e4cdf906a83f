"""Attack one target with libFuzzer, which keeps what reaches new branches of `gossip`, `node` and `robust`, and mutates it on.

    python -m tests.fuzz.run TARGET --seconds N [--inputs M] [--corpus DIR]

Starts from the target's seeds and its regressions, and from what an earlier run left in DIR, where this one adds to it. Ends with 0
N seconds after it is through with these, or after M inputs, or with another number at the first input that broke the promise: that
one is written as `crash-…`, `timeout-…` or `oom-…` into DIR/broken, ready to be moved to `tests/fuzz/corpus/TARGET`.

Ten seconds for one input is a hang; two gigabytes, resident or asked for, are a leak or a lie believed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.fuzz.catalogue import PLANTED, TARGETS
from tests.fuzz.target import Target, load, regressions

INSTRUMENTED = ("starling", "tests")  # of the tests only the targets: their decisions guide the fuzzer
MOST_SECONDS_AN_INPUT = 10
MOST_MEGABYTES = 2048


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description="Attack one decoder.")
    parser.add_argument("target", choices=[*TARGETS, *PLANTED])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--inputs", type=int, default=0, help="most of them; 0: as many as there is time for")
    parser.add_argument("--corpus", type=Path, help="folder that keeps what was found, for the next run")
    parser.add_argument("--timeout", type=int, default=MOST_SECONDS_AN_INPUT, help="seconds that one input may take")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="starling-fuzz-") as scratch:
        attack(given.target, given.seconds, given.inputs, given.corpus or Path(scratch), given.timeout)


def attack(name: str, seconds: int, inputs: int, corpus: Path, timeout: int) -> None:
    """Does not return: libFuzzer ends the process.

    Args:
        name: of the target.
        seconds: how long at most.
        inputs: how many at most; 0: any number.
        corpus: what was found goes here.
        timeout: seconds that one input may take.
    """
    import atheris

    warnings.simplefilter("error")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with atheris.instrument_imports(include=INSTRUMENTED):
        target = load({**TARGETS, **PLANTED}[name])
    found, seeds, broken = corpus / "found", corpus / "seeds", corpus / "broken"
    for folder in (found, seeds, broken):
        folder.mkdir(parents=True, exist_ok=True)
    given = [*target.seeds(), *target.lures(), *(path.read_bytes() for path in regressions(name))]
    for data in given:
        (seeds / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    _limit_memory()
    seconds += _time(target, given)
    arguments = [
        sys.argv[0], str(found), str(seeds), f"-max_total_time={seconds}", f"-runs={inputs or -1}", f"-max_len={target.most_bytes}",
        f"-timeout={timeout}", f"-rss_limit_mb={MOST_MEGABYTES}", f"-artifact_prefix={broken}/", "-print_final_stats=1",
        "-use_value_profile=1",
    ]  # fmt: skip
    atheris.Setup(arguments, target.run)
    atheris.Fuzz()


def _time(target: Target, inputs: Sequence[bytes]) -> int:
    """Seconds that the inputs take, rounded. One that breaks the promise is left to the fuzzer, which tells of it."""
    began = time.monotonic()
    with suppress(Exception):
        for data in inputs:
            target.run(data)
    return round(time.monotonic() - began)


def _limit_memory() -> None:
    """What is asked for and never touched is in no resident set: there the address space says no, and MemoryError is a find."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (MOST_MEGABYTES << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
