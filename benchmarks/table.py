"""Results as Markdown: `python -m benchmarks.table` rewrites the tables in `benchmarks/README.md` from what is stored."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks import results
from benchmarks.results import Result, Verdict

PAGE = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- results: made by `python -m benchmarks.table` -->", "<!-- end of results -->"


def show(result: Result) -> str:
    """One result: its circumstances, what was asked, and all figures."""
    facts = result.facts
    commit = f"{facts.commit[:10] or 'no commit'}{' with changes' if facts.modified else ''}"
    circumstances = (
        f"{result.date}, {commit}; {facts.cpu}, {facts.cores} cores, {facts.memory_gb:g} GB, {facts.system}; "
        f"Python {facts.python}, torch {facts.torch}, libp2p {facts.libp2p}; "
        f"load average {result.load[0]:.1f} before, {result.load[1]:.1f} after."
    )
    bounded = [verdict for verdict in results.verdicts(result.recipe, result.figures) if verdict.met is not None]
    parts = [f"### {result.name}", result.recipe.title, circumstances]
    if bounded:
        parts.append(_grid([["asked", "bound", "measured", "met"], *map(_asked, bounded)]))
    return "\n\n".join([*parts, *map(_grid, _grouped(result.figures))])


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


def _asked(verdict: Verdict) -> list[str]:
    low, high = verdict.bounds
    bound = ", ".join(f"{sign} {_number(value)}" for sign, value in (("≥", low), ("≤", high)) if value is not None)
    return [f"`{verdict.figure}`", bound, _number(verdict.value), "yes" if verdict.met else "**no**"]


def _grouped(figures: Mapping[str, float]) -> Iterator[list[list[str]]]:
    """A figure is called group.column: groups that have the same columns share a table."""
    groups: dict[str, dict[str, str]] = {}
    for name, value in figures.items():
        group, _, column = name.partition(".")
        groups.setdefault(group, {})[column] = _number(value)
    for columns, rows in groupby(groups.items(), key=lambda item: tuple(item[1])):
        yield [["", *columns], *([f"`{group}`", *cells.values()] for group, cells in rows)]


def _grid(rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first row is the heading."""
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|---" + "|---:" * (len(rows[0]) - 1) + "|", *body])


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def main() -> int:
    """Rewrite the page."""
    PAGE.write_text(page(PAGE.read_text(), results.newest(results.FOLDER)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
