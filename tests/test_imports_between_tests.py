"""Shared code of tests is in the harness: a test module that another imports cannot be moved, split or run alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent


def imported(path: Path) -> Iterator[str]:
    """Return the dotted names of all imports of a module, at any depth."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_module_imports_a_test_module():
    modules = sorted(TESTS.rglob("*.py"))
    assert len(modules) > 100
    found = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in modules
        for name in imported(path)
        if name.startswith("tests.") and any(part.startswith("test_") for part in name.split("."))
    ]
    assert found == []


def test_the_harness_holds_no_tests():
    assert not list((TESTS / "harness").rglob("test_*.py"))
