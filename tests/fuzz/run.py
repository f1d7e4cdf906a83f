"""Attack one target with libFuzzer, which keeps inputs that reach new branches of `starling`, and mutates them.

    python -m tests.fuzz.run TARGET --seconds N [--inputs M] [--corpus DIR]

Starts from the target's seeds, lures and regressions, and from what an earlier run left in DIR, where this one adds to it. Exits with 0
N seconds after these were tried, or after M inputs, or with another code at the first input that broke the contract, which is written as
`crash-…`, `timeout-…` or `oom-…` into DIR/broken, ready to be moved to `tests/fuzz/corpus/TARGET`.

An input fails after MAX_INPUT_S, or with more than MAX_MB of memory, resident or requested.
"""

import argparse
import hashlib
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.catalogue import PLANTED, TARGETS
from tests.fuzz.target import load, regressions

INSTRUMENTED = ("starling", "tests")  # of the tests only the targets: their decisions guide the fuzzer
MAX_INPUT_S = 10
MAX_MB = 2048
_FIGURES = (
    r"stat::number_of_executed_units: (\d+)", r"stat::average_exec_per_sec:\s+(\d+)", r"(?m)^#\d+\s+(?:INITED|DONE)\s+cov: (\d+)",
)  # fmt: skip
_START_S = 240.0  # for imports on a busy machine
_ENVIRONMENT = dict(
    os.environ
)  # a copy: if another thread changes os.environ meanwhile, as tests do, execve fails with EFAULT


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one attack.

    Args:
        code: 0 if the target held.
        executed: inputs tried.
        per_s: inputs per second.
        coverage: branches reached, the target's own included.
        wall_s: from start to end, imports included.
        broken: inputs that broke the contract.
        log: all output.
    """

    code: int
    executed: int
    per_s: int
    coverage: int
    wall_s: float
    broken: tuple[Path, ...]
    log: str

    @property
    def why(self) -> str:
        """The end of the log from the failure on."""
        start = max(self.log.find(" === Uncaught Python exception"), self.log.find("ERROR: libFuzzer"), 0)
        return self.log[start : start + 4000] if start else self.log[-4000:]


def attack(name: str, seconds: int, corpus: Path, *options: str) -> Outcome:
    """Attack one target in a process of its own; findings go to `corpus`, further `options` as of this module's command."""
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.fuzz.run", name, f"--seconds={seconds}", f"--corpus={corpus}", *options]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        timeout=2 * seconds + _START_S, env=_ENVIRONMENT,
    )  # fmt: skip
    log = done.stdout.decode(errors="replace")
    figures = (max(map(int, re.findall(pattern, log)), default=0) for pattern in _FIGURES)
    broken = tuple(sorted((corpus / "broken").glob("*")))
    return Outcome(done.returncode, *figures, time.monotonic() - began, broken, log)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description="Attack one decoder.")
    parser.add_argument("target", choices=[*TARGETS, *PLANTED])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--inputs", type=int, default=0, help="most of them; 0: no limit")
    parser.add_argument("--corpus", type=Path, help="folder of findings, for the next run")
    parser.add_argument("--timeout", type=int, default=MAX_INPUT_S, help="seconds per input")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="starling-fuzz-") as scratch:
        fuzz(given.target, given.seconds, given.inputs, given.corpus or Path(scratch), given.timeout)


def fuzz(name: str, seconds: int, inputs: int, corpus: Path, timeout: int) -> None:
    """Does not return: libFuzzer ends the process. Arguments as on the command line."""
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
    began = time.monotonic()
    with suppress(Exception):  # one that breaks the contract is reported by the fuzzer
        for data in given:
            target.run(data)
    seconds += round(time.monotonic() - began)
    arguments = [
        sys.argv[0], str(found), str(seeds), f"-max_total_time={seconds}", f"-runs={inputs or -1}", f"-max_len={target.most_bytes}",
        f"-timeout={timeout}", f"-rss_limit_mb={MAX_MB}", f"-artifact_prefix={broken}/", "-print_final_stats=1", "-use_value_profile=1",
    ]  # fmt: skip
    atheris.Setup(arguments, target.run)
    atheris.Fuzz()


def _limit_memory() -> None:
    """Memory that is requested and never touched is not resident; with the address space bounded it is a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (MAX_MB << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
