"""One node of a running swarm is moved to a later version and back, as docs/upgrade.md says."""

import json
import shlex

import pytest

from starling import __version__
from starling.node import forks
from tests.harness.distributions import source_tree
from tests.harness.processes import OWN, PATIENCE_S, bash, starling, status_of, terminals

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.usefixtures("warm_engines")]
LATER = "7.8.9"
OWN_KEY = "    own: Annotated[float, Meta(ge=0, le=0.5)] = 0.0\n"
CHANGES = [
    ("src/starling/__init__.py", f'"{__version__}"', f'"{LATER}"'),
    ("node/versions.py", '"state": Range(2, 2)', '"state": Range(2, 3)'),
    ("node/config/manifest.py", "_LATER: Mapping[str, object] = MappingProxyType({})", '_LATER = {"mix.novel": 0.0}'),
    ("node/config/schema.py", OWN_KEY, f"    novel: float = 0.0\n{OWN_KEY}"),
]
"""A later version: another lane version, which it speaks beside that of today, and another key in manifests."""
SWARM = (
    "--set pace=clock --set pace.slot_s=0.2 --set pace.rounds=0 --set task=quadratic --set task.nodes=2 "
    "--set partition.shards=2 --set optimizer.schedule=constant"
)


@pytest.fixture(scope="module")
def later(tmp_path_factory):
    """Return the command of a later version, typed in a terminal."""
    source = source_tree(tmp_path_factory.mktemp("source"), CHANGES)
    return f"env -u {forks.FOLDER} PYTHONPATH={shlex.quote(str(source / 'src'))} starling"


def exchanging(run_dir, more_than=0):
    now = status_of(run_dir)
    return now if now is not None and now.exchanges.committed > more_than else None


def test_a_node_is_upgraded_and_downgraded_while_its_swarm_trains(tmp_path, later):
    """Its identity, swarm and model stay; the versions exchange with each other, and each reads the other's files."""
    with terminals() as terminal:
        creator = terminal(f"starling create {SWARM} {OWN} --shard 0 --dir creator --json", tmp_path, "creator")
        invite = json.loads(creator.until(creator.first_line))["invite"]
        node = terminal(f"starling join {invite} {OWN} --shard 1 --dir node", tmp_path, "node")
        before = node.until(lambda: exchanging(tmp_path / "node"))
        for number, program in enumerate((later, "starling")):
            check = f"{program} upgrade-check node"
            assert "restart the node" in bash(check, tmp_path)
            starling("leave", "--dir", "node", cwd=tmp_path)
            assert node.process.wait(PATIENCE_S) == 0
            assert "`starling run`" in bash(check, tmp_path)
            assert (LATER in bash(check, tmp_path)) == (program is later)
            was = status_of(tmp_path / "creator").exchanges.committed
            node = terminal(f"{program} run --dir node", tmp_path, f"node{number}")
            now = node.until(lambda: exchanging(tmp_path / "node"))
            assert (now.peer, now.swarm) == (before.peer, before.swarm)
            assert now.round >= before.round
            creator.until(lambda was=was: exchanging(tmp_path / "creator", was))


def test_a_key_of_the_later_version_is_refused_by_the_older_in_one_line(tmp_path, later):
    """Nothing is lost: the owner is told to upgrade."""
    with terminals() as terminal:
        creator = terminal(f"{later} create {SWARM} {OWN} --set mix.novel=0.5 --dir creator --json", tmp_path, "creator")
        invite = json.loads(creator.until(creator.first_line))["invite"]
        node = terminal(f"starling join {invite} {OWN} --dir node", tmp_path, "node")
        assert node.process.wait(PATIENCE_S) == 2
        *_, line = node.err.strip().splitlines()
        assert "created with another version: mix.novel" in line
        assert "pip install --upgrade" in line
