"""Figures of how the code is built, and their limits, which only shrink: `python tools/figures.py` exits with 1 if one is exceeded.

    branches in the core files     if and elif, conditional expressions, cases of match, for, while, except, and conditions of
                                   comprehensions, by `ast`, in the files of CORE
    questions for the kind of edge calls of swaps, gathers, broadcasts, tracks, controls, pulls and replaces, isinstance with a protocol of
                                   a kind, and comparisons with a member of EdgeKind, in all files of node/ and gossip/
    lines of the largest file      in node/engine, and in node/daemon
    attributes of a class          distinct `self.NAME` that its methods set, and fields that its body declares; in engine and daemon
    arguments of a constructor     of `__init__` without self, or fields of a dataclass without those that begin with an underscore; there
    functions of rank D, of rank E cyclomatic complexity from 21 to 30, and above, as radon counts it: 1, and one for each if, elif,
                                   conditional expression, operand of `and` and `or` beyond the first, for, while, except, assert, case,
                                   else of a loop or a try, and comprehension with its conditions; closures are part of their function
    complexity by mccabe           of the worst function, by ruff C901, as [tool.ruff] limits it
    stops, turnings back           of a local step and of an update, by a trace (`tools/stops.py`)
    accesses to others' attributes that begin with an underscore, in tests, by ruff SLF001

Who brings a figure down lowers its limit.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[1]
CORE = (
    "gossip/replica.py",
    "gossip/edge_memory.py",
    "gossip/mix/kinds.py",
    "node/engine/worker.py",
    "node/engine/task_driver.py",
    "node/engine/gossip_session.py",
    "node/engine/rounds.py",
    "node/engine/clock_rounds.py",
    "node/engine/vectors.py",
    "node/engine/late_join.py",
    "node/engine/store.py",
    "node/engine/exchange/[!ab]*.py",
    "node/engine/exchange/broadcasts.py",
    "node/engine/local/*.py",
    "node/engine/process.py",
    "node/engine/optimizers.py",
    "node/engine/flat_optimizer.py",
    "node/engine/pieces.py",
    "node/engine/forward.py",
    "node/engine/schedules.py",
    "node/engine/corrections.py",
    "node/engine/stretches.py",
    "node/engine/numerics.py",
    "node/daemon/training/*.py",
    "node/daemon/exchange/pairwise.py",
    "node/daemon/exchange/rounds.py",
    "node/daemon/exchange/visits.py",
    "node/daemon/exchange/budget.py",
    "node/daemon/exchange/durations.py",
)
"""Files, or patterns of such, with what the engine and its daemon do in a round: the ten most edited of node/engine and node/daemon, and
what they became."""
SHELLS = ("node/engine", "node/daemon")
PRODUCT = ("gossip", "robust", "node", "tui")
QUESTIONS = frozenset({"swaps", "gathers", "broadcasts", "tracks", "controls", "pulls", "replaces"})
KINDS = frozenset({"Averaging", "Swapping", "Gathering", "Broadcasting", "Tracking", "Controlling"})
D, E = 21, 31

LIMITS: Mapping[str, int] = MappingProxyType(
    {
        "branches in the core files": 370,
        "questions for the kind of edge": 2,
        "lines of the largest file in engine": 240,
        "lines of the largest file in daemon": 255,
        "attributes of a class": 15,
        "arguments of a constructor": 6,
        "functions of rank D": 2,
        "functions of rank E": 0,
        "complexity by mccabe": 15,
        "accesses to others' attributes in tests": 21,
        "stops, local step by default": 22,
        "turnings back, local step by default": 2,
        "stops, update answered": 44,
        "turnings back, update answered": 9,
        "stops, update applied": 35,
        "turnings back, update applied": 4,
    }
)
"""They only shrink."""


def files(*folders: str) -> Iterator[Path]:
    """Yield the Python files of folders."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    """Return the syntax of a file."""
    return ast.parse(path.read_text())


def branches(tree: ast.AST) -> int:
    """Return the branches of a file."""
    kinds = (ast.If, ast.IfExp, ast.match_case, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler)
    return sum(len(node.ifs) if isinstance(node, ast.comprehension) else isinstance(node, kinds) for node in ast.walk(tree))


def core() -> list[Path]:
    """Return the files of CORE. Raises SystemExit: a pattern is for none."""
    result = []
    for pattern in CORE:
        matching = sorted(ROOT.glob(pattern))
        if not matching:
            sys.exit(f"figures: CORE: {pattern} is gone; put what it became in its place")
        result += matching
    return result


def questions(tree: ast.AST) -> int:
    """Return how often a file asks for the kind of edge."""
    return sum(map(_asks, ast.walk(tree)))


def _asks(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
            return any(_last(each) in KINDS for each in ast.walk(kinds))
        case ast.Call(func=called):
            return _last(called) in QUESTIONS
        case ast.Compare(comparators=sides) | ast.MatchValue(value=ast.Attribute() as sides):
            at = sides if isinstance(sides, list) else [sides]
            return any(isinstance(each, ast.Attribute) and ast.unparse(each.value) == "EdgeKind" for each in at)
    return False


def _last(name: ast.AST) -> str:
    """Return the last word of a dotted name."""
    return name.id if isinstance(name, ast.Name) else name.attr if isinstance(name, ast.Attribute) else ""


def classes(*folders: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield every class with where it is."""
    for path in files(*folders):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                yield f"{path.relative_to(ROOT)} {node.name}", node


def _declared(of: ast.ClassDef) -> dict[str, ast.AnnAssign]:
    return {
        each.target.id: each
        for each in of.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and "ClassVar" not in ast.unparse(each.annotation)
    }


def attributes(of: ast.ClassDef) -> int:
    """Return how many attributes an object of a class has."""
    names = {
        node.attr
        for node in ast.walk(of)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }
    return len(names | _declared(of).keys())


def arguments(of: ast.ClassDef) -> int:
    """Return the number of arguments of a class's constructor; 0 if it defines none."""
    for each in of.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            taken = each.args
            return len(taken.posonlyargs) + len(taken.args) + len(taken.kwonlyargs) - 1
    if not any("dataclass" in ast.unparse(each) for each in of.decorator_list):
        return 0
    return sum(not name.startswith("_") and "init=False" not in ast.unparse(each) for name, each in _declared(of).items())


def complexity(node: ast.AST) -> int:
    """Return the cyclomatic complexity of a function."""
    result = int(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))
    match node:
        case ast.BoolOp(values=values):
            result += len(values) - 1
        case ast.If() | ast.IfExp() | ast.Assert() | ast.ExceptHandler() | ast.match_case():
            result += 1
        case ast.For(orelse=rest) | ast.AsyncFor(orelse=rest) | ast.While(orelse=rest):
            result += 1 + bool(rest)
        case ast.Try(orelse=rest):
            result += bool(rest)
        case ast.comprehension(ifs=conditions):
            result += 1 + len(conditions)
    return result + sum(map(complexity, ast.iter_child_nodes(node)))


def functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield functions and methods, but not what is within them."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        else:
            yield from functions(node)


def ruff(rule: str, folders: tuple[str, ...], *options: str) -> list[str]:
    """Return the messages of a rule, without our own exceptions."""
    words = ["ruff", "check", "--isolated", "--no-cache", "--select", rule, "--output-format", "json", *options, *folders]
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return [each["message"] for each in json.loads(done.stdout)]


def static() -> dict[str, int]:
    """Return the figures that are read from the files."""
    trees = [parsed(path) for path in files(*PRODUCT)]
    ranks = [complexity(each) for tree in trees for each in functions(tree)]
    worst = ruff("C901", PRODUCT, "--config", "lint.mccabe.max-complexity=5")
    shells = [each for _, each in classes(*SHELLS)]
    return {
        "branches in the core files": sum(branches(parsed(path)) for path in core()),
        "questions for the kind of edge": sum(questions(parsed(path)) for path in files("node", "gossip")),
        "lines of the largest file in engine": _longest("node/engine"),
        "lines of the largest file in daemon": _longest("node/daemon"),
        "attributes of a class": max(map(attributes, shells)),
        "arguments of a constructor": max(map(arguments, shells)),
        "functions of rank D": sum(D <= each < E for each in ranks),
        "functions of rank E": sum(each >= E for each in ranks),
        "complexity by mccabe": max(int(re.findall(r"\((\d+) >", each)[0]) for each in worst),
        "accesses to others' attributes in tests": len(ruff("SLF001", ("tests",))),
    }


def figures() -> dict[str, int]:
    """Return all figures."""
    from tools import stops  # noqa: PLC0415 — imports torch

    result = static()
    for name, way in stops.measure().items():
        result |= {f"stops, {name}": len(way.stops), f"turnings back, {name}": way.turnings}
    return result


def _longest(folder: str) -> int:
    return max(len(path.read_text().splitlines()) for path in files(folder))


def main() -> int:
    """Print figures and limits; return the exit code."""
    result = figures()
    for name, figure in result.items():
        word = "exceeded" if figure > LIMITS[name] else "lower the limit" if figure < LIMITS[name] else ""
        print(f"{name:44} {figure:5} {LIMITS[name]:5}  {word}".rstrip())
    return int(any(figure > LIMITS[name] for name, figure in result.items()))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
