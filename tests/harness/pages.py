"""Documentation pages as a reader sees them: code blocks, their info strings, and the commands to type."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.harness.processes import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *(page for folder in ("docs", "examples", "benchmarks") for page in sorted((ROOT / folder).rglob("*.md"))),
]
_FENCE = re.compile(r"^```(?P<language>\w*)(?: (?P<info>[^\n]+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. The first word of `info`, after the language, names its reader."""

    language: str
    info: str
    text: str

    @property
    def reader(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def options(self) -> str:
        return self.info.partition(" ")[2]

    @property
    def lines(self) -> list[str]:
        """Return the commands, without comments and prompts, one per line."""
        joined = self.text.replace("\\\n", " ").splitlines()
        typed = (" ".join(re.sub(r"(^|\s)#.*$", "", line).split()) for line in joined)
        return [line.removeprefix("$ ") for line in typed if line]


def name(page: Path) -> str:
    """Return the page's name in test ids."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, reader: str | None = None) -> list[Block]:
    """Return all blocks of a page, or those of one reader."""
    found = [Block(fence["language"], fence["info"] or "", fence["text"]) for fence in _FENCE.finditer(page.read_text())]
    return [block for block in found if reader in {None, block.reader}]


def block(page: Path, reader: str) -> Block:
    """Return the only block of that name."""
    (found,) = blocks(page, reader)
    return found


def prose(page: Path) -> str:
    """Return a page without its blocks."""
    return _FENCE.sub("", page.read_text())
