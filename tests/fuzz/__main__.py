"""Attack all targets, or those that are named, two at a time: `python -m tests.fuzz [TARGET …]`, or `make fuzz`."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.catalogue import TARGETS
from tests.fuzz.outcome import Outcome, attack
from tests.fuzz.run import MOST_SECONDS_AN_INPUT


def main() -> int:
    """Print a line a target; 0 if all of them stood."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", default=list(TARGETS), metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=600, help="for each target")
    parser.add_argument(
        "--inputs", type=int, default=0, help="for each target at most; 0: as many as there is time for"
    )
    parser.add_argument(
        "--timeout", type=int, default=MOST_SECONDS_AN_INPUT,
        help="seconds by the clock that one input may take; more beside other work",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument(
        "--corpus", type=Path, default=Path("build/fuzz"), help="folder that keeps what was found, for the next run"
    )
    given = parser.parse_args()
    options = (f"--inputs={given.inputs}", f"--timeout={given.timeout}")
    print(f"{'target':18} {'inputs':>12} {'a second':>10} {'branches':>9} {'seconds':>8}")  # noqa: T201
    with ThreadPoolExecutor(given.jobs) as pool:
        attacks = {
            name: pool.submit(attack, name, given.seconds, given.corpus.resolve() / name, *options)
            for name in given.targets
        }
        wrong = [name for name, each in attacks.items() if _told(name, each.result())]
    return int(bool(wrong))


def _told(name: str, outcome: Outcome) -> bool:
    """Say how it went -> whether it went wrong."""
    figures = f"{outcome.executed:12,} {outcome.per_s:10,} {outcome.coverage:9,} {outcome.wall_s:8.0f}"
    print(f"{name:18} {figures}", flush=True)  # noqa: T201
    if outcome.code:
        print(outcome.why, *outcome.broken, sep="\n", flush=True)  # noqa: T201
    return outcome.code != 0


if __name__ == "__main__":
    sys.exit(main())
