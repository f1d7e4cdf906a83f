"""Pages as a reader has them: blocks of code, what each says of itself, and the commands to type."""

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
    """A fenced block. The first word of `info`, which stands behind the language, says who reads it."""

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
        """Commands, without comments and prompts, one a line."""
        joined = self.text.replace("\\\n", " ").splitlines()
        typed = (" ".join(re.sub(r"(^|\s)#.*$", "", line).split()) for line in joined)
        return [line.removeprefix("$ ") for line in typed if line]


def name(page: Path) -> str:
    """As a test is called."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, reader: str | None = None) -> list[Block]:
    """All of a page, or those that one reader reads."""
    found = [Block(fence["language"], fence["info"] or "", fence["text"]) for fence in _FENCE.finditer(page.read_text())]
    return [block for block in found if reader in {None, block.reader}]


def block(page: Path, reader: str) -> Block:
    """The only one of that name."""
    (found,) = blocks(page, reader)
    return found


def prose(page: Path) -> str:
    """What is left of a page without its blocks."""
    return _FENCE.sub("", page.read_text())
