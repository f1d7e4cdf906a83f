"""Maturity labels: every stable part is used somewhere, and every experimental one is labelled where users read."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from starling.node.catalogues import TRAINERS, WORK
from starling.node.cli.main import starling
from starling.node.config import descriptions, maturity, toml
from starling.node.config.parts import KINDS
from starling.node.config.presets import PRESETS
from starling.node.config.schema import Manifest, NodeConfig
from starling.robust.attacks.catalogue import ATTACKS

ROOT = Path(__file__).parents[3]
FILES = ("examples/**/*.toml", "examples/**/*.py", "benchmarks/*/*.toml", "docs/tutorials/*.md")
TEXTS = [path.read_text() for pattern in FILES for path in sorted(ROOT.glob(pattern))]
EVERY = {**KINDS, "trainer": TRAINERS, "crew.stages": WORK, "attack": ATTACKS}
CODECS = ("compress.request", "compress.response")


def entries(key):
    return EVERY[key].entries.items()


def walked(value, path=()):
    """Yield (key, value) of all text in a TOML file; keys of a nested table have their last two names."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from walked(inner, (*path, name))
    elif isinstance(value, list):
        for inner in value:
            yield from walked(inner, path)
    elif isinstance(value, str):
        yield ".".join(path[-2:]), value


def used():
    """Return the (key, name) pairs in defaults, presets, examples, tutorials and recipes; a section alone gives its kind."""
    said = set(walked(msgspec.to_builtins(Manifest())))
    for text in TEXTS:
        said |= set(re.findall(r"\b([a-z]+(?:\.[a-z]+)?)=\"?(\w+)", text))
    for path in (*ROOT.glob("examples/**/*.toml"), *ROOT.glob("benchmarks/**/*.toml")):
        raw = tomllib.loads(path.read_text())
        cases = raw["cases"].values() if raw.get("kind") == "overlays" else ()
        said |= {*walked(raw), *(("overlay", case["kind"]) for case in cases)}
    for key in chain.from_iterable(PRESETS.values()):
        said |= {(key.name, name) for name in (key.value, *re.findall(r"\w+", key.limit.words if key.limit else ""))}
    said = {(key if "." in key else f"{key}.kind", name) for key, name in said}
    return said | {(codec, name) for key, name in said if key in CODECS for codec in CODECS}


USED = used()


@pytest.mark.parametrize("key", KINDS)
def test_every_stable_part_is_used(key):
    """A default, a preset, an example, a tutorial or a recipe uses it, or another name of the same code."""
    of_code = {entry.where for name, entry in entries(key) if (key, name) in USED}
    assert of_code, "the test finds nothing"
    unused = [name for name, entry in entries(key) if entry.maturity == "stable" and entry.where not in of_code]
    assert unused == (["script"] if key == "task.kind" else [])  # the example below does so by calling Swarm


def test_scripts_are_used():
    assert "starling.Swarm(" in (ROOT / "examples/own-loop/loop.py").read_text()


@pytest.mark.parametrize("key", EVERY)
def test_every_part_has_a_label_and_those_of_extras_are_experimental(key):
    assert {entry.maturity for _, entry in entries(key)} <= {"stable", "experimental"}
    extras = {name for name, entry in entries(key) if entry.where.startswith("starling.node.extras.")}
    assert extras <= {*EVERY[key].experimental}


def test_every_folder_of_extras_has_an_entry():
    """Otherwise nothing could select it, and nothing would label it experimental."""
    rooms = {path.name for path in (ROOT / "node/extras").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms
    found = {entry.where.split(".")[3] for key in EVERY for _, entry in entries(key) if ".extras." in entry.where}
    assert found == rooms


@pytest.mark.parametrize("key", KINDS)
def test_the_settings_name_experimental_choices_of_each_key(key):
    section, _, field = key.partition(".")
    (shown,) = re.findall(rf"^\[{section}\]\n(.*?)(?=^\[|\Z)", toml.render(Manifest()), re.MULTILINE | re.DOTALL)
    (above,) = re.findall(rf"((?:^# .*\n)*)^(?:# )?{field} =", shown, re.MULTILINE)
    said = re.findall(r"Experimental: (.*)\.", above.replace("\n# ", " "))
    assert said == ([", ".join(KINDS[key].experimental)] if KINDS[key].experimental else [])


def test_experimental_parts_are_named_to_creator_and_members(tmp_path):
    plain, tried = Manifest(), toml.apply_set(Manifest(), ["mix=d2", "overlay=ring", "crew.stages=2"])
    assert "experimental" not in dict(descriptions.sections(plain))
    assert dict(descriptions.sections(tried))["experimental"] == "mix.kind = d2, crew.stages = 2"
    file = tmp_path / "d2.toml"
    file.write_text('[mix]\nkind = "d2"\n[overlay]\nkind = "ring"\n')
    shown = CliRunner().invoke(starling, ["manifest", "check", str(file)])
    assert "note: mix.kind = d2 is experimental: it may change, or go, without notice" in shown.stderr


def test_an_experimental_trainer_labels_the_key_that_selects_it():
    assert maturity.label("crew.stages") == maturity.label("ranks") == "Experimental."
    assert "# Experimental.\nranks = 1" in toml.render(NodeConfig())
    assert maturity.label("pace.rounds") == ""
