"""Create, join, run, and requests to a running node: wrong input takes one line and changes nothing."""

import json
import stat
import time
from pathlib import Path

import pytest

from starling.gossip.errors import ConfigError
from starling.node.admission.invite import Invite, decode, encode
from starling.node.admission.issue import give, take_up
from starling.node.cli.main import main
from starling.node.config import manifest as manifests
from starling.node.config import toml
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.identity import Identity
from starling.node.status import control
from starling.node.status.final import FinalStatus
from starling.node.storage.run_dir import RunDir
from tests.harness.cli_doubles import ADDRESS, INVITE, PEER, SWARM, Daemon, refused
from tests.harness.invitations import CREATOR, TERMS
from tests.harness.snapshots import snapshot

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def daemon(monkeypatch):
    fake = Daemon()
    monkeypatch.setattr("starling.node.daemon.main.run", fake)
    return fake


@pytest.fixture
def running(monkeypatch):
    """Pretend that a node runs in every directory, and record the requests to it."""
    asked = []
    answers = {"evaluate": {"metric": "accuracy", "value": 0.97222, "round": 40}}

    def request(run_dir, op, **fields):
        asked.append((op, fields))
        if op == "export":
            Path(fields["path"]).write_bytes(b"model")
        return answers.get(op, {})

    monkeypatch.setattr(control, "request", request)
    monkeypatch.setattr(control, "status", lambda run_dir: snapshot(swarm=SWARM, addresses=(ADDRESS,)))
    asked.append(answers)
    return asked


class Connection:
    """A connection to a running node."""

    def close(self):
        pass


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


WRONG = [
    (["create", "nowhere.toml"], ["nowhere.toml", "cannot be read", "`ls -l nowhere.toml`"]),
    (["create", "--nonsense"], ["--nonsense", "`starling create --help`"]),
    (["create", "--set", "pace.rouns=5"], ["pace.rouns", "did you mean pace.rounds?", "`starling config show`"]),
    (["create", "--set", "pace.rounds=-4"], ["pace.rounds", "-4", ">= 0", "`starling config show`"]),
    (["create", "--set", "task=digit"], ["task.kind", "'digit'", "--set task.kind=digits"]),
    (["create", "--set", "pace.min_wait_s=99"], ["pace.min_wait_s", "99", "`--set pace.min_wait_s=10`"]),
    (["create", "--device", "tpu"], ["device", "'tpu'", "auto, cpu, cuda, mps", "`starling config show`"]),
    (["create", "--shard", "9", "--set", "partition.shards=4"], ["partition.shards = 4", "got 9", "`--shard 3`"]),
    (["create", "--nice", "20"], ["nice", "20", ">= 0 and <= 19", "`starling config show`"]),
    (["create", "--up", "10"], ["--up", "unit", "'10'", "`--up 10mbit`"]),
    (["create", "--listen", "0.0.0.0:4001"], ["--listen", "'0.0.0.0:4001'", "`--listen /ip4/0.0.0.0/tcp/4001`"]),
    (["create", "--listen", "4001"], ["'4001'", "`--listen /ip4/0.0.0.0/tcp/4001`"]),
    (["create", "--listen", "[::]:4001"], ["`--listen /ip6/::/tcp/4001`"]),
    (["create", "--announce", "me.example:9"], ["'me.example:9'", "`--announce /dns4/me.example/tcp/9`"]),
    (["create", "--listen", "udp"], ["'udp'", "`--listen /ip4/0.0.0.0/tcp/4001`"]),
    (["eval", "--data", "gone.npz"], ["--data", "'gone.npz'", "`ls "]),
    (["create", "--shard", "two"], ["shard", "'two'", "`starling config show`"]),
    (["create", "--up", "fast"], ["--up", "'fast'", "`--up 10mbit`"]),
    (["create", "--down", "-1"], ["--down", "'-1'", "`--down 10mbit`"]),
    (["create", "--data", "gone/x.npz"], ["--data", "'gone/x.npz'", "`ls "]),
    (["join"], ["INVITE", "`starling join --help`"]),
    (["join", "hello"], ["invite", "'hello'", "`starling invite`"]),
    (["join", INVITE[:-1]], ["invite", "damaged", "`starling invite`"]),
    (["join", INVITE, "--set", "pace.rounds=5"], ["--set", "'pace.rounds'", "`starling config show node`"]),
    (["join", INVITE, "--data", "gone"], ["--data", "'gone'", "`ls "]),
    (["run"], ["--dir", "starling-node", "`starling join INVITE`"]),
    (["run", "--fast"], ["--fast", "`starling run --help`"]),
    (["leave"], ["--dir", "starling-node", "`starling join INVITE`"]),
    (["eval"], ["--dir", "starling-node", "`starling join INVITE`"]),
    (["invite"], ["--dir", "starling-node", "`starling join INVITE`"]),
    (["export", "m.safetensors"], ["--dir", "starling-node", "`starling join INVITE`"]),
    (["limits", "--up", "2"], ["--up", "unit", "'2'", "`--up 2mbit`"]),
    (["limits", "--down", "fast"], ["--down", "'fast'", "`--down 10mbit`"]),
    (["limits", "--threads", "some"], ["threads", "'some'", ">= 0 and <= 1024", "`starling config show`"]),
    (["limits", "--threads", "2000"], ["threads", "2000", ">= 0 and <= 1024", "`starling config show`"]),
    (["export", "model.pt"], ["export", "'model.pt'", "`starling export model.safetensors`"]),
    (["export", "gone/m.safetensors"], ["export", "gone", "`mkdir -p "]),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=[" ".join(a)[:40] for a, _ in WRONG])
def test_wrong_input_is_one_line_that_names_it_and_the_next_command(arguments, words, daemon, here, capsys):
    """Exit code 2, standard output empty, nothing written, no node started."""
    refused(capsys, arguments, *words)
    assert files(here) == {}
    assert daemon.runs == []


def test_a_manifest_key_and_a_node_key_never_share_a_name():
    """`create --set` takes both kinds and tells them apart by their first word."""
    assert not set(Manifest.__struct_fields__) & set(NodeConfig.__struct_fields__)


def test_create_prints_only_the_invite_to_standard_output(daemon, here, capsys):
    """`starling create m.toml | head -1` is the invite."""
    assert main(["create"]) == 0
    said = capsys.readouterr()
    assert said.out.count("\n") == 1
    invite = decode(said.out)
    assert invite.bootstrap == (ADDRESS,)
    place = RunDir.existing(here / "starling-node")
    assert invite.swarm == place.swarm()
    assert invite.swarm in said.err
    assert daemon.runs == [(place.path, False)]


def test_the_former_command_name_works_with_a_note(daemon, here, capsys):
    """The note goes to standard error only, so that scripts that read the invite still work."""
    assert main(["found", "--set", "seed=9"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("starling: found is called create now; the old name works in this release only\n")
    assert decode(said.out).swarm == RunDir.existing(here / "starling-node").swarm()
    main(["create", "--dir", "n"])
    assert "is called" not in capsys.readouterr().err


def test_create_signs_file_and_set_values_and_stores_the_node_s_own_settings(daemon, here):
    """Flags and `--set` of node keys go to node.toml, with paths that hold from any folder; all else to the manifest."""
    (here / "m.toml").write_text('name = "birds"\n[pace]\nrounds = 7\n')
    (here / "mine").mkdir()
    sets = "--set pace.local_steps=3 --set linger_s=4 --set limits.connections=9"
    flags = "--data mine --device cpu --up 8mbit --down 2MB --shard 3"
    multiaddrs = "--listen /ip4/0.0.0.0/tcp/1 --announce /dns/me.example/tcp/1"
    assert main(f"create m.toml --dir n {sets} {flags} {multiaddrs}".split()) == 0
    place = RunDir.existing(here / "n")
    manifest = place.read_manifest()  # verifies the signature
    assert (manifest.name, manifest.pace.rounds, manifest.pace.local_steps) == ("birds", 7, 3)
    config = place.read_config()
    assert (config.data, config.device, config.shard) == (str(here / "mine"), "cpu", 3)
    assert (config.up_bytes_per_s, config.down_bytes_per_s) == (1_000_000, 2_000_000)
    assert (config.listen, config.announce) == (("/ip4/0.0.0.0/tcp/1",), ("/dns/me.example/tcp/1",))
    assert (config.linger_s, config.limits.connections) == (4.0, 9)
    assert stat.S_IMODE(place.key.stat().st_mode) == 0o600


def test_create_notes_settings_that_may_be_unintended(daemon, capsys):
    """A note is not an error: the setting may be intended."""
    assert main(["create", "--set", "mix.clip_norm=0"]) == 0
    assert "note: mix.clip_norm" in capsys.readouterr().err


def test_create_refuses_a_directory_that_holds_a_node(daemon, here, capsys):
    """Typing a command twice must not lose an identity and a run."""
    main(["create"])
    before = files(here)
    refused(capsys, ["create", "--set", "seed=9"], "`starling run --dir starling-node`")
    assert files(here) == before
    assert len(daemon.runs) == 1


def test_an_engine_s_refusal_leaves_no_node_so_that_the_corrected_command_works(daemon, here, capsys):
    """The user's code and data are checked in the engine only, after the directory was made."""
    daemon.refusal = ConfigError("task: model must be one of cnn, mlp, got 'cn'")
    assert main(["create", "--set", "task=starling.node.tasks.digits:Digits", "--set", "trust=true"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"starling: {daemon.refusal}; see `starling config show`"
    place = RunDir(here / "starling-node")
    assert not place.config_file.exists()
    assert not place.manifest_file.exists()
    daemon.refusal = None
    assert main(["create", "--set", "task.model=cnn"]) == 0


def test_a_refused_command_leaves_no_directory_that_was_not_there(daemon, here):
    daemon.refusal = ConfigError("listen: port 99999 is none")
    assert main(["create", "--dir", "new"]) == 2
    assert not (here / "new").exists()
    (here / "there").mkdir()
    (here / "there" / "mine.txt").write_text("kept")
    assert main(["create", "--dir", "there"]) == 2
    assert (here / "there" / "mine.txt").read_text() == "kept"


@pytest.mark.parametrize("path", ["file", "file/sub"])
@pytest.mark.parametrize("order", [["create"], ["join", INVITE]], ids=["create", "join"])
def test_a_file_is_no_directory_of_a_node(daemon, here, capsys, order, path):
    (here / "file").write_text("mine")
    refused(capsys, [*order, "--dir", path], path, "name another with --dir")
    assert (here / "file").read_text() == "mine"


def test_the_directory_of_a_node_that_has_run_is_never_removed(daemon, here):
    """A late refusal, such as of a damaged checkpoint, must not delete the node's state."""
    daemon.refusal, daemon.lived = ConfigError("checkpoint: damaged"), True
    assert main(["create"]) == 2
    assert RunDir.existing(here / "starling-node").read_manifest() is not None


def test_join_keeps_the_invite_and_its_addresses_and_starts_the_node(daemon, here, capsys):
    """The manifest comes later, from a member: the invite contains its hash."""
    assert main(["join", f" {INVITE}\n", "--dir", "n", "--device", "cpu", "--up", "10mbit"]) == 0
    place = RunDir.existing(here / "n")
    assert place.read_invite() == Invite(SWARM, (ADDRESS,))
    assert place.read_config() == NodeConfig(bootstrap=(ADDRESS,), device="cpu", up_bytes_per_s=1_250_000)
    assert place.read_manifest() is None
    assert daemon.runs == [(place.path, False)]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("left", ["", "starling1:cut", None])
def test_an_invite_that_was_lost_is_replaced_by_the_one_of_a_join(left, daemon, here):
    """As after a full disk: `starling run` says that a fresh one helps, so `join` takes it in the same directory."""
    assert main(["join", INVITE, "--dir", "n"]) == 0
    place = RunDir.existing(here / "n")
    place.invite_file.unlink() if left is None else place.invite_file.write_text(left)
    assert main(["join", INVITE, "--dir", "n"]) == 0
    assert place.read_invite() == Invite(SWARM, (ADDRESS,))


def test_a_join_into_files_that_cannot_be_read_is_refused_in_one_line(daemon, here, capsys):
    (here / "n" / "invite").mkdir(parents=True)
    refused(capsys, ["join", INVITE, "--dir", "n"], "--dir: n/invite cannot be read", "`ls -ld n/invite`")


@pytest.mark.parametrize("where", ["-", "--invite-file"])
def test_an_invite_may_come_from_standard_input_or_a_file(where, daemon, here, monkeypatch, capsys):
    """So it does not appear in a list of processes."""
    (here / "invite.txt").write_text(f"<{INVITE[:60]}\n{INVITE[60:]}>\n")
    with (here / "invite.txt").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["join", where] if where == "-" else ["join", where, "invite.txt"]) == 0
    assert RunDir.existing(here / "starling-node").read_invite() == Invite(SWARM, (ADDRESS,))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "join: needs one INVITE"),
        ([INVITE, "--invite-file", "invite.txt"], "join: needs one INVITE"),
        (["--invite-file", "nowhere.txt"], "nowhere.txt cannot be read: No such file"),
        (["--invite-file", "binary"], "binary cannot be read: it is no text"),
    ],
)
def test_no_invite_or_two_give_one_line(words, says, daemon, here, capsys):
    (here / "binary").write_bytes(b"\xff" * 9)
    assert main(["join", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert "`" in line
    assert daemon.runs == []


def test_a_used_invitation_is_kept_without_its_key(daemon, here, capsys):
    """Bound to this node, it is of no use to others and enough for every later start; on the command line the key would be exposed."""
    given = give(here / "issued", TERMS, CREATOR, (), (ADDRESS,), days=1.0, now_s=time.time()).invite
    for _ in range(2):  # the second time from a file that is already in place
        assert main(["join", encode(given), "--dir", "n"]) == 0
        assert "`starling join - < FILE`" in capsys.readouterr().err
        place = RunDir.existing(here / "n")
        kept = place.read_invite()
        me = Identity.load_or_create(place.key)
        assert kept.bearer == b""
        assert given.bearer not in place.invite_file.read_bytes()
        assert take_up(kept, me) == take_up(given, me) == kept.chain
        assert kept.chain[-1].holder == me.peer_id
    (here / "i").write_text(encode(given))
    assert main(["join", "--invite-file", "i", "--dir", "m"]) == 0
    assert "note" not in capsys.readouterr().err


def test_the_initial_model_is_found_from_any_working_directory(daemon, here):
    for command in (["join", INVITE], ["create", "--dir", "creator"]):
        assert main([*command, "--set", "start=warm.safetensors"]) == 0
    for name in ("starling-node", "creator"):
        assert RunDir.existing(here / name).read_config().start == str(here / "warm.safetensors")


@pytest.mark.parametrize("pasted", [f"<{INVITE}>", f"{INVITE[:60]}\n  {INVITE[60:]}\n", f"'{INVITE}'", f"`{INVITE}` "])
def test_an_invite_wrapped_by_a_mail_program_is_accepted(pasted, daemon, here):
    assert main(["join", pasted]) == 0
    assert RunDir.existing(here / "starling-node").read_invite() == Invite(SWARM, (ADDRESS,))


def test_gpu_means_cuda_and_an_absent_cap_needs_no_unit(daemon, here):
    assert main(["create", "--device", "gpu", "--up", "0", "--down", "none"]) == 0
    config = RunDir.existing(here / "starling-node").read_config()
    assert (config.device, config.up_bytes_per_s, config.down_bytes_per_s) == ("cuda", 0, 0)


def test_the_directory_may_follow_the_other_arguments(daemon, here):
    assert main(["join", INVITE, "n"]) == 0
    assert main(["create", "--dir", "m"]) == 0
    assert [path for path, _ in daemon.runs] == [here / "n", here / "m"]
    assert main(["run", "n"]) == 0
    assert daemon.runs[-1] == (here / "n", False)


def test_a_shard_that_a_known_swarm_lacks_is_refused(daemon, here, capsys):
    main(["create", "--set", "partition.shards=4"])
    place = RunDir.existing(here / "starling-node")
    invite = encode(Invite(place.swarm(), (ADDRESS,)))
    assert main(["join", invite, "--shard", "9"]) == 2
    assert "partition.shards = 4" in capsys.readouterr().err
    assert place.read_config().shard == -1


def test_join_again_goes_on_with_the_old_settings_and_the_new_options(daemon, here):
    """A fresh invite to the same swarm gives new addresses after its members have moved."""
    main(["join", INVITE, "--device", "cpu", "--shard", "2"])
    moved = ADDRESS.replace("4001", "4002")
    key = (here / "starling-node" / "identity.key").read_bytes()
    assert main(["join", encode(Invite(SWARM, (moved,))), "--shard", "3"]) == 0
    place = RunDir.existing(here / "starling-node")
    assert place.read_config() == NodeConfig(bootstrap=(moved,), device="cpu", shard=3)
    assert place.key.read_bytes() == key


def test_join_anyway_is_a_stored_setting(daemon, here):
    main(["join", INVITE, "--anyway"])
    assert not RunDir.existing(here / "starling-node").read_config().memory_check
    main(["join", INVITE])
    assert not RunDir.existing(here / "starling-node").read_config().memory_check


def test_join_refuses_the_directory_of_another_swarm_s_node(daemon, here, capsys):
    main(["join", INVITE])
    before = files(here)
    another = encode(Invite("another", (ADDRESS,)))
    refused(capsys, ["join", another], SWARM, "`starling join INVITE --dir starling-node-2`")
    assert files(here) == before


def test_join_refuses_while_a_node_runs_there(daemon, here, monkeypatch, capsys):
    """The refusal comes before that node's settings are changed."""
    monkeypatch.setattr(control, "connect", lambda run_dir: Connection())
    refused(capsys, ["join", INVITE], "`starling status --dir starling-node`")
    assert files(here) == {}


def test_a_refused_join_leaves_the_settings_of_the_earlier_one(daemon, here):
    main(["join", INVITE, "--device", "cpu"])
    before = files(here)
    daemon.refusal = ConfigError("device: 'cuda' is not on this machine, choose auto or one of cpu")
    assert main(["join", INVITE, "--device", "cuda"]) == 2
    assert files(here) == before


def test_a_creator_that_joins_its_own_swarm_does_not_dial_itself(daemon, here, capsys):
    main(["create"])
    capsys.readouterr()
    place = RunDir.existing(here / "starling-node")
    own = place.read_manifest().founder
    assert main(["join", encode(Invite(place.swarm(), (ADDRESS, ADDRESS.replace(PEER, own))))]) == 0
    assert place.read_config().bootstrap == (ADDRESS,)


@pytest.mark.parametrize("until_stdin_closes", [False, True])
def test_run_continues_in_the_directory(until_stdin_closes, daemon, here):
    place = RunDir.create(here / "n")
    place.write_config(NodeConfig())
    assert main(["run", "--dir", "n", *["--until-stdin-closes"] * until_stdin_closes]) == 0
    assert daemon.runs == [(place.path, until_stdin_closes)]


@pytest.mark.parametrize("arguments", [["leave"], ["pause"], ["resume"], ["limits"], ["eval"], ["invite"], ["export", "m.safetensors"]])
def test_a_stopped_node_gives_one_line_on_how_to_start_it(arguments, here, capsys):
    RunDir.create(here / "n").write_config(NodeConfig())
    refused(capsys, [*arguments, "--dir", "n"], "`starling run --dir n`", code=1)


def test_pause_says_how_to_go_on(running, capsys):
    assert main(["pause"]) == main(["resume"]) == 0
    assert running[1:] == [("pause", {}), ("resume", {})]
    assert "`starling resume --dir starling-node`" in capsys.readouterr().err


def test_limits_asks_for_what_is_given_and_keeps_what_is_in_force(running, here, capsys):
    place = RunDir.create(here / "starling-node")
    place.write_config(NodeConfig(linger_s=7.0, up_bytes_per_s=5))
    running[0]["limits"] = {"up_bytes_per_s": 2_000_000, "down_bytes_per_s": 0, "threads": 0}
    assert main(["limits"]) == 0
    shown = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [(name, text.strip()) for name, text in shown] == [("up", "2.0 MB/s"), ("down", "no cap"), ("threads", "as many as are fastest")]
    assert main(["limits", "--up", "2MB", "--down", "none", "--threads", "0", "--json"]) == 0
    assert running[1:] == [("limits", {}), ("limits", {"up_bytes_per_s": 2_000_000, "down_bytes_per_s": 0, "threads": 0})]
    assert json.loads(capsys.readouterr().out) == {"version": 1, **running[0]["limits"]}
    assert place.read_config().up_bytes_per_s == 5
    assert main(["limits", "--keep"]) == 0
    assert place.read_config() == NodeConfig(linger_s=7.0, up_bytes_per_s=2_000_000)


def test_leave_waits_until_the_node_is_gone(running, monkeypatch, capsys):
    """So the next command does not meet a node that is still ending."""
    left = iter([False, False, True])

    def connect(run_dir):
        if next(left):
            raise control.NotRunning(run_dir)
        return Connection()

    monkeypatch.setattr(control, "connect", connect)
    assert main(["leave"]) == 0
    assert running[1:] == [("leave", {})]
    assert next(left, None) is None
    assert "`starling run --dir starling-node`" in capsys.readouterr().err


def test_eval_prints_the_figure_and_json_the_answer(running, capsys):
    assert main(["eval"]) == 0
    assert capsys.readouterr().out == "accuracy 0.97222 in round 40\n"
    assert main(["eval", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": 1, "metric": "accuracy", "value": 0.97222, "round": 40, "others": {}}


def test_eval_without_a_figure_is_a_failure_not_a_zero(running, capsys):
    running[0]["evaluate"] = {"metric": "", "value": None, "round": None}
    assert main(["eval"]) == 1
    assert "try again" in capsys.readouterr().err


def test_export_asks_for_an_absolute_path_and_replaces_only_by_force(running, here, capsys):
    """The node has a working directory of its own."""
    target = here / "m.safetensors"
    assert main(["export", "m.safetensors"]) == 0
    assert running[-1] == ("export", {"path": str(target), "best": False})
    target.write_bytes(b"precious")
    refused(capsys, ["export", "m.safetensors"], "m.safetensors exists; name another file, or replace it with `--force`")
    assert target.read_bytes() == b"precious"
    assert main(["export", "m.safetensors", "--force"]) == 0
    assert target.read_bytes() == b"model"
    (here / "folder.safetensors").mkdir()
    said = refused(capsys, ["export", "folder.safetensors", "--force"], "folder.safetensors exists; name another file")
    assert "or replace" not in said, "a folder is not replaced by a file"


def test_export_takes_the_model_that_a_finished_run_left_behind(here, capsys):
    place = RunDir.create(here / "n")
    place.write_config(NodeConfig())
    place.model.write_bytes(b"final")
    assert main(["export", "m.safetensors", "--dir", "n"]) == 0
    assert (here / "m.safetensors").read_bytes() == b"final"
    assert capsys.readouterr().out == ""


def test_eval_of_a_finished_node_is_what_it_measured_last(here, capsys):
    place = RunDir.create(here / "n")
    place.write_config(NodeConfig())
    last = snapshot(state="finished", round=100, value=0.956, value_round=100, metric="accuracy")
    place.keep_final(FinalStatus("finished", last, model="model.safetensors"))
    assert main(["eval", "n"]) == 0
    assert capsys.readouterr().out == "accuracy 0.956 in round 100\n"


def test_invite_prints_the_current_addresses(running, capsys):
    assert main(["invite"]) == 0
    assert decode(capsys.readouterr().out) == Invite(SWARM, (ADDRESS,))


def test_invite_before_the_node_listens_says_to_try_again(running, monkeypatch, capsys):
    monkeypatch.setattr(control, "status", lambda run_dir: snapshot(addresses=()))
    assert main(["invite"]) == 1
    assert "try again" in capsys.readouterr().err


def test_a_created_manifest_can_be_a_template_for_another_swarm(daemon, here):
    """Creator, time and signature are the new creator's."""
    main(["create", "--dir", "a"])
    first = RunDir.existing(here / "a").read_manifest()
    (here / "m.toml").write_text(toml.to_toml(first))
    assert main(["create", "m.toml", "--dir", "b"]) == 0
    second = RunDir.existing(here / "b").read_manifest()
    assert second.founder != first.founder
    assert manifests.swarm_id(second) != manifests.swarm_id(first)
