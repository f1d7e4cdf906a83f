"""Attack one target with libFuzzer, which keeps inputs that reach new branches of `starling`, and mutates them.

    python -m tests.fuzz.run TARGET… --seconds N [--inputs M] [--corpus DIR]

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
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.catalogue import PLANTED, TARGETS
from tests.fuzz.target import Target, load, regressions

INSTRUMENTED = ("starling", "tests")  # of the tests only the targets: their decisions guide the fuzzer
MAX_INPUT_S = 10
MAX_MB = 2048
_FIGURES = (r"stat::number_of_executed_units: (\d+)", r"stat::average_exec_per_sec:\s+(\d+)", r"(?m)^#\d+\s+(?:INITED|DONE)\s+cov: (\d+)")
_ENVIRONMENT = dict(os.environ)  # a copy: if another thread changes os.environ meanwhile, as tests do, execve fails with EFAULT


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


class Attacks:
    """Targets under attack, `at_a_time` together, in processes forked off one that has imported the libraries once.

    Findings of each go to its folder below `corpus`, further `options` are those of this module's command.
    """

    def __init__(self, names: Sequence[str], corpus: Path, *options: str, at_a_time: int = 2) -> None:
        self._began, self._corpus = time.monotonic(), corpus
        for name in names:
            (corpus / name / "code").unlink(missing_ok=True)  # left by an earlier attack
        command = [sys.executable, "-m", "tests.fuzz.run", *names, f"--corpus={corpus}", f"--at-a-time={at_a_time}", *options]
        self._process = subprocess.Popen(command, cwd=Path(__file__).parents[2], env=_ENVIRONMENT)

    def outcome(self, name: str) -> Outcome:
        """Return the outcome of one attack when it has ended."""
        folder = self._corpus / name
        while not (over := folder / "code").exists():
            if self._process.poll() is not None and not over.exists():
                raise RuntimeError(f"{name}: no outcome")
            time.sleep(0.05)
        log = (folder / "log").read_bytes().decode(errors="replace")
        figures = (max(map(int, re.findall(pattern, log)), default=0) for pattern in _FIGURES)
        broken = tuple(sorted((folder / "broken").glob("*")))
        return Outcome(int(over.read_text()), *figures, time.monotonic() - self._began, broken, log)

    def stop(self) -> None:
        """Ends those that are left."""
        self._process.terminate()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description="Attack decoders.")
    parser.add_argument("targets", metavar="TARGET", nargs="+", choices=[*TARGETS, *PLANTED])
    parser.add_argument("--seconds", type=int, default=60, help="for each")
    parser.add_argument("--inputs", type=int, default=0, help="most of them; 0: no limit")
    parser.add_argument("--corpus", type=Path, help="folder of findings, for the next run")
    parser.add_argument("--timeout", type=int, default=MAX_INPUT_S, help="seconds per input")
    parser.add_argument("--at-a-time", type=int, default=0, help="0: one target, in this process; else logs are in DIR/TARGET/log")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="starling-fuzz-") as scratch:
        corpus, options = given.corpus or Path(scratch), (given.seconds, given.inputs, given.timeout)
        if given.at_a_time:
            _fork(given.targets, corpus, given.at_a_time, options)
        elif len(given.targets) > 1:
            parser.error("argument --at-a-time: is needed for several targets")
        else:
            fuzz(given.targets[0], corpus, *options)


def _fork(names: Iterable[str], corpus: Path, at_a_time: int, options: tuple[int, int, int]) -> None:
    """Attacks each in a child of this process, with output and exit code in its folder."""
    names = list(names)
    for name in names:
        _instrumented(name)
    running: dict[int, str] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    def end_one() -> None:
        child, status = os.wait()
        made = corpus / running.pop(child) / "code"
        made.with_suffix(".part").write_text(str(os.waitstatus_to_exitcode(status)))
        made.with_suffix(".part").rename(made)

    try:
        for name in names:
            while len(running) >= at_a_time:
                end_one()
            (corpus / name).mkdir(parents=True, exist_ok=True)
            if child := os.fork():
                running[child] = name
                continue
            running.clear()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            log = os.open(corpus / name / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            fuzz(name, corpus / name, *options)
        while running:
            end_one()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for child in running:
            os.kill(child, signal.SIGKILL)


def fuzz(name: str, corpus: Path, seconds: int, inputs: int, timeout: int) -> None:
    """Does not return: libFuzzer ends the process. Arguments as on the command line."""
    import atheris

    warnings.simplefilter("error")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    target = _instrumented(name)
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
        sys.argv[0],
        str(found),
        str(seeds),
        f"-max_total_time={seconds}",
        f"-runs={inputs or -1}",
        f"-max_len={target.most_bytes}",
        f"-timeout={timeout}",
        f"-rss_limit_mb={MAX_MB}",
        f"-artifact_prefix={broken}/",
        "-print_final_stats=1",
        "-use_value_profile=1",
    ]

    def run(data: bytes) -> bool:
        try:
            return target.run(data)
        except BaseException:
            signal.setitimer(signal.ITIMER_REAL, 0)  # the fuzzer's, which must not end the process before the input is written
            raise

    atheris.Setup(arguments, run)
    atheris.Fuzz()


def _instrumented(name: str) -> Target:
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        return load({**TARGETS, **PLANTED}[name])


def _limit_memory() -> None:
    """Memory that is requested and never touched is not resident; with the address space bounded it is a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (MAX_MB << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
