"""Results as Markdown: `python -m benchmarks.table` rewrites the tables in `benchmarks/README.md` from what is stored."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import results
from benchmarks.results import Result, Verdict

PAGE = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- results: made by `python -m benchmarks.table` -->", "<!-- end of results -->"


def show(result: Result) -> str:
    """One result: its circumstances and every figure beside its bound."""
    facts = result.facts
    commit = f"{facts.commit[:10] or 'no commit'}{' with changes' if facts.modified else ''}"
    circumstances = (
        f"{result.date}, {commit}; {facts.cpu}, {facts.cores} cores, {facts.memory_gb:g} GB, {facts.system}; "
        f"Python {facts.python}, torch {facts.torch}, libp2p {facts.libp2p}; "
        f"load average {result.load[0]:.1f} before, {result.load[1]:.1f} after."
    )
    rows = [_row(verdict) for verdict in results.verdicts(result.recipe, result.figures)]
    heading = ["| figure | measured | asked | met |", "|---|---:|---:|---|"]
    lines = [f"### {result.name}", "", result.recipe.title, "", circumstances, "", *heading, *rows]
    return "\n".join(lines)


def page(text: str, shown: Sequence[Result]) -> str:
    """The page with its tables replaced.

    Raises:
        ValueError: the page has no place for them.
    """
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} … {END}")
    tables = "\n\n".join(show(result) for result in shown)
    return f"{head}{BEGIN}\n\n{tables}\n\n{END}{tail}"


def _row(verdict: Verdict) -> str:
    low, high = verdict.bounds
    asked = ", ".join(f"{sign} {_number(bound)}" for sign, bound in (("≥", low), ("≤", high)) if bound is not None)
    met = {None: "", True: "yes", False: "**no**"}[verdict.met]
    return f"| `{verdict.figure}` | {_number(verdict.value)} | {asked} | {met} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def main() -> int:
    """Rewrite the page."""
    PAGE.write_text(page(PAGE.read_text(), results.newest(results.FOLDER)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
