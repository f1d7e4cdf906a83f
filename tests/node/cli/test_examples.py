"""`starling examples` and `create --example`: the example files are available without a checkout."""

import pytest

from starling.node.cli import examples
from starling.node.cli.main import main
from starling.node.config import presets
from starling.node.config.schema import Manifest
from starling.node.storage.run_dir import RunDir
from tests.harness.cli_doubles import Daemon

pytestmark = pytest.mark.usefixtures("here")


def test_the_list_says_what_each_example_shows(capsys):
    assert main(["examples"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == examples.names()
    assert all(len(line.split()) > 5 for line in lines)


def test_a_copy_is_the_printed_example_and_replaces_nothing(here, capsys):
    assert main(["examples", "digits"]) == 0
    text = capsys.readouterr().out
    assert main(["examples", "digits", "--copy", "mine.toml"]) == 0
    assert "`starling create mine.toml`" in capsys.readouterr().err
    assert (here / "mine.toml").read_text() == text
    (here / "mine.toml").write_text("edited")
    assert main(["examples", "digits", "--copy", "mine.toml"]) == 2
    assert (here / "mine.toml").read_text() == "edited"


def test_create_takes_an_example_by_name(here, monkeypatch, capsys):
    monkeypatch.setattr("starling.node.daemon.main.run", Daemon())
    assert main(["create", "--example", "digits", "--set", "seed=4"]) == 0
    manifest = RunDir.existing(here / "starling-node").read_manifest()
    assert (manifest.name, manifest.seed) == ("digits", 4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["examples", "digit"], ["'digit'", "did you mean digits?", "`starling examples`"]),
        (["examples", "DIGITS"], ["did you mean digits?"]),
        (["examples", "../pyproject"], ["'../pyproject'"]),
        (["examples", "--copy", "x.toml"], ["--copy", "`starling examples digits --copy digits.toml`"]),
        (["create", "--example", "digit"], ["did you mean digits?"]),
        (["create", "m.toml", "--example", "digits"], ["--example", "m.toml"]),
        (["examples", "digits", "--copy", "gone/x.toml"], ["gone/x.toml"]),
    ],
)
def test_wrong_input_is_one_line(arguments, words, here, capsys):
    assert main(arguments) in {1, 2}
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    for word in words:
        assert word in said.err
    assert list(here.iterdir()) == []


def test_every_example_manifest_loads():
    for name in examples.names():
        if not name.startswith(("simulate", "plan")):
            presets.load(Manifest, examples.find(name))
