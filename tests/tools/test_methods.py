"""docs/methods.md lists exactly the catalogues' entries, with the file of each."""

import re
from pathlib import Path

import msgspec
import pytest

from starling.gossip.compress.feedback import FEEDBACKS
from starling.node.cli.main import COMMANDS
from starling.node.config.parts import KINDS
from starling.node.config.schema import Manifest
from starling.node.config.toml import apply_set
from starling.robust.attacks.catalogue import ATTACKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/methods.md").read_text()
SECTIONS = dict(re.findall(r"^## `?([^`\n]+)`?\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
WALKS = {  # a test of every part of a catalogue names the catalogue
    "mix.kind": "MIXERS",
    "overlay.kind": "OVERLAYS",
    "compress.select": "SELECTORS",
    "compress.response": "QUANTIZERS",
    "robust.rule": "RULES",
    "robust.before": "PREAGGREGATIONS",
    "attack": "ATTACKS",
    "optimizer.kind": "OPTIMIZERS",
    "pace.kind": "Rounds|Slots",
    "admission.kind": "Puzzle|chains|Gatekeeper",
}
ALGORITHMS = {key: it for key, it in {**KINDS, "attack": ATTACKS}.items() if key not in {"task.kind", "compress.request"}}


def rows(title):
    """Return the cells of each row of a section's table."""
    lines = [line for line in SECTIONS[title].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def listed(title):
    return [(name, row) for row in rows(title) for name in re.findall(r"`(\w+)`", row[0])]


@pytest.mark.parametrize("key", ALGORITHMS)
def test_every_name_of_a_catalogue_is_listed_once_with_its_file_and_a_test_of_it(key):
    found = listed(key)
    assert sorted(name for name, _ in found) == sorted(ALGORITHMS[key].built_in)
    for name, (_, formula, _, code, tests) in found:
        module, _, made = ALGORITHMS[key].entries[name].where.partition(":")
        file = module.removeprefix("starling.").replace(".", "/") + ".py"
        assert formula, name
        assert f"`{file}`" in code or not (ROOT / file).exists() or file == "node/catalogues.py", (name, file)
        assert all((ROOT / path).is_file() for path in re.findall(r"`([\w/.]+)`", code)), name
        read = "".join((ROOT / path).read_text() for path in re.findall(r"`([\w/.]+)`", tests))
        walked = rf"\b(?:{name}|{made}|{WALKS.get(key, name)})\b"
        assert re.search(walked, read), (name, tests)


@pytest.mark.parametrize("key", ALGORITHMS)
def test_exactly_the_experimental_names_are_marked(key):
    marked = [name for row in rows(key) for name in re.findall(r"`(\w+)` \(experimental\)", row[0])]
    assert sorted(marked) == sorted(ALGORITHMS[key].experimental)


def test_the_schemes_of_keys_of_a_kind_are_listed_too():
    assert [name for name, _ in listed("mix.feedback")] == list(FEEDBACKS)


@pytest.mark.parametrize("row", rows("By the name in a paper"), ids=lambda row: re.sub(r"\W+", "_", row[0])[:30])
def test_settings_listed_for_a_paper_s_method_are_accepted_together(row):
    given = re.findall(r"`(\w+\.\w+=[^`]+)`", row[1])
    apply_set(Manifest(), given)
    assert all((ROOT / path).is_file() for path in re.findall(r"`([\w/]+\.py)`", row[1]))


@pytest.mark.parametrize("row", rows("By the name in a paper"), ids=lambda row: re.sub(r"\W+", "_", row[0])[:30])
def test_each_method_of_a_paper_has_a_test(row):
    """A test that mentions a value, a key or a module of the row in any spelling."""
    _, here, tests = row
    (path,) = re.findall(r"`(tests/[\w/]+\.py)`", tests)
    words = re.findall(r"=\[?\"?(\w+)", here) + re.findall(r"(\w+)\.py", here) + re.findall(r"`\w+\.(\w+)=", here)
    words += re.findall(r"`(?:[\w.]+\.)?([a-z_]+)`", here)
    found = re.sub(r"\W|_", "", (ROOT / path).read_text()).lower()
    assert any(len(word) > 2 and word.replace("_", "").lower() in found for word in words), (path, words)


@pytest.mark.parametrize("row", rows("Not here"), ids=lambda row: re.sub(r"\W+", "_", row[0])[:30])
def test_methods_listed_as_missing_are_missing(row):
    method, why, named = row
    assert method
    assert why
    command, name = re.fullmatch(r"(a command )?`([^`]+)`", named).groups()
    if command:
        assert name not in COMMANDS
        return
    key, _, value = name.partition("=")
    if key in KINDS:
        assert value not in KINDS[key]
    elif value:
        assert key == "mix.feedback"
        assert value not in FEEDBACKS
    else:
        assert key not in keys()


def keys():
    """Return every key of a manifest, with those that any kind adds."""
    manifest = Manifest()
    found = set()
    for section in manifest.__struct_fields__:
        value = getattr(manifest, section)
        if isinstance(value, msgspec.Struct):
            found |= {f"{section}.{key}" for key in value.__struct_fields__}
    for place, catalogue in KINDS.items():
        section, _, part = place.partition(".")
        names = catalogue.built_in if part in getattr(manifest, section).PARTS else ()
        found |= {f"{section}.{key.name}" for name in names for key in catalogue.keys_of(name) or ()}
    return found


def test_keys_of_every_kind_are_known_to_the_test_above():
    assert {"mix.kappa", "mix.fragments", "optimizer.momentum", "pace.overlap", "overlay.basis"} <= keys()
