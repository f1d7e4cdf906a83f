"""Results as Markdown: `python -m benchmarks.table` rewrites all tables from stored results.

`benchmarks/README.md` shows the newest result of every recipe. A page in `docs/reproductions` has places of its own, one for each recipe
that it is about:

    <!-- result: consensus -->
    <!-- end of result -->
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

import msgspec

from benchmarks import facts, never_worse, recipes, results, tracking
from benchmarks.recipes import NeverWorseRecipe, TrackingRecipe
from benchmarks.results import Result, Run, Verdict

PAGES = facts.ROOT / "docs" / "reproductions"
PAGE = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- results: made by `python -m benchmarks.table` -->", "<!-- end of results -->"
OLDER = "Measured before what it measures"
PLACE = re.compile(r"(<!-- result: ([a-z0-9_]+) -->\n).*?(<!-- end of result -->)", re.DOTALL)


def show(result: Result) -> str:
    """Return the lines of one result: its circumstances, bounds, and all figures."""
    return "\n\n".join([f"### {result.name}", result.recipe.title, circumstances(result), *_tables(result)])


def mark(result: Result) -> str:
    """Return a line if the measured code has changed since the result's commit; else "".

    Its recipe file says which paths that is; of one that is gone nothing is known.
    """
    try:
        paths = recipes.load(recipes.find(result.name)).measures
    except ValueError:
        return ""
    last = facts.changed_since(result.facts.commit, paths)
    return f"**{OLDER} ({', '.join(paths)}) was last changed.**" if last else ""


def unmarked(text: str) -> str:
    """Return a page without its marks: they follow the repository and not the results."""
    return re.sub(rf"\n\n\*\*{OLDER} [^\n]*\*\*(?=\n)", "", text)


def circumstances(result: Result) -> str:
    """Return when, on what machine and under what load a result was measured."""
    machine = result.facts
    commit = f"{machine.commit[:10] or 'no commit'}{' with changes' if machine.modified else ''}"
    return (
        f"{result.date}, {commit}; {machine.cpu}, {machine.cores} cores, {machine.memory_gb:g} GB, {machine.system}; "
        f"Python {machine.python}, torch {machine.torch}, libp2p {machine.libp2p}; "
        f"load average {result.load[0]:.1f} before, {result.load[1]:.1f} after."
    )


def _tables(result: Result) -> Iterator[str]:
    bounded = [verdict for verdict in results.verdicts(result.recipe, result.figures) if verdict.met is not None]
    if bounded:
        yield _grid([["asked", "bound", "measured", "met"], *map(_asked, bounded)])
    if isinstance(result.recipe, TrackingRecipe):
        yield _cells(result, result.recipe)
        names = {f"{'-'.join(cell)}." for cell in tracking.cells(result.recipe)}
        rest = {name: value for name, value in result.figures.items() if f"{name.partition('.')[0]}." not in names}
        yield from map(_grid, _grouped(rest))
    elif isinstance(result.recipe, NeverWorseRecipe):
        names = {never_worse.name(run) for run in result.runs}
        yield from map(_grid, _grouped({key: value for key, value in result.figures.items() if key.rpartition(".")[0] not in names}))
        yield _worse(result)
    else:
        yield from map(_grid, _grouped(result.figures))


def _worse(result: Result) -> str:
    """Return the cells in which the default is worse than plain averages at some evaluation, for each metric the worst first."""
    rows = [["worse", "metric", "least difference", "after rounds", "evaluations below", "difference at the end", "plain averages"]]
    worse = [run for run in result.runs if run["worse"]]
    for run in sorted(worse, key=lambda run: (run["metric"], run["worst"] is not None, run["worst"] or 0.0)):
        shown = [f"`{never_worse.name(run)}`", run["metric"].replace("_", " "), _uncertain(run, "worst")]
        shown += [_number(run["worst_round"]), f"{run['below']} of {len(run['rounds'])}", _uncertain(run, "end")]
        default, plain = run["diverged"]
        diverged = f"; {default} diverged, of plain averages {plain}" if default or plain else ""
        rows.append([*shown, f"{_number(run['plain_end'])}{diverged}"])
    return _grid(rows) if worse else "Worse in no cell."


def _uncertain(run: Run, figure: str) -> str:
    """Return a difference ± its standard error."""
    error = run[f"{figure}_error"]
    return _number(run[figure]) + (f" ± {error:.2g}" if error is not None else "")


def _cells(result: Result, recipe: TrackingRecipe) -> str:
    """Return a table with cells as rows and methods as columns: mean ± standard deviation over seeds, compared with the first method."""
    rows = [[result.runs[0]["metric"].replace("_", " "), *(f"`{method}`" for method in recipe.methods)]]
    for cell in map("-".join, tracking.cells(recipe)):
        shown = [f"`{cell}`"]
        for method in recipe.methods:
            value, deviation = (table.get(f"{cell}.{method}") for table in (result.figures, result.spread))
            own = "diverged" if value is None else _number(value)
            if deviation is not None:
                own += f" ± {deviation:.2g}"
            sign = tracking.mark(recipe, result.runs[0]["higher_is_better"], result.figures, result.spread, cell, method)
            shown.append(f"{own} {sign}".rstrip())
        rows.append(shown)
    return _grid(rows)


def _changed(result: Result) -> str:
    """Return what is said of a result whose recipe is another today; "" for the same, and for one that is not among the recipes."""
    path = recipes.FOLDER / f"{result.name}.toml"
    if not path.is_file() or msgspec.structs.replace(recipes.load(path), measures=result.recipe.measures) == result.recipe:
        return ""
    return "Measured by an earlier form of this recipe, with the rules of then; not yet measured anew."


def fill(text: str, shown: Sequence[Result], marks: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a page of `docs/reproductions` with the tables of the recipes that it names.

    Raises:
        ValueError: it names one of which no result is stored.
    """
    by_name = {result.name: result for result in shown}

    def filled(place: re.Match[str]) -> str:
        begin, name, end = place.groups()
        if name not in by_name:
            raise ValueError(f"no result of {name}; there are {', '.join(by_name)}")
        result = by_name[name]
        source = f"From [{results.file_name(result)}](../../benchmarks/results/{results.file_name(result)}): "
        older = "".join(f"\n\n{words}" for words in (marks.get(name), _changed(result)) if words)
        return f"{begin}\n{source}{circumstances(result)}{older}\n\n" + "\n\n".join(_tables(result)) + f"\n\n{end}"

    return PLACE.sub(filled, text)


def page(text: str, shown: Sequence[Result], marks: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the page with its tables replaced.

    Raises:
        ValueError: the page has no place for them.
    """
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} … {END}")
    tables = "\n\n".join(
        show(each).replace(circumstances(each), f"{circumstances(each)}\n\n{marks[each.name]}") if marks.get(each.name) else show(each)
        for each in shown
    )
    return f"{head}{BEGIN}\n\n{tables}\n\n{END}{tail}"


def _asked(verdict: Verdict) -> list[str]:
    low, high = verdict.bounds
    bound = ", ".join(f"{sign} {_number(value)}" for sign, value in (("≥", low), ("≤", high)) if value is not None)
    return [f"`{verdict.figure}`", bound, _number(verdict.value), "yes" if verdict.met else "**no**"]


def _grouped(figures: Mapping[str, float | None]) -> Iterator[list[list[str]]]:
    """Return tables of figures, which are called group.column: groups that have the same columns share a table."""
    groups: dict[str, dict[str, str]] = {}
    for name, value in figures.items():
        group, _, column = name.partition(".")
        groups.setdefault(group, {})[column] = _number(value)
    for columns, rows in groupby(groups.items(), key=lambda item: tuple(item[1])):
        yield [["", *columns], *([f"`{group}`", *cells.values()] for group, cells in rows)]


def _grid(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first row is the heading."""
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|---" + "|---:" * (len(rows[0]) - 1) + "|", *body])


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def main() -> int:
    """Rewrite the pages; return the exit code: 1 if a page names a recipe without a result, or if git is missing."""
    if shutil.which("git") is None:
        print("git is missing: it tells which results are of older code; install git and run `python -m benchmarks.table`", file=sys.stderr)
        return 1
    shown = results.newest(results.FOLDER)
    marks = {result.name: mark(result) for result in shown}
    for name, older in marks.items():
        if older:
            print(f"{name}: {older.strip('*')}", file=sys.stderr)
    PAGE.write_text(page(PAGE.read_text(), shown, marks))
    failed = 0
    for path in sorted(PAGES.glob("*.md")):
        try:
            path.write_text(fill(path.read_text(), shown, marks))
        except ValueError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
