"""`manifest show|check` and `config show`: the output is a valid file again, and errors take one line."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from starling.node.cli.main import main
from starling.node.config import manifest as manifests
from starling.node.config import toml
from starling.node.config.parts import convert
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.identity import Identity
from starling.node.storage.run_dir import RunDir
from tests.harness.cli_doubles import refused

ROOT = Path(__file__).parents[3]


pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def created():
    return manifests.create(Manifest(name="birds", seed=7), Identity.from_seed(b"s" * 32), 1_700_000_000_000)


WRONG = [
    (["manifest", "check"], ["MANIFEST.toml", "`starling manifest check --help`"]),
    (["manifest", "check", "gone.toml"], ["gone.toml", "cannot be read", "`ls -l gone.toml`"]),
    (["manifest", "check", "m.toml"], ["m.toml", "pace.rounds", "'many'", "`starling config show`"]),
    (["manifest", "check", "task.toml"], ["task.toml", "task.kind", "'imags'", "`task.kind=images`"]),
    (["manifest", "check", "late.toml"], ["late.toml", "membership.suspicion_s", "0.1", "`membership.suspicion_s=2`"]),
    (["manifest", "check", "later.toml"], ["later.toml", "format", "version 2", "reads 1", "`pip install --upgrade"]),
    (["manifest", "check", "odd.toml"], ["odd.toml", "format", "'two'", "`format = 1`"]),
    (["create", "later.toml"], ["later.toml", "version 2", "`pip install --upgrade"]),
    (["manifest", "show"], ["--dir", "starling-node", "`starling create MANIFEST.toml`"]),
    (["manifest", "paint"], ["'paint'", "`starling manifest --help`"]),
    (["config", "show", "all"], ["config show", "'all'", "`starling config show`"]),
    (["config", "show", "--colour"], ["--colour", "`starling config show --help`"]),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=[" ".join(a) for a, _ in WRONG])
def test_wrong_input_is_one_line_that_names_it_and_the_next_command(arguments, words, here, capsys):
    (here / "m.toml").write_text('[pace]\nrounds = "many"\n')
    (here / "task.toml").write_text('[task]\nkind = "imags"\n')
    (here / "late.toml").write_text("[membership]\nsuspicion_s = 0.1\n")
    (here / "later.toml").write_text("format = 2\nwing_beats = 3\n")
    (here / "odd.toml").write_text('format = "two"\n')
    refused(capsys, arguments, *words)


def test_advice_about_a_file_names_each_key_without_the_option_of_other_commands(here, capsys):
    (here / "two.toml").write_text('[mix]\nkind = "push_sum"\n[compress]\nresponse = "int4"\n')
    assert main(["manifest", "check", "two.toml"]) == 2
    assert capsys.readouterr().err.endswith("; try `compress.response=identity`, `compress.select=full`\n")


@pytest.mark.slow
@pytest.mark.real
def test_check_needs_no_torch(here):
    (here / "m.toml").write_text("")
    program = "import sys; from starling.node.cli.main import main; print(main(['manifest', 'check', sys.argv[1]]), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, str(here / "m.toml")], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "0 False\n"


def test_a_manifest_is_shown_and_checked_by_its_directory_too(here, created, capsys):
    place = RunDir.create(here / "n")
    place.write_config(NodeConfig())
    place.write_manifest(created)
    shown = []
    for arguments in (["n"], ["--dir", "n"], ["n/manifest.toml"]):
        assert main(["manifest", "show", *arguments]) == 0
        shown.append(capsys.readouterr().out)
    assert 'name = "birds"' in shown[0]
    assert shown == shown[:1] * 3
    assert main(["manifest", "check", "n"]) == 0
    assert capsys.readouterr().err.endswith(f"{place.manifest_file}: no error found, created as {manifests.swarm_id(created)}\n")


def test_check_notes_settings_that_may_be_unintended(here, capsys):
    (here / "m.toml").write_text("[mix]\nclip_norm = 0.0\n")
    assert main(["manifest", "check", "m.toml"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[0].startswith("note: mix.clip_norm")
    assert said.err.splitlines()[1] == "m.toml: no error found, not created yet"


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("from starling.node.tasks.digits import Digits as Mine\nprint('loud')\n", None),
        (
            "class Mine:\n    def __init__(self, wide: bool): ...\n    metric = higher_is_better = model = data = loss = score = 0\n",
            ["m.toml: task.hidden: mine:Mine has no such key; only digits, images, synthetic take it"],
        ),
        ("import nowhere_at_all\n", ["mine.py", "line 1", "nowhere_at_all"]),
        ("Other = 3\n", ["mine.py", "'Mine'"]),
        (None, ["'mine:Mine'", "no mine.py in"]),
    ],
)
def test_check_imports_the_module_that_the_task_names(module, words, here, capsys):
    """In a separate process: an exception there is one line here, and its output does not reach standard output."""
    (here / "m.toml").write_text('[task]\nkind = "mine:Mine"\nhidden = 9\n')
    if module is not None:
        (here / "mine.py").write_text(module)
    assert main(["manifest", "check", "--trust", "m.toml"]) == (0 if words is None else 2)
    said = capsys.readouterr()
    assert said.out == ""
    assert "loud" not in said.err
    for word in words or ["m.toml: no error found"]:
        assert word in said.err
    if words:
        assert said.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.real
def test_check_imports_the_module_of_every_kind(here, capsys):
    (here / "m.toml").write_text('[mix]\nkind = "my_mixes:Mine"\n')
    assert main(["manifest", "check", "--trust", "m.toml"]) == 2
    assert "m.toml: mix.kind: 'my_mixes:Mine' is not found: no my_mixes.py in" in capsys.readouterr().err
    (here / "my_mixes.py").write_text("from starling.gossip.mix.dsgd import Dsgd as Mine\n")
    assert main(["manifest", "check", "--trust", "m.toml"]) == 0


@pytest.mark.parametrize("key", ["mix", "task"])
def test_check_runs_no_code_that_a_manifest_names_without_consent(key, here, capsys):
    (here / "m.toml").write_text(f'[{key}]\nkind = "theirs:Mine"\n')
    (here / "theirs.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    assert main(["manifest", "check", "m.toml"]) == 0
    assert f"note: {key}.kind: theirs:Mine is not imported" in capsys.readouterr().err
    assert not (here / "ran").exists()


def test_check_verifies_the_signature_of_a_created_manifest(here, created, capsys):
    (here / "m.toml").write_text(toml.to_toml(created))
    assert main(["manifest", "check", "m.toml"]) == 0
    assert manifests.swarm_id(created) in capsys.readouterr().err
    (here / "m.toml").write_text(toml.to_toml(created).replace("seed = 7", "seed = 8"))
    refused(capsys, ["manifest", "check", "m.toml"], "starling: m.toml: signature")


def test_show_prints_the_node_s_manifest_as_a_file_with_its_swarm(here, created, capsys):
    place = RunDir.create(here / "n")
    place.write_config(NodeConfig())
    place.write_manifest(created)
    assert main(["manifest", "show", "--dir", "n"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"# swarm {manifests.swarm_id(created)}, signature good\n")
    assert convert(toml.parse(out), Manifest) == created


def test_show_fills_in_a_file_s_defaults(here, capsys):
    (here / "m.toml").write_text('name = "birds"\n')
    assert main(["manifest", "show", "m.toml"]) == 0
    assert convert(toml.parse(capsys.readouterr().out), Manifest) == Manifest(name="birds")


def test_show_before_the_manifest_has_come_says_how_to_get_it(here, capsys):
    RunDir.create(here / "n").write_config(NodeConfig())
    assert main(["manifest", "show", "--dir", "n"]) == 2
    assert "`starling run --dir n`" in capsys.readouterr().err


@pytest.mark.parametrize(("part", "kind"), [("manifest", Manifest), ("node", NodeConfig)])
def test_one_section_of_the_settings_is_a_valid_template_file(part, kind, capsys):
    """`starling config show manifest > manifest.toml`, edit, `starling create manifest.toml`."""
    assert main(["config", "show", part]) == 0
    assert convert(toml.parse(capsys.readouterr().out), kind) == kind()


def test_config_show_prints_every_key_with_its_meaning(capsys):
    assert main(["config", "show"]) == 0
    out = capsys.readouterr().out
    for words in ("[pace]", "rounds = 200", "endless", 'device = "auto"', "[limits]", "(defaults)"):
        assert words in out


def test_config_show_prints_what_the_node_in_the_directory_has(here, created, capsys):
    place = RunDir.create(here / "n")
    place.write_config(NodeConfig(device="cpu"))
    place.write_manifest(created)
    assert main(["config", "show", "--dir", "n"]) == 0
    out = capsys.readouterr().out
    assert "(n/node.toml)" in out
    manifest, node = out.split("# The node's own settings")
    assert tomllib.loads(manifest)["seed"] == 7
    assert tomllib.loads("#" + node)["device"] == "cpu"
