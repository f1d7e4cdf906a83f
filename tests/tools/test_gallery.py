"""The examples gallery: every README has a checked command and figures, and the runner refuses others."""

import json
import subprocess
from pathlib import Path

import pytest

from starling.node.config import presets
from starling.node.simulate.schema import Scenario
from tests.harness import pages
from tests.harness.programs import needs
from tests.harness.texts import words
from tools import gallery

ROOT = Path(__file__).parents[2]
EXAMPLES = {example.name: example for example in gallery.gallery()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_one_command_and_its_own_figures_are_accepted(name):
    """Its scenario is valid, and the measured figures lie well within the accepted ranges."""
    example = EXAMPLES[name]
    for figure in example.figures:
        assert figure.least < figure.was < figure.most or figure.was == figure.most == 1.0
    if (scenario := ROOT / "examples" / name / "scenario.toml").exists():
        presets.load(Scenario, scenario)
        assert "starling simulate" in example.command
        assert scenario.name in example.command
    assert f"]({name}/README.md)" in (ROOT / "examples/README.md").read_text()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_command_on_the_page_is_the_one_that_is_run(name, monkeypatch, capsys):
    """Character for character, from the repository's root, with --json added."""
    page = ROOT / "examples" / name / "README.md"
    (line,) = pages.block(page, "gallery").lines
    typed = []

    def run(words, *, cwd, shell, **options):
        typed.append((words, cwd, shell))
        return subprocess.CompletedProcess(words, 1)

    monkeypatch.setattr(gallery.Example, "missing", [])
    monkeypatch.setattr(gallery.subprocess, "run", run)
    assert gallery.main([name]) == 1  # the output contains no such figures
    assert typed == [(f"{line} --json", ROOT, True)]
    assert f"{name}: {line}\n" in capsys.readouterr().out


def test_the_number_of_examples_is_the_index_s():
    assert set(EXAMPLES) == {
        *words(
            "digits mnist-by-label own-loop own-loop-gan own-loop-lightning own-loop-trainer gpt-by-author spoken-digits batchnorm-cnn",
            "open-swarm own-part lora crew wan-containers",
        )
    }


PRINTED = {
    "runs": [
        {"labels": {"mix.kind": "pet", "simulate.seed": 0}, "rows": [{"mean": 0.1}, {"mean": 0.9}]},
        {"labels": {"mix.kind": "dsgd", "simulate.seed": 0}, "rows": [{"mean": 0.5}]},
    ]
}


def test_figures_are_looked_up_by_label_or_key():
    assert gallery.looked_up(PRINTED, "mix.kind=pet") == 0.9
    assert gallery.looked_up({"alone": {"value": 0.25}, "mean": 1}, "alone.value") == 0.25
    for where in ("mix.kind=beer", "simulate.seed=0", "last"):
        with pytest.raises(LookupError, match="runs are"):
            gallery.looked_up(PRINTED, where)


@pytest.mark.parametrize(("pet", "code", "said"), [("0.8 to 1.0", 0, "0 failed"), ("0.1 to 0.4", 1, "NOT in 0.1 to 0.4")])
def test_a_figure_that_is_not_accepted_fails(tmp_path, monkeypatch, capsys, pet, code, said):
    """A shell runs the command unchanged."""
    (tmp_path / "printed.json").write_text(json.dumps(PRINTED))
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "README.md").write_text(
        f"# One\n\n```bash gallery\ncd {tmp_path} && cat printed.json; true\n```\n\n## Expected\n\n| `mix.kind=pet` | 0.9 | {pet} |\n"
    )
    monkeypatch.setattr(gallery, "FOLDER", tmp_path)
    assert gallery.main([]) == code
    assert said in capsys.readouterr().out
    assert gallery.main(["another"]) == 2


def test_missing_needs_are_skipped_by_name(monkeypatch, capsys):
    monkeypatch.delenv("STARLING_DATA", raising=False)
    assert gallery.main(["mnist-by-label"]) == 0
    assert EXAMPLES["lora"].needs == ("import peft", "import transformers", "authors")
    monkeypatch.setenv("PATH", "/nowhere")
    assert gallery.main(["wan-containers"]) == 0
    said = capsys.readouterr().out
    assert "wan-containers: skipped, needs a Docker engine; " in said
    assert "mnist-by-label: skipped, needs mnist; " in said


def test_own_tasks_of_the_gallery_can_be_compiled():
    """They are not imported, since they need data or libraries."""
    for path in (ROOT / "examples").glob("*/*.py"):
        compile(path.read_text(), str(path), "exec")


@needs("git")
def test_no_example_names_a_local_path():
    listed = subprocess.run(["git", "ls-files", "examples"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in listed:
        assert "/home/" not in (text := (ROOT / name).read_text())
        assert "/tmp" not in text
