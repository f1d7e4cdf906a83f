"""Draw texts of the repository for a reader to judge: `python tools/sample_words.py [COUNT] [SEED]` prints 40 of them.

The seed is the digest of the last commit, which nobody chooses. A text is a docstring, a comment of more than three words, a message that
is raised, a test's name, or the title of a page. Each kind is drawn equally often, so that the many docstrings do not hide the rest. The
reader notes for each whether it is understood at once, at the second reading, or not.
"""

from __future__ import annotations

import ast
import io
import random
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("gossip", "robust", "node", "tui", "tests", "tools", "benchmarks")
KINDS = ("docstring", "comment", "message", "test name", "title")
Text = tuple[str, str, str]
"""Kind, place and text."""
_WORDS = 4


def of_code(path: Path, source: str) -> Iterator[Text]:
    """Yield the docstrings, messages, test names and comments of a Python file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                if isinstance(argument, ast.JoinedStr) or (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                    yield "message", f"{path}:{node.lineno}", ast.unparse(argument)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            name, line = getattr(node, "name", ""), getattr(node, "lineno", 1)
            if name.startswith("test_"):
                yield "test name", f"{path}:{line}", name
            text = ast.get_docstring(node)
            if text:
                yield "docstring", f"{path}:{line} {name}", text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and len(token.string.split()) > _WORDS:
            yield "comment", f"{path}:{token.start[0]}", token.string.lstrip("# ")


def texts(root: Path) -> list[Text]:
    """Return all texts of a repository, in the order of its files."""
    result = [
        text
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        for text in of_code(path.relative_to(root), path.read_text())
    ]
    for path in sorted((root / "docs").rglob("*.md")):
        title = path.read_text().partition("\n")[0]
        if title.startswith("# "):
            result.append(("title", str(path.relative_to(root)), title.lstrip("# ")))
    return result


def drawn(available: Sequence[Text], count: int, seed: str) -> list[Text]:
    """Return `count` texts drawn by the seed, equally many of each kind as far as available."""
    chance = random.Random(seed)  # noqa: S311 - for a reader, not a secret
    of_kind = {kind: [text for text in available if text[0] == kind] for kind in KINDS}
    chosen: list[Text] = []
    for kind in cycle(KINDS):
        if len(chosen) == count or not any(of_kind.values()):
            return chosen
        if of_kind[kind]:
            chosen.append(of_kind[kind].pop(chance.randrange(len(of_kind[kind]))))
    return chosen


def main(arguments: Sequence[str]) -> int:
    """Print as many texts as the arguments say, 40 by default."""
    count = int(arguments[0]) if arguments else 40
    if len(arguments) < 2 and shutil.which("git") is None:
        print(f"git is missing: its commit is the seed; give one, `python tools/sample_words.py {count} SEED`", file=sys.stderr)
        return 1
    command = ["git", "rev-parse", "HEAD"]
    seed = arguments[1] if len(arguments) > 1 else subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for kind, place, text in drawn(texts(ROOT), count, seed.strip()):
        print(f"[{kind}] {place}\n    " + text.replace("\n", "\n    ") + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
