"""Files, tests and commands named in the documentation exist, and what the README tells users to type works."""

import itertools
import re
import tomllib
from functools import partial
from operator import attrgetter

import click
import pytest

from starling.gossip.errors import ConfigError
from starling.node.cli.main import COMMANDS, starling
from starling.node.config import manifest as manifests
from starling.node.config import presets
from starling.node.config.parts import convert
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.config.toml import apply_set
from starling.node.simulate import rules, sweep
from starling.node.simulate.schema import Scenario
from tests.harness import pages
from tests.harness.pages import PAGES
from tests.harness.processes import ROOT, bash, status_of, terminals
from tests.harness.schemas import valid

README = (ROOT / "README.md").read_text()
shell = partial(bash, timeout_s=200)
FOLDERS = ("gossip", "robust", "node", "tui", "tests", "docs", "examples", "benchmarks", "newsfragments")
PLACE = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*[\w/]|\w+\.(?:toml|txt|md)|Makefile)`")
PLACES_OF_A_NODE = {"node.toml", "manifest.toml", "invite.txt"}


def lines(name, page="README.md"):
    return pages.block(ROOT / page, name).lines


@pytest.mark.parametrize("page", PAGES, ids=pages.name)
def test_every_file_named_on_a_page_exists(page):
    """Links between pages, and files named in the text."""
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), f"link to {target}"
    if "**Status:** superseded" in text:
        return  # files that it names may be gone
    for place in set(PLACE.findall(text)) - PLACES_OF_A_NODE:
        assert (ROOT / place).exists() or (page.parent / place).exists(), f"file {place}"


@pytest.mark.parametrize("page", PAGES, ids=pages.name)
def test_every_test_named_on_a_documentation_page_exists(page):
    """Claims on pages name the test that shows them."""
    names = set(re.findall(r"`(test_\w+)`", page.read_text()))
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py")) if names else ""
    assert names <= set(re.findall(r"def (test_\w+)", written))


def shown(page):
    """Return the commands of this project on a page, in blocks and in text."""
    return re.findall(r"(?:^ *|`)(starling [a-z][^`\n#]*)", page.read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=pages.name)
def test_every_command_a_page_shows_exists_with_its_options(page):
    for line in shown(page):
        words = [word for word in line.split()[1:] if word != "help"]
        command, context = starling, click.Context(starling)
        while isinstance(command, click.Group) and words and (inner := command.get_command(context, words[0])):
            command, words = inner, words[1:]
        assert command is not starling, line
        options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
        assert {word for word in words if word.startswith("--")} <= options, line


@pytest.mark.parametrize("page", PAGES, ids=pages.name)
def test_every_setting_on_a_page_is_valid(page):
    """For every `--set KEY=VALUE`, some file accepts that key with that value."""
    for given in re.findall(r"--set[ \n]([\w.]+=[^\s`]+)", page.read_text()):
        if "$" in given:
            continue  # text that a shell inserts is checked with the file of the line, below
        refusals = []
        for kind in (Manifest, NodeConfig, Scenario):
            try:
                apply_set(kind(), [given])
            except ConfigError as error:
                refusals.append(str(error))
        assert len(refusals) < 3, (given, refusals)


@pytest.mark.parametrize("page", PAGES, ids=pages.name)
def test_every_swarm_a_page_creates_demonstrates_or_simulates_passes_its_check(page, tmp_path):
    """The checks of `create`, `demo` and `simulate` before they start, with the preset and settings of the line."""
    for line in shown(page):
        words = [re.sub(r"\$STARLING_DATA/\w+", str(tmp_path), word) for word in line.split()[1:]]
        options = [
            (option, value)
            for option, value in itertools.pairwise(words)
            if re.split(r"[.=]", value)[0] not in NodeConfig.__struct_fields__  # a node's own
        ]
        presets_given = [f"preset={value}" for option, value in options if option == "--preset"]
        given = [*presets_given, *(value for option, value in options if option == "--set")]
        file = next((ROOT / word for word in words[1:] if word.endswith(".toml") and (ROOT / word).exists()), None)
        if words[0] == "simulate" and file is not None:
            rules.check(sweep.read(file, given)[1])
        elif words[0] in {"create", "demo"}:
            given = [*given, *(f"task={value}" for option, value in options if option == "--task")]
            manifests.check(presets.load(Manifest, file, given))


@pytest.mark.parametrize("page", PAGES, ids=pages.name)
def test_every_extra_and_make_target_named_on_a_page_exists(page):
    """`pip install 'starling-swarm[privacy]'` only warns if the extra does not exist."""
    text = page.read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {extra for found in re.findall(r"starling-swarm\[([\w,-]+)\]", text) for extra in found.split(",")}
    assert extras <= set(project["optional-dependencies"])
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^ *|`|&& )make ([a-z-]+)(?=`|$| )", text, re.MULTILINE)) <= targets


def test_the_readme_names_every_make_target_that_a_newcomer_needs():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`|&& )make ([a-z]+)", README, re.MULTILINE))
    assert {"demo", "test", "check", "bench", "acceptance"} <= named <= targets


def test_the_defaults_that_a_page_shows_are_those_of_the_manifest():
    shown = re.findall(r"^\| `([\w.]+)` \| `([^`]+)` \|", (ROOT / "docs/operating.md").read_text(), re.MULTILINE)
    named = {key: default for key, default in shown if re.match(r"(task|partition|pace|mix|overlay|compress)\.", key)}
    assert {"task.kind", "mix.kind", "overlay.kind", "compress.response"} <= named.keys()
    for key, default in named.items():
        assert str(attrgetter(key)(Manifest())) == default, key


def test_the_readme_s_manifest_suits_four_nodes():
    text = (ROOT / "examples/digits.toml").read_text()
    manifest = convert(tomllib.loads(text), Manifest)
    assert manifest.pace.quorum == manifest.partition.shards == 4
    assert set(tomllib.loads(text)) <= set(Manifest.__struct_fields__)


def test_every_command_is_in_the_readme_or_in_operating():
    told_of = README + (ROOT / "docs/operating.md").read_text()
    assert {name for name in COMMANDS if not re.search(rf"starling {name}\b", told_of)} == set()


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.usefixtures("warm_engines")
def test_four_nodes_by_hand_do_what_the_readme_says(tmp_path):
    """Create, join three times, look, export, leave, Ctrl-C: the blocks unchanged, each line in its own terminal."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with terminals() as terminal:
        source, create = lines("create")
        assert source == "source .venv/bin/activate"  # this process has its PATH already
        creator = terminal(create, tmp_path, "terminal-1")
        invite = creator.until(creator.first_line)
        assert invite.startswith("starling1:")
        joiners = [
            terminal(line.replace("INVITE", invite), tmp_path, f"terminal-{number}") for number, line in enumerate(lines("join"), start=2)
        ]
        folders = [tmp_path / f"starling-{number}" for number in range(1, 5)]
        for folder in folders:
            creator.until(lambda folder=folder: (now := status_of(folder)) and now.state == "finished")
        printed = {line: shell(line, tmp_path) for line in lines("look")}
        status = valid("status", printed["starling status --dir starling-2 --json"])
        assert (status["round"], status["rounds"], status["members"]) == (100, 100, 4)
        assert status["value"] >= 0.9
        assert "100/100" in printed["starling status --dir starling-2"]
        assert printed["starling peers --dir starling-2"].count(" alive ") == 3
        assert re.match(r"accuracy 0\.9\d+ in round 100$", printed["starling eval --dir starling-2"].strip())
        everything, warnings, follow = lines("logs", "docs/operating.md")
        assert " listening: " in shell(everything, tmp_path)
        assert all(valid("logs", line)["level"] != "info" for line in shell(warnings, tmp_path).splitlines())
        follower = terminal(follow, tmp_path, "logs")
        follower.until(lambda: " left" in follower.out)
        assert follower.ctrl_c() == 0
        assert follower.err == ""
        model = shell("python -c '" + pages.block(ROOT / "README.md", "model").text + "'", tmp_path)
        assert "(64, 64)" in model
        assert joiners[0].process.wait(5) == 0
        for node in (creator, *joiners[1:]):
            assert node.ctrl_c() == 0
    assert creator.out.strip() == invite
    assert all("Traceback" not in node.err for node in (creator, *joiners))


@pytest.mark.real
@pytest.mark.slow
def test_the_documented_command_shows_settings():
    first, second = (shell(line, ROOT) for line in lines("show", "docs/operating.md"))
    assert "flow_limit = 100.0" in first
    assert second == ""


@pytest.mark.real
@pytest.mark.slow
def test_make_demo_runs_a_valid_command():
    """Its recipe is not run here again: tests/real/test_demo.py runs shorter ones."""
    recipe = re.search(r"^demo:.*\n\t\$\(BIN\)/(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    assert "Run a swarm of real nodes" in shell(f"{recipe[1]} --help", ROOT)
