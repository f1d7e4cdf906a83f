"""`import starling` is lazy and typed, and the code of docs/api.md works unchanged."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import starling
from starling.gossip.errors import ConfigError
from tests.harness import pages

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text()
SCRIPTS = [block.text for block in pages.blocks(ROOT / "docs" / "api.md", "script")]


def in_child(program, **options):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, **options)


def test_importing_is_light_and_every_name_exists():
    program = (
        "import sys, starling; heavy = {'torch', 'trio', 'numpy', 'msgspec', 'libp2p'} & set(sys.modules); "
        "print(sorted(heavy), all(hasattr(starling, name) for name in starling.__all__))"
    )
    assert in_child(program).stdout == "[] True\n"


def test_creation_from_a_script_needs_no_torch(tmp_path):
    program = "import sys, starling; starling.create('n', task='digits', rounds=3); print('torch' in sys.modules, 'trio' in sys.modules)"
    done = in_child(program, cwd=tmp_path)
    assert done.stdout == "False False\n", done.stderr


def test_every_name_of_the_package_is_on_the_page_or_its_docstring():
    assert dir(starling) == sorted(dir(starling))
    assert set(starling.__all__) <= set(dir(starling))
    for name in ("create", "join", "Node", "run", "attach", "simulate", "Manifest", "Task"):
        assert f"starling.{name}" in PAGE
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        starling.nothing  # noqa: B018


def test_the_compatibility_page_lists_exactly_the_package_s_names():
    """docs/compatibility.md lists exactly the package's names."""
    line = re.search(r"^The names are (.*)\.$", (ROOT / "docs" / "compatibility.md").read_text(), re.MULTILINE)[1]
    assert sorted(re.findall(r"`(\w+)`", line)) == sorted(starling.__all__)


def test_a_former_name_warns_and_gives_the_new_object():
    with pytest.warns(DeprecationWarning, match=r"starling\.found is called starling\.create now"):
        assert starling.found is starling.create
    assert "found" not in dir(starling)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("script", SCRIPTS, ids=["simulate", "node"])
def test_the_scripts_of_the_page_run_as_they_stand(script, tmp_path):
    assert len(script.splitlines()) <= 20
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") >= 2
    assert not [each for each in psutil.process_iter(["cwd"]) if (each.info["cwd"] or "").startswith(str(tmp_path))]


@pytest.mark.slow
@pytest.mark.real
def test_ctrl_c_in_a_script_ends_its_nodes_in_order(tmp_path):
    """One SIGINT to the whole group, as a terminal sends it."""
    (tmp_path / "script.py").write_text(
        "import starling\n"
        "node = starling.create('n', task='digits', rounds=0, set={'pace.quorum': 1, 'optimizer.schedule': 'constant'},\n"
        "                      listen='/ip4/127.0.0.1/tcp/0', device='cpu')\n"
        "with node:\n"
        "    for status in node:\n"
        "        print(status.state, flush=True)\n"
    )
    script = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert any("training" in line for line in script.stdout)
        os.killpg(script.pid, signal.SIGINT)
        began = time.monotonic()
        assert script.wait(30) != 0
        assert time.monotonic() - began < 8.0
        assert starling.attach(tmp_path / "n").last.ended == "left"
    finally:
        script.kill()
        script.communicate()


def test_wrong_input_is_a_config_error_before_anything_is_written(tmp_path):
    for wrong in ({"task": "digts"}, {"set": {"pace.rouns": 3}}, {"shard": 99}, {"data": tmp_path / "gone"}, {"device": "tpu"}):
        with pytest.raises(ConfigError):
            starling.create(tmp_path / "n", **wrong)
    with pytest.raises(ConfigError, match="invite"):
        starling.join(tmp_path / "n", "hello")
    with pytest.raises(ConfigError, match="n does not exist"):
        starling.attach(tmp_path / "n")
    with pytest.raises(ConfigError, match="n does not exist"):
        starling.Node(tmp_path / "n").start()
    assert not (tmp_path / "n").exists()


def test_the_catalogues_list_the_parts_of_a_manifest():
    assert {"pet", "dsgd"} <= set(starling.catalogues["mix.kind"])
    assert "digits" in starling.catalogues["task.kind"]


def test_a_manifest_may_be_a_file_or_a_value(tmp_path):
    (tmp_path / "m.toml").write_text("seed = 7\n")
    starling.create(tmp_path / "a", tmp_path / "m.toml", rounds=3)
    starling.create(tmp_path / "b", starling.Manifest(seed=9), set={"pace.local_steps": 2})
    texts = [(tmp_path / name / "manifest.toml").read_text() for name in "ab"]
    assert "seed = 7" in texts[0]
    assert "rounds = 3" in texts[0]
    assert "seed = 9" in texts[1]
    assert "local_steps = 2" in texts[1]


@pytest.mark.real
def test_a_node_that_cannot_start_says_why(tmp_path):
    node = starling.create(tmp_path / "n", task="digits", listen="/ip4/203.0.113.7/tcp/9")
    with pytest.raises(starling.GossipError, match=r"ended with exit code 2.*203"):  # noqa: SIM117
        with node:
            node.wait_until_up()
    with pytest.raises(starling.GossipError, match="ended with"):
        starling.run(tmp_path / "n")
