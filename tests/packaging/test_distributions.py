"""The wheel and the sdist have only `starling` at top level, work beside other projects called gossip, node and robust, and run."""

import email
import hashlib
import json
import re
import shutil
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import starling
from starling.node.cli.main import starling as starling_command
from tests.harness.distributions import BUILD, PARTS, distributions, environment, run, source_tree
from tests.harness.processes import ROOT

VERSION = "7.8.9"
OTHERS = ("gossip", "node", "robust")  # projects on PyPI whose packages are called like our folders

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build (wheel, sdist) of the tree with its links, with another version."""
    version = ("src/starling/__init__.py", f'"{starling.__version__}"', f'"{VERSION}"')
    return distributions(source_tree(tmp_path_factory.mktemp("source"), [version]), tmp_path_factory.mktemp("out"))


def files_of(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_has_starling_as_its_only_top_level_package(built):
    files = files_of(built[0])
    assert {name.partition("/")[0].split("-")[0] for name in files} == {"starling", "starling_swarm"}
    for part, folder in (*zip(PARTS, PARTS, strict=True), ("kernels", "benchmarks/kernels")):
        ours = {
            f"starling/{part}/{path.relative_to(ROOT / folder)}"
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and path.suffix in {".py", ".tcss", ".html", ".css", ".js", ".toml", ".gz"}
        }
        assert ours <= files.keys()
    assert {"starling/__init__.py", "starling/py.typed"} <= files.keys()


def test_the_metadata_have_what_an_index_shows(built):
    named = next(text for name, text in files_of(built[0]).items() if name.endswith("/METADATA"))
    metadata = email.message_from_bytes(named)
    assert metadata["Author"] == "Starling developers"
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert "gossip" in metadata["Keywords"]
    assert metadata["Version"] == VERSION


def test_the_version_stands_in_one_file(capsys):
    """A checkout reports it whatever was installed before; CITATION.cff must not repeat it."""
    with pytest.raises(SystemExit):
        starling_command(["--version"])
    assert capsys.readouterr().out == f"starling {starling.__version__}\n"
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in described["project"]
    assert described["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "starling.__version__"}
    assert "\nversion:" not in (ROOT / "CITATION.cff").read_text()


def test_a_released_version_has_its_section_of_the_changelog_on_top():
    """Between releases the version ends in .dev0, and its section is not written yet."""
    newest = re.search(r"^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert starling.__version__ == newest[1] or starling.__version__.endswith(".dev0")


def test_a_wheel_made_from_the_sdist_has_the_same_files(built, tmp_path):
    with tarfile.open(built[1]) as archive:
        assert all(member.isreg() or member.isdir() for member in archive)
        assert all((tmp_path / member.name).resolve().is_relative_to(tmp_path) for member in archive)
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # since Python 3.11.4
    (source,) = tmp_path.iterdir()
    assert source.name == f"starling_swarm-{VERSION}"
    run(sys.executable, "-c", BUILD, tmp_path, cwd=source)
    again = files_of(next(tmp_path.glob("*.whl")))
    for name, content in files_of(built[0]).items():
        if not name.endswith("/RECORD"):
            assert again[name] == content, name


def stub(name, folder):
    """Build a wheel of another project with that name, as on PyPI."""
    place, info = folder / f"{name}-9.9-py3-none-any.whl", f"{name}-9.9.dist-info"
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr(f"{name}/__init__.py", f"WHOSE = 'another {name}'\n")
        archive.writestr(f"{name}/errors.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return place


def test_a_demo_runs_next_to_packages_with_our_folder_names(built, tmp_path):
    """The environment has only the dependencies, which it sees where this one has them."""
    home = tmp_path / "venv"
    site = environment(home, *(stub(name, tmp_path) for name in OTHERS), built[0])

    theirs = {path.name for path in site.iterdir() if not path.name.endswith((".dist-info", ".pth"))}
    assert theirs == {*OTHERS, "starling"}
    for name in OTHERS:
        assert {path.name for path in (site / name).glob("*.py")} == {"__init__.py", "errors.py"}

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    program = "import gossip, node, robust, starling; print(gossip.WHOSE, starling.__file__, starling.simulate.__module__)"
    said = run(home / "bin" / "python", "-c", program, cwd=elsewhere)
    assert said.startswith("another gossip ")
    assert str(site) in said
    words = ["--nodes", "2", "--rounds", "3", "--set", "pace.local_steps=2", "--json"]
    table = json.loads(run(home / "bin" / "starling", "demo", *words, cwd=elsewhere, timeout=200))
    assert [row["state"] for row in table["nodes"]] == ["done", "done"]
    digits = run(home / "bin" / "starling", "examples", "digits", cwd=elsewhere)
    assert digits == (ROOT / "examples" / "digits.toml").read_text()
    hashed = {hashlib.sha256(path.read_bytes()).hexdigest() for path in site.glob("gossip/*.py")}
    assert len(hashed) == 2


def interpreters():
    """Return other supported Pythons on this machine, from pyenv, whose shims may not work, or from the path."""
    for minor in (12, 13):
        of_pyenv = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        found = of_pyenv[-1] if of_pyenv else shutil.which(f"python3.{minor}")
        missing = pytest.mark.skipif(found is None, reason=f"no python3.{minor} is here")
        yield pytest.param(found, marks=missing, id=f"3.{minor}")


READ = """
import sys, warnings, zipfile
warnings.simplefilter("error")
wheel = sys.argv[1]
for name in zipfile.ZipFile(wheel).namelist():
    if name.endswith(".py"):
        compile(zipfile.ZipFile(wheel).read(name), name, "exec")
sys.path.insert(0, wheel)
import starling
print(starling.__file__, len(starling.__all__))
"""


@pytest.mark.parametrize("python", list(interpreters()))
def test_every_installed_supported_python_can_use_the_wheel(built, python):
    """All files compile with warnings as errors; and `import starling` needs no other package."""
    wheel, _ = built
    file, names = run(python, "-c", READ, wheel).split()
    assert Path(file).is_relative_to(wheel)
    assert int(names) > 10
