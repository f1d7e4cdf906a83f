"""The page of a node's deadlines agrees with the code: each rule, each constant, each key."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from starling.gossip.exchange import wait_rules
from starling.node.config.schema import Manifest, NodeConfig

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "waiting.md"
TEXT = PAGE.read_text()
SHELLS = ("node/daemon", "node/net", "node/extras/crew/daemon")
MACHINES = ("gossip/pipeline",)
"""Whose deadlines are numbers that their shells are told."""
WAITING = {"move_on_after", "fail_after", "move_on_at", "fail_at", "CancelScope"}
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*_S")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the rows of all tables below a heading, without their heads."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")[1:-1]] for table in tables for line in table.splitlines()[2:]]


def constants(tree: ast.Module) -> dict[str, float]:
    """Return the numbers that a module assigns to names at top level."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            (target,) = node.targets
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for name, value in zip(names, values, strict=False):
                if isinstance(name, ast.Name) and isinstance(value, ast.Constant):
                    found[name.id] = value.value
    return found


def known(path: Path, tree: ast.Module) -> dict[str, float]:
    """Return numbers by the names that a module defines or imports for them."""
    found = constants(tree)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("starling."):
            source = ROOT / (node.module.removeprefix("starling.").replace(".", "/") + ".py")
            if source.exists():
                theirs = constants(ast.parse(source.read_text()))
                found |= {each.asname or each.name: theirs[each.name] for each in node.names if each.name in theirs}
    return found


def deadlines() -> Iterator[tuple[str, float]]:
    """Return the constants in deadlines of scopes, by name and value."""
    for shell in SHELLS:
        for path in sorted((ROOT / shell).rglob("*.py")):
            tree = ast.parse(path.read_text())
            values = known(path, tree)
            for call in ast.walk(tree):
                if isinstance(call, ast.Call) and ast.unparse(call.func).rsplit(".", 1)[-1] in WAITING:
                    for node in ast.walk(call):
                        if isinstance(node, ast.Name) and CONSTANT.fullmatch(node.id):
                            yield node.id, values[node.id]


def test_the_rules_on_the_page_are_those_in_the_code_in_their_order():
    heading = "A link of a round, or a visit"
    named = [match[1] for row in rows(heading) if (match := re.fullmatch(r"`(\w+)`", row[0]))]
    assert named == [rule.__name__ for rule in wait_rules.RULES]


@pytest.mark.parametrize("rule", wait_rules.RULES)
def test_page_and_code_name_the_same_decisions_of_a_rule(rule):
    (row,) = [row for row in rows("A link of a round, or a visit") if row[0] == f"`{rule.__name__}`"]
    linked = re.findall(r"\[(\d{4})\]", row[-1])
    assert linked
    assert linked == re.findall(r"\d{4}", rule.__doc__.split("\n\n")[0])


def test_the_page_lists_exactly_the_constants_of_deadlines_with_their_values():
    in_code = set(deadlines())
    assert len(in_code) > 25
    listed = {(name.strip("`"), float(seconds)) for name, seconds, _of in rows("Each constant of a deadline")}
    assert in_code - listed == set()
    there = {
        it for shell in SHELLS + MACHINES for path in (ROOT / shell).rglob("*.py") for it in constants(ast.parse(path.read_text())).items()
    }
    assert listed - there == set()


def test_every_key_of_a_wait_is_on_the_page_with_its_default():
    manifest, node = Manifest(), NodeConfig()
    sections = {"pace": manifest.pace, "membership": manifest.membership}
    keys = {f"{name}.{key}": value for name, it in sections.items() for key, value in structs.asdict(it).items() if key.endswith("_s")}
    keys |= {name: getattr(node, name) for name in ("engine_timeout_s", "checkpoint_s", "linger_s")}
    for key, default in keys.items():
        lines = [line for line in TEXT.splitlines() if f"`{key}`" in line]
        assert any(re.search(rf"\b{default:g} s\b|\b{default:g} to ", line) for line in lines), (key, default)
    named = set(re.findall(r"`((?:pace|membership)\.\w+_s)`", TEXT))
    assert named == {key for key in keys if "." in key}


def test_every_decision_linked_on_the_page_exists():
    linked = re.findall(r"\]\(\.\./(decisions/[^)]+)\)", TEXT)
    assert len(linked) > 20
    assert [each for each in linked if not (ROOT / "docs" / each).exists()] == []
