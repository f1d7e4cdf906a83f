"""Attacks in processes of their own, and what came of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_EXECUTED = re.compile(r"stat::number_of_executed_units: (\d+)")
_PER_SECOND = re.compile(r"stat::average_exec_per_sec:\s+(\d+)")
_COVERED = re.compile(r"^#\d+\s+(?:INITED|DONE)\s+cov: (\d+)", re.MULTILINE)
_PATIENCE_S = 240.0  # for imports on a busy machine
# Of our own: one that another thread changes meanwhile, as tests do, makes execve fail with EFAULT.
_ENVIRONMENT = dict(os.environ)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one attack.

    Args:
        code: 0 if the target stood.
        executed: inputs tried.
        per_s: of them, a second.
        coverage: branches that inputs took, the targets' own included.
        wall_s: from start to end, imports included.
        broken: inputs that broke the promise.
        log: all that was printed.
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
        """The end of the log from where it went wrong."""
        start = max(self.log.find(" === Uncaught Python exception"), self.log.find("ERROR: libFuzzer"), 0)
        return self.log[start : start + 4000] if start else self.log[-4000:]


def attack(name: str, seconds: int, corpus: Path, *options: str) -> Outcome:
    """Attack one target and wait for the end.

    Args:
        name: of the target.
        seconds: for how long.
        corpus: folder for what is found.
        options: more of them for `tests.fuzz.run`.
    """
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.fuzz.run", name, f"--seconds={seconds}", f"--corpus={corpus}", *options]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        timeout=2 * seconds + _PATIENCE_S, env=_ENVIRONMENT,
    )  # fmt: skip
    log = done.stdout.decode(errors="replace")
    executed, per_s, coverage = (
        max(map(int, each.findall(log)), default=0) for each in (_EXECUTED, _PER_SECOND, _COVERED)
    )
    broken = tuple(sorted((corpus / "broken").glob("*")))
    return Outcome(done.returncode, executed, per_s, coverage, time.monotonic() - began, broken, log)
