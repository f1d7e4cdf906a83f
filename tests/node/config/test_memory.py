"""A task's memory is estimated before it is allocated."""

import psutil
import pytest

from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.node.catalogues import TASKS, task
from starling.node.cli.main import main
from starling.node.config import memory
from starling.node.config.schema import Manifest, TaskSection
from starling.node.rpc import calls
from tests.harness import engines

GB = 10**9
SIZED = [kind for kind in TASKS.built_in if kind != "script"]  # a script makes its model itself
HUGE = {
    "digits": {"hidden": 65_536, "batch_size": 65_536},
    "images": {"hidden": 65_536, "height": 1024, "width": 1024},
    "synthetic": {"model": "mlp", "hidden": 65_536, "batch_size": 65_536},
    "text": {"width": 16_384, "layers": 256, "path": "x"},
    "quadratic": {"dim": 4096, "nodes": 4096},
    "diagonal": {"dim": 1 << 24},
    "logistic": {"dim": 4096, "nodes": 4096, "samples": 65_536},
}


def agreed(kind, **keys):
    return Manifest(task=TaskSection(kind=kind, **keys))


@pytest.mark.parametrize("kind", SIZED)
def test_the_largest_allowed_model_is_refused_in_one_line(kind):
    why = memory.objection(agreed(kind, **HUGE[kind]), GB // 2)
    assert why.startswith("task: needs at least")
    assert "500 MB are there" in why
    assert "`" in why
    assert "\n" not in why


@pytest.mark.parametrize("kind", TASKS.built_in)
def test_the_defaults_fit_into_half_a_gigabyte(kind):
    assert memory.objection(agreed(kind), GB // 2) == ""


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("digits", {"hidden": 7}),
        ("digits", {"model": "cnn", "hidden": 7}),
        ("synthetic", {}),
        ("synthetic", {"model": "mlp"}),
        ("images", {"height": 9, "width": 5, "channels": 3, "hidden": 4, "classes": 6}),
        ("images", {"height": 9, "width": 5, "channels": 3, "hidden": 4, "model": "cnn"}),
        ("text", {"context": 9, "width": 12, "layers": 3, "heads": 2}),
        ("quadratic", {"dim": 9}),
        ("diagonal", {"dim": 9}),
        ("logistic", {"dim": 9}),
    ],
)
def test_the_parameters_of_the_model_are_counted_without_making_it(kind, keys):
    model = task(kind, keys).model(generator(0, "model"))
    assert TASKS.keyed(kind)(**keys).size().parameters == sum(each.numel() for each in model.parameters())


def test_the_suggested_batch_size_fits():
    manifest = agreed("digits", hidden=4096, batch_size=65_536)
    why = memory.objection(manifest, 2 * GB)
    fits = int(why.partition("task.batch_size=")[2].partition("`")[0])
    assert 10_000 < fits < 65_536
    assert memory.objection(agreed("digits", hidden=4096, batch_size=fits), 2 * GB) == ""
    assert memory.objection(agreed("digits", hidden=4096, batch_size=fits + 1), 2 * GB)


def test_no_batch_size_is_suggested_if_none_fits():
    assert "smaller keys of `task`" in memory.objection(agreed("text", width=16_384, layers=64), GB)


def test_a_custom_task_s_model_counts_after_its_creation():
    own = agreed("digits")
    assert memory.objection(own, GB, 10**7) == ""
    with pytest.raises(ConfigError, match=r"a model of 1\.0 GB"):
        memory.check(agreed("my_task:Large"), GB, GB)


def test_a_limit_of_the_address_space_limits_memory(monkeypatch):
    taken = psutil.Process().memory_info().vms
    monkeypatch.setattr(memory.platform, "address_space", lambda: taken + (256 << 20))
    assert 128 << 20 < memory.available() <= 256 << 20
    monkeypatch.setattr(memory.platform, "address_space", lambda: taken // 2)
    assert memory.available() == 0
    monkeypatch.setattr(memory.platform, "address_space", lambda: None)
    assert memory.available() > 256 << 20


def test_an_engine_refuses_before_it_makes_the_task(monkeypatch):
    made = []
    monkeypatch.setattr(memory, "available", lambda: GB // 2)
    monkeypatch.setattr("starling.node.engine.local.placing.task", lambda *it: made.append(it))
    reply = engines.Worker().handle(engines.open_request(engines.manifest(params={"hidden": 65_536, "batch_size": 65_536})))
    assert isinstance(reply, calls.Refused)
    assert reply.kind == "config"
    assert "needs at least" in reply.reason
    assert made == []


def test_an_engine_refuses_a_model_whose_copies_would_not_fit(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 70_000)  # four times 4,810 numbers are more
    monkeypatch.setattr(memory.sizes, "of", lambda task: None)
    reply = engines.Worker().handle(engines.open_request(engines.manifest()))
    assert isinstance(reply, calls.Refused)
    assert "a model of 19 kB" in reply.reason


def test_a_check_of_a_manifest_warns_of_too_little_memory(tmp_path, capsys, monkeypatch):
    """It does not refuse, since this machine need not be a member's."""
    file = tmp_path / "m.toml"
    file.write_text("[task]\nhidden = 65536\nbatch_size = 65536\n")
    monkeypatch.setattr(memory, "available", lambda: GB)
    assert main(["manifest", "check", str(file)]) == 0
    said = capsys.readouterr().err
    assert "note: task: needs at least" in said
    assert "no error found" in said


@pytest.mark.parametrize(
    ("own", "files", "there"),
    [
        ("0::/a/b\n", {"a/memory.max": "5000", "a/b/memory.max": "max"}, 5000),
        ("0::/a/b\n", {"a/memory.max": "5000", "a/b/memory.max": "4000"}, 4000),
        ("0::/\n", {"memory.max": "3000"}, 3000),
        ("4:cpu,memory:/a\n9:name=x:/\n0::/\n", {"memory/a/memory.limit_in_bytes": "2000"}, 2000),
        ("4:memory:/elsewhere\n", {"memory/memory.limit_in_bytes": "1000"}, 1000),
        ("nonsense\n", {}, None),
    ],
)
def test_memory_limits_of_containers_and_units_count(tmp_path, own, files, there):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(own)
    found = memory.available(tmp_path, tmp_path / "own")
    assert found == there if there is not None else found > GB // 2
    assert memory.available(tmp_path, tmp_path / "nothing") > GB // 2
