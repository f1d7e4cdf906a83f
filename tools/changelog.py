"""A release's section of CHANGELOG.md from newsfragments: `python tools/changelog.py [VERSION DATE]`, as `make changelog` prints it.

Without a version the section is called Unreleased and nothing is written. With one, CHANGELOG.md gets the section and the fragments are
deleted; the commit of that is given the tag vVERSION, from which everything else reads it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = {"feature": "New", "change": "Changed", "fix": "Fixed", "removal": "Removed", "security": "Security"}
_NAME = re.compile(r"(?P<name>[\w-]+)\.(?P<kind>\w+)\.md")
_MARK = "## Unreleased"
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def section(title: str, fragments: Mapping[str, str]) -> str:
    """Return the Markdown of one release from {file name: text}. Raises ValueError: a file is no fragment, or empty."""
    entries: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for file, text in sorted(fragments.items()):
        match, said = _NAME.fullmatch(file), " ".join(text.split())
        if match is None or match["kind"] not in KINDS or not said:
            raise ValueError(f"newsfragments/{file}: must be NAME.KIND.md with a sentence, KIND one of {', '.join(KINDS)}")
        entries[match["kind"]].append(f"- {said}")
    blocks = [f"### {KINDS[kind]}\n\n" + "\n".join(lines) for kind, lines in entries.items() if lines]
    return "\n\n".join([f"## {title}", *blocks]) + "\n"


def released(changelog: str, made: str) -> str:
    """CHANGELOG.md with a section put below Unreleased, whose own text goes. Raises ValueError: it has no such heading."""
    before, mark, after = changelog.partition(_MARK)
    if not mark:
        raise ValueError(f"CHANGELOG.md: has no heading {_MARK!r}")
    older = after[after.index("\n## ") + 1 :] if "\n## " in after else ""
    return f"{before}{mark}\n\n{made}" + (f"\n{older}" if older else "")


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _read(files: Iterable[Path]) -> dict[str, str]:
    return {file.name: file.read_text() for file in files}


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    files = [path for path in (ROOT / "newsfragments").glob("*.md") if path.name != "README.md"]
    if not arguments:
        print(section("Unreleased", _read(files)), end="")
        return 0
    changelog = ROOT / "CHANGELOG.md"
    last = re.search(r"^## (\d+\.\d+\.\d+) ", changelog.read_text(), re.MULTILINE)
    if len(arguments) != 2 or not _VERSION.fullmatch(arguments[0]) or not _DATE.fullmatch(arguments[1]):
        print("usage: python tools/changelog.py X.Y.Z YYYY-MM-DD", file=sys.stderr)
        return 2
    version = arguments[0]
    if last and _numbers(version) <= _numbers(last[1]):
        print(f"changelog: {version} does not come after {last[1]}, the newest of CHANGELOG.md", file=sys.stderr)
        return 2
    changelog.write_text(released(changelog.read_text(), section(f"{version} ({arguments[1]})", _read(files))))
    for file in files:
        file.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
