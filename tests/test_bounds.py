"""The page of bounded containers lists exactly those in the code, with their behaviour when full."""

import ast
import re
from collections.abc import Iterator

from tests.harness.processes import ROOT

PAGE = ROOT / "docs/explanation/bounds.md"
ROOMS = ("node/daemon", "node/net", "node/admission", "node/extras", "gossip/membership", "gossip/exchange", "tui/web")
HOLDERS = {"keep", "Shares", "RoundRobin", "Rates", "open_memory_channel", "deque", "CapacityLimiter"}
"""Calls that bound what they hold by an argument."""
NAMED = r"MAX_[A-Z_]+|QUEUED_FRAMES|TRANSFER_PEERS"
"""What such an argument is called; windows over a node's own measurements are not."""
NO_CONTAINERS = {"MAX_STRETCH", "MAX_LINKS", "MAX_OPERATOR", "MAX_ADDRESSES", "MAX_TEXT", "MAX_DRAWN", "MAX_CLAIMS"}
"""Lengths of one message, text or picture."""


def bounded() -> Iterator[tuple[str, str]]:
    """Yield (file, bound) of each container whose bound is a constant: by a call, or by a comparison of its length."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                for bound in set(bounds(node)) - NO_CONTAINERS:
                    yield str(path.relative_to(ROOT)), bound


def bounds(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call) and ast.unparse(node.func).split("[")[0].rsplit(".", 1)[-1] in HOLDERS:
        for each in (*node.args, *(keyword.value for keyword in node.keywords)):
            yield from constants(each, NAMED)
    if isinstance(node, ast.Compare) and any(
        isinstance(each, ast.Call) and ast.unparse(each.func) == "len" for each in (node.left, *node.comparators)
    ):
        for each in (node.left, *node.comparators):
            yield from constants(each, "MAX_[A-Z_]+")


def constants(node: ast.AST, pattern: str) -> Iterator[str]:
    return (it.id for it in ast.walk(node) if isinstance(it, ast.Name) and re.fullmatch(pattern, it.id) and "BYTES" not in it.id)


def rows(first: str) -> list[list[str]]:
    """Return the rows of the table whose first heading is this."""
    table = PAGE.read_text().split(f"| {first} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


def test_the_page_lists_exactly_the_bounded_containers():
    listed = [(row[0].strip("`"), row[1].strip("`")) for row in rows("container")]
    assert len(set(listed)) == len(listed)
    assert set(bounded()) == set(listed)


def test_the_page_says_what_happens_when_each_container_is_full():
    ways = {row[0] for row in rows("when full")}
    said = {row[3] for row in rows("container")}
    assert said == ways
    assert all(row[4] for row in rows("container") if row[3] == "shared"), "shared among whom, by which smaller bound"
