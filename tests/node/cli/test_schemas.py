"""Published schemas equal the types, accept what commands print, and reject other documents."""

import json
import math
from types import SimpleNamespace

import jsonschema
import msgspec
import pytest

from starling.node.cli.main import main, starling
from starling.node.status import control
from starling.node.status import snapshot as status
from starling.node.status.snapshot import Point, Resources, Transaction
from tests.harness.cli_doubles import ADDRESS, DONE, INVITE, SWARM, TABLE, Canned, Daemon, leaves
from tests.harness.schemas import FOLDER, valid, validator
from tests.harness.snapshots import bare, snapshot
from tools import schemas

VERDICT = {"peer": "12D3KooWevil", "standing": "ban", "trusted": False, "why": "spam", "shut_out_s": None}
FULL = snapshot(
    swarm=SWARM,
    addresses=(ADDRESS,),
    problem="try `starling peers`",
    delta=1e-5,
    up_limit_bytes_per_s=1_000_000,
    distance=0.01,
    resources=Resources(cpu=0.5, memory_bytes=1 << 28, gpu=0.25),
    distance_curve=(Point(1, 0.5, 0.1),),
    ranks=("a", "b"),
    links=((0, 1),),
    transactions=(Transaction(1.0, "12D3KooWalive01", 3, 4, True, "committed", 10, 20, 0.5, 0.25),),
    loss=math.nan,
)


@pytest.fixture
def running(monkeypatch):
    """A node that answers as a real one would, field by field."""
    answers = {
        "evaluate": {"metric": "accuracy", "value": 0.97222, "round": 40},
        "revoke": {"removed": ["12D3KooWevil"]},
        "limits": {"up_bytes_per_s": 2_000_000, "down_bytes_per_s": 0, "threads": 2},
        **dict.fromkeys(("ban", "unban", "trust"), VERDICT),
    }
    monkeypatch.setattr(control, "request", lambda run_dir, op, **fields: answers.get(op, {}))
    monkeypatch.setattr(control, "status", lambda run_dir: FULL)


@pytest.fixture
def ended(running, monkeypatch):
    """A node that does not answer, but has left its model on the disk."""

    def request(run_dir, op, **fields):
        raise control.NotRunning(run_dir)

    monkeypatch.setattr(control, "request", request)


def printed(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return out


@pytest.mark.parametrize("name", schemas.TYPES)
def test_the_published_schema_is_that_of_the_types(name):
    path = FOLDER / f"{name}.json"
    assert path.exists(), "run `python tools/schemas.py docs/schemas`"
    assert path.read_text() == schemas.text(name), "older than the types: run `python tools/schemas.py docs/schemas`"
    jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))


def test_every_command_with_json_has_a_schema_and_every_schema_a_command():
    with_json = {name for name, command in leaves(starling) if any("--json" in each.opts for each in command.params)}
    assert with_json == set(schemas.TYPES) == {path.stem for path in FOLDER.glob("*.json")}


@pytest.mark.parametrize("name", schemas.TYPES)
def test_every_document_says_its_version(name):
    assert "version" in validator(name).schema["required"]
    with pytest.raises(jsonschema.ValidationError):
        validator(name).validate({})


@pytest.mark.parametrize("shown", [FULL, snapshot(), bare()], ids=["full", "usual", "bare"])
def test_a_status_fits_its_schema_and_one_without_a_key_does_not(shown):
    document = valid("status", status.encode(shown))
    assert document["version"] == status.VERSION
    del document["round"]
    with pytest.raises(jsonschema.ValidationError, match="round"):
        validator("status").validate(document)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("status", ["status"]),
        ("peers", ["peers"]),
        ("eval", ["eval"]),
        ("ban", ["ban", "evil"]),
        ("unban", ["unban", "evil"]),
        ("trust", ["trust", "evil"]),
        ("revoke", ["revoke", "3"]),
        ("invite", ["invite"]),
        ("limits", ["limits", "--up", "2MB"]),
    ],
)
def test_output_about_a_running_node_fits_its_schema(name, arguments, running, here, capsys):
    document = valid(name, printed(capsys, *arguments))
    assert next(iter(document)) == "version"


def test_an_invitation_fits_its_schema(running, here, capsys, monkeypatch):
    """With its number and its expiry, where members are invited."""
    monkeypatch.setattr("starling.node.daemon.main.run", Daemon())
    assert main(["create", "--preset", "vouched", "--dir", "starling-node"]) == 0
    place = here / "starling-node"
    swarm = json.loads(_after(capsys, ["manifest", "show", "--dir", str(place)]))["swarm"]
    monkeypatch.setattr(control, "status", lambda run_dir: msgspec.structs.replace(FULL, swarm=swarm))
    invited = valid("invite", printed(capsys, "invite", "--days", "3"))
    assert invited["number"] == 1  # the creator's first invite has number 0
    assert invited["left"] is None


def _after(capsys, arguments):
    capsys.readouterr()
    return printed(capsys, *arguments)


def test_output_of_create_join_and_export_fits_its_schema(here, capsys, monkeypatch, ended):
    monkeypatch.setattr("starling.node.daemon.main.run", Daemon())
    created = valid("create", printed(capsys, "create", "--dir", "a"))
    assert created["invite"].startswith("starling1:")
    joined = valid("join", printed(capsys, "join", INVITE, "--dir", "b"))
    assert joined["addresses"] == [ADDRESS]
    assert joined["peer"] != created["peer"]
    (here / "a" / "model.safetensors").write_bytes(b"model")
    exported = valid("export", printed(capsys, "export", "m.safetensors", "--dir", "a"))
    assert exported == {"version": 1, "file": str(here / "m.safetensors"), "bytes": 5}
    assert valid("manifest-show", printed(capsys, "manifest", "show", "--dir", "a"))["swarm"] == created["swarm"]


def test_printed_settings_fit_their_schema(here, capsys):
    assert valid("config-show", printed(capsys, "config", "show")).keys() == {"version", "manifest", "node"}
    for part in ("manifest", "node", "scenario"):
        assert valid("config-show", printed(capsys, "config", "show", part)).keys() == {"version", part}
    assert valid("config-show", printed(capsys, "config", "show", "manifest", "--preset", "open"))["manifest"]["preset"] == "open"
    (here / "m.toml").write_text('name = "birds"\n')
    shown = valid("manifest-show", printed(capsys, "manifest", "show", "m.toml"))
    assert (shown["swarm"], shown["manifest"]["name"]) == (None, "birds")


@pytest.mark.parametrize("row", [DONE, {"peer": "12D3KooWsilent", "state": "failed", "byzantine": True}])
@pytest.mark.parametrize("ban", [None, {"round": None, "after_s": 3.5, "mean": None, "min": 0.5}])
def test_output_of_a_demo_fits_its_schema_with_a_silent_node_and_a_ban(row, ban, tmp_path, monkeypatch, capsys):
    def canned(plan):
        demo = Canned(plan)
        demo.table = {**TABLE, "nodes": [row], "ban": ban, "mean": math.nan}
        demo.members = [SimpleNamespace(run_dir=tmp_path)]
        return demo

    monkeypatch.setattr("starling.node.demo.swarm.Demo", canned)
    assert main(["demo", "--json"]) in {0, 1}
    assert valid("demo", capsys.readouterr().out)["mean"] is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("overlay-show", ["overlay", "show", "base_k", "-n", "9", "--k", "2"]),
        ("overlay-show", ["overlay", "show", "sticky", "-n", "700", "--k", "2"]),
        ("overlay-show", ["overlay", "show", "erdos_renyi", "-n", "12", "--set", "factor=1.5"]),
        ("overlay-compare", ["overlay", "compare", "-n", "9", "--kinds", "ring,base_k", "--rounds", "5"]),
        ("overlay-sampling", ["overlay", "sampling", "-n", "16", "--bad", "3"]),
        ("overlay-sampling", ["overlay", "sampling", "-n", "16", "--bad", "8"]),
    ],
)
def test_printed_overlays_fit_their_schema(name, arguments, capsys):
    valid(name, printed(capsys, *arguments))


@pytest.mark.acceptance
@pytest.mark.slow
@pytest.mark.real
def test_output_of_a_simulation_fits_its_schema(here, capsys):
    """A sweep with a target, run by worker processes."""
    (here / "s.toml").write_text(
        '[simulate]\nnodes = 4\ntarget = 0.5\n[task]\nkind = "diagonal"\ndim = 30\n'
        '[pace]\nrounds = 2\nlocal_steps = 1\n[sweep.grid]\nmix.kind = ["pet", "dsgd"]\n'
    )
    found = valid("simulate", printed(capsys, "simulate", "s.toml"))
    assert [run["labels"]["mix.kind"] for run in found["runs"]] == ["pet", "dsgd"]


def test_an_unset_field_may_be_missing():
    class Half(msgspec.Struct):
        """Has a required and an unset field."""

        there: int
        perhaps: int | msgspec.UnsetType = msgspec.UNSET

    definition = {"properties": {"there": {}, "perhaps": {}}}
    schemas.complete(definition, Half)
    assert definition["required"] == ["there"]


def test_the_argument_help_creates_no_folder(here, capsys):
    """`help` used to be taken for a folder."""
    with pytest.raises(SystemExit) as ended:
        schemas.main(["--help"])
    assert (ended.value.code, list(here.iterdir())) == (0, [])
    assert "FOLDER" in capsys.readouterr().out
