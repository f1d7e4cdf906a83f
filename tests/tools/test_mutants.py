"""The table of mutations matches the code, and its run tells detected mutations from others."""

import os
import py_compile
import subprocess
import sys

import pytest

from tools.mutants import MUTANTS, ROOT, Mutant, _replace, main, outcome


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.text}")
def test_every_mutation_names_one_existing_line_and_existing_tests(mutant):
    assert (ROOT / mutant.file).read_text().count(mutant.text) == 1
    assert mutant.broken != mutant.text
    assert any(list((ROOT / "tests").glob(pattern)) for pattern in mutant.tests)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "broken", "tests", "expected"),
    [
        ("return 2", "return 3", "test_two.py", "killed"),
        ("unused = 1", "unused = 2", "test_two.py", "LIVES"),
        ("return 4", "return 5", "test_two.py", "STALE: the text occurs 0 times"),
        ("return 2", "return 3", "test_none.py", "STALE: no such test"),
        ("return 2", "return 3", "test_fails.py", "STALE: its tests fail without it"),
    ],
)
def test_an_undetected_mutation_is_reported_and_reverted(tmp_path, text, broken, tests, expected):
    """Rows that no longer match do not count as detected."""
    code = tmp_path / "two.py"
    code.write_text("unused = 1\n\n\ndef two():\n    return 2\n")
    before = code.read_text()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_two.py").write_text("from two import two\n\n\ndef test_two():\n    assert two() == 2\n")
    (tmp_path / "tests" / "test_fails.py").write_text("def test_fails():\n    assert False\n")
    assert outcome(Mutant("two.py", text, broken, (tests,)), tmp_path) == expected
    assert code.read_text() == before


def test_a_mutation_of_equal_length_within_a_second_is_recompiled(tmp_path):
    module = tmp_path / "two.py"
    module.write_text("value = 2")
    py_compile.compile(str(module))
    second = module.stat().st_mtime_ns
    _replace(module, "value = 3")
    os.utime(module, ns=(second, second))
    printed = subprocess.run(
        [sys.executable, "-c", "import two; print(two.value)"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert printed.stdout == "3\n"


def test_without_git_there_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert capsys.readouterr().err.splitlines()[-1].endswith("git is missing: it lists the files to copy; install it and run this again")
