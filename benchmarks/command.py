"""Run `starling …` from this checkout in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import facts


def cases(words: Sequence[str], what: str) -> list[dict[str, Any]]:
    """Return the cases of a `starling bench …`, each with the machine's load around it. Arguments and errors as of `starling`."""
    before = facts.load()
    cases: list[dict[str, Any]] = starling(words, what)["cases"]
    load = [before, facts.load()]
    return [{"load": load, **case} for case in cases]


def starling(words: Sequence[str], what: str) -> dict[str, Any]:
    """Run a command with --json and return what it prints.

    Args:
        words: the command line, without `starling`.
        what: named if it fails.

    Raises:
        RuntimeError: it failed; its own words are on standard error.
    """
    done = subprocess.run(
        [sys.executable, "-m", "starling.node.cli.main", *words],
        stdout=subprocess.PIPE,
        env=facts.environment(),
        cwd=facts.ROOT,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{what}: `starling {words[0]}` ended with {done.returncode}")
    table: dict[str, Any] = json.loads(done.stdout)
    return table
