"""Run the examples gallery: `python tools/gallery.py [NAME …]`, and `make gallery` for all. Minutes; nightly, not part of `make test`.

A directory of examples/ with a README.md belongs to it. The README has one block ```bash gallery with one command, and a table under
`## Expected`, a row for each figure: what is looked up in what the command prints with --json, what it was, and which values are accepted.
The command runs as it stands from the repository's root, and exits with 0; every figure must be accepted.

Data are taken from the folder that STARLING_DATA names; an example whose README says that it needs data or a library that are not here is
skipped by name. Exit code 1 if a figure is not accepted, 2 for a name that there is not.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples"
LONGEST_S = 1800
ENGINE = "a Docker engine"
_COMMAND = re.compile(r"^```bash gallery\n(?P<line>[^\n]+)\n```$", re.MULTILINE)
_NEEDS = re.compile(r"^Needs: (?P<what>.+)$", re.MULTILINE)
_NO_NEED = re.compile(r"STARLING_DATA|pip install .*")
_ROW = re.compile(r"^\| `(?P<where>[^`]+)` \| (?P<was>[\d.]+) \| (?P<least>[\d.]+) to (?P<most>[\d.]+) \|$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of a README's table."""

    where: str
    was: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Example:
    """The contents of an example's README."""

    name: str
    command: str
    figures: tuple[Figure, ...]
    needs: tuple[str, ...]
    """Paths inside STARLING_DATA, modules as `import NAME`, or `a Docker engine`."""

    @property
    def missing(self) -> list[str]:
        """Return the `needs` that this machine lacks."""
        data = Path(os.environ.get("STARLING_DATA", "")) if os.environ.get("STARLING_DATA") else None

        def there(need: str) -> bool:
            if need == ENGINE:
                return _engine_answers()
            if need.startswith("import "):
                return importlib.util.find_spec(need.removeprefix("import ")) is not None
            return data is not None and (data / need).exists()

        return [need for need in self.needs if not there(need)]


def _engine_answers() -> bool:
    try:
        return subprocess.run(["docker", "version"], capture_output=True, check=False, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def read(folder: Path) -> Example:
    """Return the example of a directory. Raises ValueError: its README has not one command, or no figure that can be checked."""
    text = (folder / "README.md").read_text()
    commands, rows = _COMMAND.findall(text), list(_ROW.finditer(text.partition("## Expected")[2]))
    if len(commands) != 1 or not rows:
        raise ValueError(
            f"{folder.name}/README.md: needs one block of `bash gallery` and a table of figures, has {len(commands)} and {len(rows)}"
        )
    figures = tuple(Figure(row["where"], *(float(row[key]) for key in ("was", "least", "most"))) for row in rows)
    named = [each for line in _NEEDS.findall(text) for each in re.findall(r"`([^`]+)`", line)]
    needs = tuple(each for each in named if not _NO_NEED.fullmatch(each))
    return Example(folder.name, commands[0], figures, needs)


def gallery() -> list[Example]:
    """Return all examples, by name."""
    return [read(path.parent) for path in sorted(FOLDER.glob("*/README.md"))]


def looked_up(printed: Mapping[str, Any], where: str) -> float:
    """Return a figure of `starling demo --json` by its keys, `alone.value`; of `starling simulate --json` the last mean of the run with
    a label.

    `mix.kind=pet` names a run, "last" the only one. Raises LookupError: it is not there.
    """
    if "runs" not in printed:
        found: Any = printed
        for key in where.split("."):
            found = found[key]
        return float(found)
    runs = [run for run in printed["runs"] if where == "last" or where in {f"{key}={value}" for key, value in run["labels"].items()}]
    if len(runs) != 1:
        raise LookupError(f"{len(runs)} runs are {where}")
    return float(runs[0]["rows"][-1]["mean"])


def judged(example: Example, printed: Mapping[str, Any]) -> Iterator[tuple[Figure, float, bool]]:
    """Yield (figure, what it is now, whether that is accepted)."""
    for figure in example.figures:
        value = looked_up(printed, figure.where)
        yield figure, value, figure.least <= value <= figure.most


def run(example: Example) -> bool:
    """Run one example and print its figures; return whether all are accepted."""
    print(f"{example.name}: {example.command}", flush=True)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(  # noqa: S602 - lines of this repository, which begin with `cd`
        f"{example.command} --json",
        cwd=ROOT,
        shell=True,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=LONGEST_S,
    )
    if done.returncode:
        print(f"  exit code {done.returncode}")
        return False
    fine = True
    for figure, value, accepted in judged(example, json.loads(done.stdout)):
        print(f"  {figure.where}: {value:.4g}, was {figure.was:g}; {'ok' if accepted else f'NOT in {figure.least:g} to {figure.most:g}'}")
        fine &= accepted
    return fine


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition(".")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME")
    named = parser.parse_args(arguments).names
    known = {example.name: example for example in gallery()}
    if unknown := [name for name in named if name not in known]:
        print(f"gallery: no example {unknown[0]!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    failed = []
    for name in named or known:
        if missing := known[name].missing:
            print(f"{name}: skipped, needs {', '.join(missing)}; examples/{name}/README.md says how")
        elif not run(known[name]):
            failed.append(name)
    print(f"{len(failed)} failed{': ' if failed else ''}{', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
