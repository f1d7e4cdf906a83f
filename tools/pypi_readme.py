"""README.md with every relative link and picture made absolute, for an index that shows it without the repository, and blocks of code as
it knows them: by their language alone.

    python tools/pypi_readme.py https://HOST/OWNER/NAME > build/README.md

`make dist REPOSITORY=https://HOST/OWNER/NAME` builds the distributions with it. The repository's address is known to its owner alone, so
pyproject.toml names none.
"""

import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
INFO = re.compile(r"^```(\w+) [^\n]*$", re.MULTILINE)
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)#:]+)(?P<anchor>#[^)]*)?\)")


def absolute(text: str, repository: str, branch: str = "main") -> str:
    """Markdown with absolute links, and code blocks without what only tests read.

    Args:
        text: of a page in the root of the repository.
        repository: its address, as a browser shows it.
        branch: that the links name.
    """

    def link(match: re.Match[str]) -> str:
        kind = "raw" if match["picture"] else "blob"
        target = f"{repository.rstrip('/')}/{kind}/{branch}/{match['target']}{match['anchor'] or ''}"
        return f"{match['picture']}[{match['text']}]({target})"

    return INFO.sub(r"```\1", LINK.sub(link, text))


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].startswith("https://"):
        sys.exit("usage: python tools/pypi_readme.py https://HOST/OWNER/NAME")
    print(absolute(README.read_text(), sys.argv[1]), end="")
