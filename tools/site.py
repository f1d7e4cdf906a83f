"""A hook of mkdocs (`mkdocs.yml`): pages of this repository as a documentation site.

The pages are written for readers of the repository. The hook redirects links that lead out of docs/ to the same page or file on the site,
removes info strings of code blocks, which are for tests, converts LaTeX formulas (blocks of `math`) to MathML, which browsers show without
a script, and adds pages generated from the code.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

import starling
from starling.node.catalogues import TRAINERS
from tools import notebook, site_reference

ROOT = Path(__file__).parents[1]
ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "README.md": "project/readme.md",
        "CONTRIBUTING.md": "project/contributing.md",
        "CHANGELOG.md": "project/changelog.md",
        "SECURITY.md": "project/security.md",
        "benchmarks/README.md": "project/benchmarks.md",
        "examples/README.md": "gallery/index.md",
        **{
            f"examples/{path.parent.name}/README.md": f"gallery/{path.parent.name}.md"
            for path in sorted((ROOT / "examples").glob("*/README.md"))
        },
        "docs/schemas": "reference/schemas.md",
        "docs/decisions": "decisions/index.md",
        "examples": "reference/examples.md",
        "examples/parts": "reference/examples.md",
    }
)
"""Pages of the repository outside of docs/, and folders that pages link to -> where the site has them."""
ABOUT: Mapping[str, str] = MappingProxyType({"crews.md": "stage"})
"""Pages about one trainer of `node.catalogues.TRAINERS`; the menu marks those of experimental ones."""
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
MATH = re.compile(r"\A```math\n(.*)```\Z", re.DOTALL)
INFO = re.compile(r"^```(\w+) [^\n]*$", re.MULTILINE)
INLINE = re.compile(r"<code>([^<\n]+)</code>")  # a block's text ends with a line
WHOLE_CHARACTERS = 22  # length of inline code that is not broken: fits into a column on a phone
LINK = re.compile(r"(\]\()([^)\s#]+)?(#[^)\s]*)?(\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the version at the foot of every page."""
    config.copyright = f"Starling {starling.__version__}"
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add what is not in docs/: generated pages, pages of the repository's top, and files that pages link to."""
    for path, text in site_reference.pages().items():
        files.append(File.generated(config, path, content=text))
    for source, path in ELSEWHERE.items():
        if source.endswith(".md"):
            files.append(File.generated(config, path, abs_src_path=str(ROOT / source)))
    linked = {target for file in files.documentation_pages() for target in _outside(_source(file.src_uri), file.content_string)}
    for target in sorted(linked):
        files.append(File.generated(config, f"files/{target}", abs_src_path=str(ROOT / target)))
    for file in list(files.documentation_pages()):
        if file.src_uri.startswith(("decisions/0", "gallery/")) and not file.src_uri.endswith("/index.md"):
            file.inclusion = InclusionLevel.NOT_IN_NAV  # the index lists them
        if notebook.cells(file.content_string):
            name = file.src_uri.replace(".md", ".ipynb")
            files.append(File.generated(config, name, content=notebook.notebook(file.content_string)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Return a page's text as the site needs it."""
    if ABOUT.get(page.file.src_uri) in TRAINERS.experimental:
        page.meta["status"] = "experimental"
    source = _source(page.file.src_uri)
    here = posixpath.dirname(page.file.src_uri)
    if notebook.cells(markdown):
        markdown += f"\n[This page as a Jupyter notebook]({posixpath.basename(page.file.src_uri).replace('.md', '.ipynb')})\n"
    return "".join(
        INFO.sub(r"```\1", MATH.sub(formula, piece)) if fenced else LINK.sub(lambda match: turned(match, source, here), piece)
        for fenced, piece in _pieces(markdown)
    )


def formula(block: re.Match[str]) -> str:
    """Return a block of `MATH` as MathML."""
    return f'<div class="formula">{convert(" ".join(block[1].split()), display="block")}</div>'


def on_page_content(html: str, **_: object) -> str:
    """Inline code is broken after a slash, as a path is read, and short code nowhere: not `-` `-no-tui`, nor `dsgd.p` `y`."""
    return INLINE.sub(_breakable, html)


def _breakable(match: re.Match[str]) -> str:
    if len(match[1]) <= WHOLE_CHARACTERS and "/" not in match[1]:
        return f'<code class="whole">{match[1]}</code>'
    return f"<code>{match[1].replace('/', '/<wbr>')}</code>"


def _pieces(markdown: str) -> Iterator[tuple[bool, str]]:
    """Yield (whether it is a fenced block, text) in order."""
    at = 0
    for fence in FENCE.finditer(markdown):
        yield False, markdown[at : fence.start()]
        yield True, fence[0]
        at = fence.end()
    yield False, markdown[at:]


def _source(page: str) -> str:
    """Return the path in the repository of a page of the site."""
    return next((source for source, place in ELSEWHERE.items() if place == page), f"docs/{page}")


def _outside(source: str, markdown: str) -> Iterator[str]:
    """Files of the repository that a page links to and the site does not have."""
    for fenced, piece in _pieces(markdown):
        for match in () if fenced else LINK.finditer(piece):
            target = _target(match[2], source)
            if target and not target.startswith("docs/") and target not in ELSEWHERE and _example(target) is None:
                yield target


def _target(link: str | None, source: str) -> str | None:
    """Return a link's target as a path of the repository; None if it leads elsewhere or nowhere."""
    if not link or ":" in link or link.startswith("/"):
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return target if (ROOT / target).exists() else None


def _example(target: str) -> str | None:
    """Return the place of an example file on the page that shows them all."""
    if target.startswith("examples/") and target.endswith((".py", ".toml")) and target != "examples/parts/pyproject.toml":
        return f"#{site_reference.anchor(target.removeprefix('examples/'))}"
    return None


def turned(match: re.Match[str], source: str, here: str) -> str:
    """Return a link of the repository as one of the site, relative to the page that it is on."""
    target = _target(match[2], source)
    if target is None:
        return match[0]
    mark = match[3] or ""
    if target in ELSEWHERE:
        place = ELSEWHERE[target]
    elif (example := _example(target)) is not None:
        place, mark = "reference/examples.md", example
    elif target.startswith("docs/"):
        place = target.removeprefix("docs/")
    else:
        place = f"files/{target}"
    return f"{match[1]}{posixpath.relpath(place, here or '.')}{mark}{match[4]}"
