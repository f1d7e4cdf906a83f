"""The documentation site: every page is in the menu, links and headings work, and generated pages agree with the code.

`make docs` builds it strictly, as do the tests here; looking at all pages in a browser is marked `acceptance`.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import starling
from starling.node.cli.main import COMMANDS
from starling.node.config.parts import KINDS
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.simulate.schema import Scenario
from starling.node.status import metrics
from starling.node.status.snapshot import PeerStatus, Resources, StatusSnapshot
from tests.harness.browser import Browser, needs_browser
from tools import notebook, site_reference

ROOT = Path(__file__).parents[2]
MENU = re.findall(r"^ +- (?:[^:\n]+: )?([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
WRITTEN = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
needs_mkdocs = pytest.mark.skipif(
    None in map(importlib.util.find_spec, ("mkdocs", "latex2mathml")),
    reason="needs mkdocs and latex2mathml: pip install 'starling-swarm[docs]'",
)


@pytest.fixture(scope="module")
def generated():
    return site_reference.pages()


def test_every_page_is_in_the_menu_once(generated):
    """Except decisions, which have a list of their own."""
    listed = {page for page in WRITTEN if page.startswith("decisions/")}
    assert len(MENU) == len(set(MENU))
    of_the_top = {page for page in MENU if page.startswith("project/")}
    assert set(MENU) - of_the_top == (WRITTEN - listed) | set(generated)
    assert {page.removeprefix("decisions/") for page in listed} == set(
        re.findall(r"^\| \d{4} \| \[.*\]\((\d[\w-]+\.md)\) \| ", generated["decisions/index.md"], re.MULTILINE)
    )


def test_every_decision_has_a_number_of_its_own():
    numbers = [page.partition("/")[2][:4] for page in WRITTEN if page.startswith("decisions/")]
    assert sorted(numbers) == sorted(set(numbers))


def test_a_superseded_decision_names_a_valid_one(generated):
    status = dict(re.findall(r"^\| (\d{4}) \| .*? \| ([^|]*) \|$", generated["decisions/index.md"], re.MULTILINE))
    superseded = {number: text for number, text in status.items() if text.startswith("superseded")}
    assert superseded
    for number, text in superseded.items():
        by = re.findall(r"\[(\d{4})\]", text)
        assert by, number
        assert all(status[other].startswith("holds") for other in by), number


def anchors(text):
    """Return the anchors of a page's headings, as code hosts and the site generate them."""
    plain = re.sub(r"[`*]|\]\([^)]*\)|\[", "", FENCE.sub("", text))
    headings = re.findall(r"^#+ (.*?)\s*(?:\{ #([\w-]+) \})?$", plain, re.MULTILINE)
    return {given or re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading, given in headings}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{page}" for page in WRITTEN)])
def test_a_link_to_a_heading_leads_to_one(page):
    text = FENCE.sub("", (ROOT / page).read_text())
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", text):
        aim = (ROOT / page).parent / target if target else ROOT / page
        assert aim.suffix != ".md" or anchor in anchors(aim.read_text()), f"{target}#{anchor}"


def test_every_command_key_part_and_metric_is_in_the_reference(generated):
    """The reference is generated from the types, so it has everything and nothing obsolete."""
    commands = set(re.findall(r"^### `starling ([\w-]+)`$", generated["reference/cli.md"], re.MULTILINE))
    assert commands == set(COMMANDS)
    for page, kind in (("manifest", Manifest), ("node-toml", NodeConfig), ("scenario", Scenario)):
        shown = re.findall(r"^(?:\| `(\w+)` \||## `\[(\w+)\]`)", generated[f"reference/{page}.md"], re.MULTILINE)
        assert set(kind.__struct_fields__) <= {key or section for key, section in shown}
    parts = {
        key: set(re.findall(r"`([\w]+)`(?=[,.])", text))
        for key, text in re.findall(r"^## `([\w.]+)`\n\n(.*)$", generated["reference/parts.md"], re.MULTILINE)
    }
    assert parts == {key: set(catalogue.built_in) for key, catalogue in KINDS.items()}
    named = set(re.findall(r"^\| `(\w+?)(?:_total)?` \|", generated["reference/metrics.md"], re.MULTILINE))
    assert named > {each.name for kind in (StatusSnapshot, Resources, PeerStatus) for each in metrics.declared(kind)}


def test_the_labels_of_all_parts_are_on_one_page(generated):
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \| (.*) \|$", generated["reference/maturity.md"], re.MULTILINE)
    labels = {key: (re.findall(r"\w+", stable), re.findall(r"\w+", rest)) for key, stable, rest in rows}
    for key, catalogue in KINDS.items():
        assert sorted(labels[key][0] + labels[key][1]) == sorted(catalogue.built_in)
        assert sorted(labels[key][1]) == sorted(catalogue.experimental)
    assert labels.keys() - KINDS.keys() == {"crew.stages", "ranks"}
    assert generated["reference/parts.md"].count("Experimental: ") == sum(bool(it.experimental) for it in KINDS.values())
    assert "Experimental." in re.findall(r"^\| `stages` .*$", generated["reference/manifest.md"], re.MULTILINE)[0]


def test_a_key_without_a_default_is_shown_as_required():
    assert site_reference.row("`dim`", int, site_reference.msgspec.NODEFAULT, "d") == ("| `dim` | a whole number | **required** | d |")


@needs_mkdocs
@pytest.mark.parametrize(
    ("source", "text", "there"),
    [
        ("docs/operating.md", "[x](../README.md#a-b)", "[x](project/readme.md#a-b)"),
        ("README.md", "[x](docs/tui.md)", "[x](../tui.md)"),
        ("README.md", "![x](docs/stills/node.svg)", "![x](../stills/node.svg)"),
        ("docs/decisions/0001-two-processes.md", "[x](../../LICENSE)", "[x](../files/LICENSE)"),
        ("CONTRIBUTING.md", "[x](examples/parts/echo.py)", "[x](../reference/examples.md#parts-echo-py)"),
        ("README.md", "[x](https://example.org/docs/tui.md)", "[x](https://example.org/docs/tui.md)"),
    ],
)
def test_a_link_of_the_repository_becomes_one_of_the_site(source, text, there):
    from tools import site

    here = os.path.dirname(site.ELSEWHERE.get(source, source.removeprefix("docs/")))  # noqa: PTH120
    assert site.LINK.sub(lambda match: site.turned(match, source, here), text) == there


@needs_mkdocs
@pytest.mark.parametrize(
    ("html", "there"),
    [
        ("<code>--no-tui</code>", '<code class="whole">--no-tui</code>'),
        ("<code>gossip/mix/pet.py</code>", "<code>gossip/<wbr>mix/<wbr>pet.py</code>"),
        ("<code>a longer command --with=more words</code>", "<code>a longer command --with=more words</code>"),
        ("<pre><span></span><code>a/b\n</code></pre>", "<pre><span></span><code>a/b\n</code></pre>"),
    ],
)
def test_inline_code_is_broken_where_a_reader_would_and_blocks_are_left_alone(html, there):
    from tools import site

    assert site.on_page_content(html) == there


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the site strictly as `make docs` does: broken links or anchors, and pages outside the menu, fail."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@needs_mkdocs
@pytest.mark.parametrize("page", [page for page in sorted(WRITTEN) if "```math" in (ROOT / "docs" / page).read_text()])
def test_every_formula_becomes_mathml_with_nothing_left_of_its_latex(page):
    """latex2mathml leaves unknown LaTeX unchanged."""
    from tools import site

    text = (ROOT / "docs" / page).read_text()
    formulas = [block for block in FENCE.findall(text) if block.startswith("```math\n")]
    made = [site.MATH.sub(site.formula, block) for block in formulas]
    assert len(made) == text.count("```math")
    for block, html in zip(formulas, made, strict=True):
        rows = block.count("\\\\") + block.count("\\begin")
        assert html.count("<mtr>") == rows, "it drops a last row that ends with an empty cell"
        assert re.fullmatch(r'<div class="formula"><math [^\n]*</math></div>', html)
        words = re.sub(r"<[^>]*>|&#x\w+;", " ", html)
        assert not re.search(r"[\\&$^_{}]|array|operatorname|text", words), words


@needs_mkdocs
@pytest.mark.slow
def test_no_page_asks_another_host_for_anything(built):
    """The site works offline: scripts, styles, fonts and pictures are its own."""
    pages = list(built.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        text = page.read_text()
        asked = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//[^\s>]+", text)
        asked += [tag for tag in re.findall(r"<link\b[^>]*>", text) if re.search(r"href=\"?(?:https?:)?//", tag)]
        assert asked == [], page
    for style in built.rglob("*.css"):
        assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text()) == [], style


@needs_mkdocs
@pytest.mark.slow
def test_every_page_shows_its_version(built):
    for page in (built / "index.html", built / "operating.html"):
        assert f"Starling {starling.__version__}" in page.read_text()


@needs_mkdocs
@pytest.mark.slow
def test_the_menu_marks_pages_about_what_is_experimental(built):
    items = re.findall(r"<li class=\"?md-nav__item.*?</li>", (built / "index.html").read_text(), re.DOTALL)
    marked = [re.search(r"href=\"?([\w./-]+)", item)[1] for item in items if "md-status--experimental" in item]
    assert marked == ["crews.html"]


@needs_mkdocs
@pytest.mark.slow
def test_code_blocks_with_test_names_are_rendered_as_blocks(built):
    """mkdocs would render a block with an unknown info string as a line of text."""
    for page in built.rglob("*.html"):
        assert "```" not in re.sub(r"<(pre|code)\b.*?</\1>", "", page.read_text(), flags=re.DOTALL), page


@needs_mkdocs
@pytest.mark.slow
def test_a_tutorial_links_to_its_notebook(built):
    """Only tutorials whose blocks are notebook cells; others are typed in terminals."""
    for page in (built / "tutorials").glob("*.html"):
        cells = notebook.cells((ROOT / "docs/tutorials" / f"{page.stem}.md").read_text())
        assert bool(re.search(rf'href="?{page.stem}\.ipynb', page.read_text())) == bool(cells)
        if cells:
            assert json.loads(page.with_suffix(".ipynb").read_text())["nbformat"] == 4


@needs_mkdocs
@pytest.mark.slow
def test_the_search_index_has_the_pages(built):
    known = {entry["location"] for entry in json.loads((built / "search/search_index.json").read_text())["docs"]}
    assert {re.sub(r"(README)?\.md$", lambda found: "index.html" if found[1] else ".html", page) for page in MENU} <= known


FAULTS = """(() => {
  const wide = document.documentElement.clientWidth + 1;
  const scrolls = (each) => ["auto", "scroll"].includes(getComputedStyle(each).overflowX);
  const cut = (each) => {
    const box = each.getBoundingClientRect();
    if (box.width === 0 || box.right <= wide) return false;
    for (let around = each.parentElement; !around.matches(".md-content"); around = around.parentElement) if (scrolls(around)) return false;
    return true;
  };
  return [
    ...[...document.querySelectorAll(".md-content *")].filter(cut).map((each) => `beyond the edge: ${each.textContent.slice(0, 60)}`),
    ...[...document.images].filter((each) => each.naturalWidth === 0).map((each) => `no picture: ${each.src}`),
  ];
})()"""


@needs_mkdocs
@needs_browser
@pytest.mark.acceptance
def test_no_page_overflows_narrow_or_wide_screens(built, tmp_path):
    """In a real browser at 400 and 1,400 pixels: nothing overflows without scrolling, no picture is missing, no error."""
    looked_at = sorted(set(built.rglob("*.html")) - {built / "404.html"})  # addresses that the host fills in
    assert len(looked_at) > 80
    with closing(Browser(tmp_path / "profile")) as browser:
        for width in (400, 1400):
            browser.resize(width, 1000)
            for page in looked_at:
                browser.open(page.as_uri())
                browser.until(f"location.href === '{page.as_uri()}' && document.readyState === 'complete'")
                assert browser.value(FAULTS) == [], f"{page.relative_to(built)} at {width} pixels"
        assert browser.errors == []
