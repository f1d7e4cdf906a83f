"""`starling demo`: the plan that its options make, its output, and how it ends. The swarm here is simulated."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec import structs
from safetensors.numpy import save_file

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli import demo as command
from starling.node.cli import progress
from starling.node.cli.main import main
from starling.node.config.schema import Manifest, TaskSection
from starling.node.demo import swarm
from starling.node.demo.summary import DemoAlone
from starling.node.demo.swarm import Demo, Member, Plan
from starling.node.status import control
from starling.node.status.snapshot import VERSION, PeerStatus, StatusSnapshot
from starling.node.storage.run_dir import RunDir
from tests.harness.cli_doubles import DONE, TABLE, Canned, refused


@pytest.fixture
def canned(monkeypatch):
    """The demo that the command will run; tests change it before calling the command."""
    demo = Canned(Plan(Manifest()))

    def make(plan):
        demo.plan, demo.folder = plan, plan.folder or demo.folder
        return demo

    monkeypatch.setattr(swarm, "Demo", make)
    return demo


def planned(canned, *arguments):
    assert main(["demo", *arguments]) == 0
    return canned.plan


WRONG = [
    (["--nonsense"], ["--nonsense", "`starling demo --help`"]),
    (["--nodes", "many"], ["--nodes", "'many'", "`starling demo --help`"]),
    (["--nodes", "1"], ["--nodes", ">= 2", "1", "`starling demo --nodes 2`"]),
    (["--rounds", "0"], ["--rounds", ">= 1", "`starling demo --seconds 60`"]),
    (["--rounds", "5", "--seconds", "9"], ["--seconds", "--rounds", "9 and 5", "`starling demo --seconds 9`"]),
    (["--seconds", "0"], ["--seconds", "> 0", "`starling demo --seconds 60`"]),
    (["--seconds", "inf"], ["--seconds", "inf", "`starling demo --seconds 60`"]),
    (["--seconds", "nan"], ["--seconds", "nan", "`starling demo --seconds 60`"]),
    (["--seconds", "9", "--set", "pace.rounds=5"], ["--seconds", "pace.rounds", "`--set pace.rounds`"]),
    (["--set", "pace.rounds=0"], ["pace.rounds", "0", "`starling demo --seconds 60`"]),
    (["--set", "pace.quorum=9"], ["pace.quorum", "--nodes = 8", "9", "`--nodes 9`"]),
    (["--set", "pce.rounds=5"], ["pce", "did you mean pace?", "`starling config show`"]),
    (["--set", "PACE.rounds=5"], ["did you mean pace?"]),
    (["--set", "admission.kind=OPEN"], ["did you mean open?"]),
    (["--set", "mix=PET"], ["did you mean pet?"]),
    (["--byzantine", "1:ALIE"], ["did you mean `--byzantine 1:alie`"]),
    (["--set", "rounds"], ["--set", "'rounds'", "`starling config show`"]),
    (["--set", "pace.min_wait_s=99"], ["pace.min_wait_s", "99", "`--set pace.min_wait_s=10`"]),
    (["--seed", "-1"], ["seed", "-1", ">= 0", "`starling config show`"]),
    (["--kill", "2"], ["--kill", "'2'", "2@0.4", "`starling demo --help`"]),
    (["--kill", "8@0.5"], ["--kill", "[0, 8)", "'8@0.5'", "`--kill 7@0.5`"]),
    (["--kill", "2@1.5"], ["--kill", "< 1", "'2@1.5'", "`--kill 2@0.4`"]),
    (["--kill", "2@0"], ["--kill", "> 0", "'2@0'", "`--kill 2@0.4`"]),
    (["--byzantine", "3"], ["--byzantine", "'3'", "3:sign_flip", "`starling demo --help`"]),
    (["--byzantine", "0:alie"], ["--byzantine", "'0:alie'", "3:sign_flip"]),
    (["--byzantine", "x:alie"], ["--byzantine", "'x:alie'"]),
    (["--byzantine", "1:allie"], ["--byzantine", "'allie'", "did you mean `--byzantine 1:alie`", "docs/attacks.md"]),
    (["--byzantine", "7:alie"], ["--byzantine", "2 honest", "7 Byzantine", "`--nodes 9`"]),
    (["--byzantine", "4:alie", "--byzantine", "3:foe"], ["--byzantine", "7 Byzantine"]),
    (["--ban-at", "soon", "--byzantine", "1:alie"], ["--ban-at", "'soon'", "`starling demo --help`"]),
    (["--ban-at", "1", "--byzantine", "1:alie"], ["--ban-at", "< 1", "got 1;", "`--ban-at 0.4`"]),
    (["--ban-at", "-0.1", "--byzantine", "1:alie"], ["--ban-at", ">= 0", "-0.1", "`--ban-at 0.4`"]),
    (["--ban-at", "nan", "--byzantine", "1:alie"], ["--ban-at", "nan", "`--ban-at 0.4`"]),
    (["--ban-at", "0.3"], ["--ban-at", "there are none", "`starling demo --byzantine 1:sign_flip --ban-at 0.3`"]),
    (["--preset", "closed"], ["preset", "'closed'", "open", "vouched"]),
    (["--preset", "open", "--set", "robust.f=0"], ["robust.f", "preset"]),
    (["--join-late", "1"], ["--join-late", "< 1", "`--join-late 0.5`"]),
    (["--join-late", "nan"], ["--join-late", "nan", "`--join-late 0.5`"]),
    (["--task", "digit"], ["task.kind", "'digit'", "--set task.kind=digits"]),
    (["--task", "images"], ["task.path", "images", "`--set task.path=PATH`"]),
    (["--task", "text", "--set", "task.path=/gone/x"], ["task.path", "'/gone/x'", "`ls /gone`"]),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=[" ".join(a) for a, _ in WRONG])
def test_wrong_input_is_one_line_that_names_it_and_the_next_command(arguments, words, canned, capsys):
    """Exit code 2, before anything is started."""
    refused(capsys, ["demo", *arguments], *words)


@pytest.mark.parametrize("folder", ["earlier", "file"])
def test_a_folder_that_cannot_be_used_is_refused_and_left_alone(folder, tmp_path, capsys):
    (tmp_path / "earlier" / "node-0").mkdir(parents=True)
    (tmp_path / "file").write_text("mine")
    refused(capsys, ["demo", "--dir", tmp_path / folder], str(tmp_path / folder), "name another folder")
    assert (tmp_path / "file").read_text() == "mine"


def test_the_defaults_are_the_manifest_s_with_one_shard_and_one_vote_per_node(canned):
    """Algorithm, overlay and codecs are a volunteer's defaults; only the length and the failure detector are the demo's own."""
    manifest, default = planned(canned).manifest, Manifest()
    assert (manifest.mix, manifest.overlay, manifest.compress) == (default.mix, default.overlay, default.compress)
    assert manifest.pace.rounds == command.ROUNDS
    assert manifest.membership.suspicion_s < default.membership.suspicion_s
    assert (manifest.pace.quorum, manifest.partition.shards, canned.plan.nodes) == (8, 8, 8)
    assert manifest.task.kind == "digits"


def test_every_option_reaches_the_plan(canned, tmp_path):
    plan = planned(
        canned,
        "--nodes",
        "4",
        "--rounds",
        "9",
        "--seed",
        "5",
        "--set",
        "mix=dsgd",
        "--kill",
        "2@0.4",
        "--kill",
        "0@.75",
        "--join-late",
        "0.6",
        "--dir",
        str(tmp_path),
    )
    assert plan.kill == ((2, 0.4), (0, 0.75))
    assert (plan.nodes, plan.join_late, plan.seconds, plan.folder) == (4, 0.6, None, tmp_path)
    assert (plan.manifest.pace.rounds, plan.manifest.seed, plan.manifest.mix.kind) == (9, 5, "dsgd")
    assert (plan.manifest.pace.quorum, plan.manifest.partition.shards) == (4, 5)  # a shard for the node that joins late


CREWS = ["--set", "task.path=x", "--set", "task.tied=false", "--set", "task.layers=3", "--set", "crew.stages=3"]


def test_crews_have_a_part_and_a_vote_each_and_their_machines_one_stage_each(canned, tmp_path):
    (tmp_path / "x").write_text("once upon a time\n" * 1000)
    text = ["--set", f"task.path={tmp_path / 'x'}", "--set", "partition=iid"]
    plan = planned(canned, "--task", "text", "--nodes", "7", *CREWS, *text, "--dir", str(tmp_path / "demo"))
    assert (plan.manifest.pace.quorum, plan.manifest.partition.shards) == (2, 2)
    with Demo(plan) as demo:
        configs = [demo.config(index) for index in range(7)]
    assert [(config.shard, config.stage) for config in configs] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 0)]
    assert plan.alone.crew.stages == 1


def test_fewer_nodes_than_stages_of_a_crew_are_refused(canned, capsys):
    refused(capsys, ["demo", "--task", "text", "--nodes", "2", *CREWS], "--nodes", "crew.stages = 3", "`--nodes 6`")
    refused(capsys, ["demo", "--task", "text", "--nodes", "6", *CREWS, "--set", "pace.quorum=3"], "2, the crews of 6 nodes")


def test_seconds_make_an_endless_run_with_a_constant_step(canned, capsys):
    """A learning-rate schedule needs a last round; the manifest's check would warn of any other."""
    plan = planned(canned, "--seconds", "7.5")
    assert (plan.seconds, plan.manifest.pace.rounds, plan.manifest.optimizer.schedule) == (7.5, 0, "constant")
    assert "note:" not in capsys.readouterr().err


def test_quadratic_has_a_shard_for_each_node_including_the_late_one(canned):
    manifest = planned(canned, "--task", "quadratic", "--nodes", "5", "--join-late", "0.5").manifest
    assert manifest.task.params()["nodes"] == manifest.partition.shards == 6


@pytest.mark.parametrize(("assignments", "kind"), [([], "by_file"), (["partition=iid"], "iid")])
def test_text_is_cut_by_file_unless_a_person_says_otherwise(assignments, kind, canned, tmp_path):
    sets = [argument for each in (f"task.path={tmp_path}", *assignments) for argument in ("--set", each)]
    assert planned(canned, "--task", "text", *sets).manifest.partition.kind == kind
    assert planned(canned, "--set", "task=text", *sets).manifest.partition.kind == kind


def test_the_last_nodes_are_byzantine_in_the_order_of_the_options(canned):
    """Never the first, through which all others join."""
    plan = planned(canned, "--nodes", "6", "--byzantine", "1:alie", "--byzantine", "2:sign_flip")
    assert plan.byzantine == ((3, "alie"), (4, "sign_flip"), (5, "sign_flip"))
    assert planned(canned).byzantine == ()


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_the_ban_comes_after_a_fixed_share_of_the_run(share, canned):
    assert planned(canned, "--byzantine", "1:alie", "--ban-at", str(share)).ban_at == share
    assert planned(canned, "--byzantine", "1:alie").ban_at is None


@pytest.mark.parametrize("preset", ["open", "vouched"])
def test_a_preset_is_what_members_agree_on_and_they_are_listed(preset, canned):
    """A swarm that starts with all of its members needs no invitation or proof of work, unless --set asks for them."""
    manifest = planned(canned, "--preset", preset).manifest
    assert (manifest.preset, manifest.admission.kind) == (preset, "allow")
    assert manifest.mix.kind == {"open": "gather", "vouched": "pet"}[preset]
    assert planned(canned, "--set", f"preset={preset}").manifest == manifest
    kept = {"open": "open", "vouched": "invite"}[preset]
    assert planned(canned, "--preset", preset, "--set", f"admission.kind={kept}").manifest.admission.kind == kept


def test_a_demo_evaluates_early(canned):
    """The evaluation interval in rounds decides when the swarm's first accuracy is shown beside the lone node's."""
    plan = planned(canned)
    assert plan.manifest.pace.evaluate_every == plan.alone.pace.evaluate_every == 10
    assert planned(canned, "--set", "pace.evaluate_every=3").manifest.pace.evaluate_every == 3


def test_set_overrides_presets_and_derived_values(canned):
    """As in every other command."""
    manifest = planned(canned, "--preset", "open", "--set", "overlay.k=7", "--set", "robust.f=3", "--set", "pace.quorum=3").manifest
    assert (manifest.overlay.k, manifest.pace.quorum) == (7, 3)
    assert planned(canned, "--set", "partition.shards=2").manifest.partition.shards == 2


def test_json_is_exactly_one_object_and_progress_goes_to_standard_error(canned, capsys):
    canned.table = {**TABLE, "mean": float("nan")}
    assert main(["demo", "--json"]) == 0
    said = capsys.readouterr()
    assert said.out.count("\n") == 1
    assert json.loads(said.out) == {"version": 1, **TABLE, "mean": None}  # JSON knows no NaN
    assert "8 nodes" in said.err


def test_the_table_has_a_line_per_node_and_a_summary(canned, capsys):
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    head, first, second = out.splitlines()[:3]
    assert head.split() == ["peer", "state", "rounds", "steps", "accuracy", "sent", "received", "exchanges"]
    assert first.split() == ["…abcdefg", "done", "30", "600", "0.970", "123", "kB", "654", "kB", "28"]
    assert "done, resumed, late" in second
    for words in (
        "accuracy: mean 0.970, min 0.960, max 0.980",
        "consensus distance 0.012",
        "2.4 kB a node and exchange, 8.0 times less than dense (19 kB)",
        "30 rounds in 12.3 s",
    ):
        assert words in out
    assert "\x1b" not in out


def test_the_ban_is_one_line_with_the_state_before_it(canned, capsys):
    ban = {"round": 12, "after_s": 5.0, "mean": 0.412, "min": 0.3}
    canned.table = {**TABLE, "ban": ban, "nodes": [DONE, {**DONE, "state": "banned", "byzantine": True}]}
    assert main(["demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ban"] == ban
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert "before the ban in round 12: mean 0.412, min 0.300\n" in out
    honest, byzantine = out.splitlines()[1:3]
    assert "Byzantine" not in honest
    assert "banned, Byzantine" in byzantine


def test_without_a_terminal_progress_is_a_line_every_few_seconds(canned, monkeypatch, capsys):
    """A log with a hundred lines a second would be of no use."""
    now = iter([100.0, 100.0, 104.9, 105.1, 105.1])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now)))
    lines = progress.Lines()
    for fraction in (0.0, 0.25, 0.5):
        lines.show(fraction, "8 nodes")
    assert capsys.readouterr().err == "  0%  8 nodes\n 50%  8 nodes\n"


def test_a_retained_folder_is_named(canned, tmp_path, capsys):
    assert main(["demo", "--dir", str(tmp_path)]) == 0
    assert f"kept in {tmp_path}" in capsys.readouterr().err


@pytest.mark.real
def test_the_terminal_ui_is_closed_by_one_sigint_and_a_bar_follows_when_a_person_closes_it(monkeypatch, tmp_path):
    """A second SIGINT would stop it from restoring the terminal."""
    log = tmp_path / "log"
    ui = (
        "import signal, sys, time; log = open(sys.argv[1], 'a', buffering=1)\n"
        "signal.signal(signal.SIGINT, lambda *_: (log.write('int\\n'), time.sleep(0.1), sys.exit()))\n"
        "log.write('up\\n'); time.sleep(30)"
    )
    popen = subprocess.Popen
    monkeypatch.setattr(progress.subprocess, "Popen", lambda _arguments, env: popen([sys.executable, "-c", ui, str(log)], env=env))
    bars = []
    monkeypatch.setattr(progress.Bar, "show", lambda _self, *shown: bars.append(shown))
    with progress.Terminal(tmp_path) as terminal:
        terminal.show(0.0, "starting")
        while not log.exists() or "up" not in log.read_text():
            terminal.show(0.1, "starting")
        assert bars == []
    assert log.read_text() == "up\nint\n"
    terminal.show(0.5, "going on")
    assert bars == [(0.5, "going on")]


@pytest.mark.parametrize(("state", "byzantine"), [("failed", True), ("killed", False), ("left", False), ("done", False)])
def test_only_an_honest_node_that_failed_fails_the_demo(state, byzantine, canned, capsys):
    """A Byzantine node is expected to be banned, and others are killed on purpose."""
    canned.table = {**TABLE, "nodes": [DONE, {"peer": "12D3KooWanother0", "state": state, "byzantine": byzantine}]}
    assert main(["demo"]) == 0
    assert "failed" not in capsys.readouterr().err


def test_a_failed_node_is_reported_with_its_last_output_and_exit_code_1(canned, tmp_path, capsys):
    canned.table = {**TABLE, "nodes": [DONE, {"peer": "12D3KooWfailed0", "state": "failed", "byzantine": False}]}
    canned.members = [SimpleNamespace(run_dir=tmp_path)] * 2
    RunDir(tmp_path).output.write_text("the engine died 6 times\n")
    assert main(["demo", "--json"]) == 1
    said = capsys.readouterr()
    assert "starling: node 1 failed: the engine died 6 times\n" in said.err
    assert json.loads(said.out)["nodes"][1]["state"] == "failed"


def test_a_failed_run_prints_nothing_on_standard_output(canned, capsys):
    def fail():
        raise GossipError("no node made a step for 90 s")

    canned.during = fail
    assert main(["demo", "--json"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith("starling: no node made a step for 90 s\n")
    assert canned.gone


def test_ctrl_c_gives_one_line_and_exit_code_130_and_a_second_one_does_not_stop_the_cleanup(canned, capsys):
    canned.during = canned.after = lambda: os.kill(os.getpid(), signal.SIGINT)
    before = signal.getsignal(signal.SIGINT)
    assert main(["demo"]) == 130
    assert canned.gone
    assert signal.getsignal(signal.SIGINT) is before
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1] == "starling: interrupted, all nodes are gone"
    assert "Traceback" not in said.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination_and_hangup_stop_the_nodes_too(number, canned):
    """`timeout 60 starling demo` and a closed terminal."""
    canned.during = lambda: os.kill(os.getpid(), number)
    with pytest.raises(SystemExit) as ended:
        main(["demo"])
    assert ended.value.code == 128 + number
    assert canned.gone


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("error", "kept"), [(None, 0), (ConfigError("a key"), 0), (KeyboardInterrupt(), 0), (GossipError("see the log"), 1)]
)
def test_a_temporary_folder_is_kept_only_for_a_failure_whose_logs_say_more(error, kept, folders):
    def live():
        with Demo(Plan(Manifest())):
            if error is not None:
                raise error

    if error is None:
        live()
    else:
        with pytest.raises(type(error)):
            live()
    assert len(list(folders.iterdir())) == kept


@pytest.mark.parametrize(("code", "kind"), [(2, ConfigError), (1, GossipError)])
def test_a_node_that_refuses_to_start_gives_exit_code_2(code, kind, tmp_path):
    """A node's exit code 2 becomes the demo's own: the options are wrong, not the machine."""
    member = Member(0, tmp_path, "12D3")
    member.process = SimpleNamespace(poll=lambda: code)
    RunDir(tmp_path).output.write_text("a line\nstarling: task.params: hidden: must be >= 1\n")
    with pytest.raises(kind, match=r"exit code \d: task.params: hidden: must be >= 1$") as raised:
        member.raise_if_ended()
    assert raised.type is kind


@pytest.mark.parametrize(
    ("reported", "changes", "expected"),
    [
        ("finished", {}, "done"),
        ("training", {}, "failed"),
        ("training", {"seconds": 9.0}, "done"),
        ("training", {"seconds": 9.0, "down": True}, "failed"),
        ("leaving", {"down": True}, "left"),
        ("training", {"seconds": 9.0, "down": True, "killed_at": 1.0}, "killed"),
        ("starting", {"seconds": 9.0, "reborn": True}, "killed"),
        ("waiting", {"seconds": 9.0, "reborn": True}, "killed"),
        ("training", {"seconds": 9.0, "reborn": True}, "done"),
        ("starting", {"reborn": True, "down": True}, "failed"),
        (None, {"down": True}, "failed"),
    ],
)
def test_the_final_state_of_a_node(reported, changes, expected, tmp_path):
    """ "done" after the requested rounds; "killed" if on purpose and not back in time; any other end without a farewell is "failed"."""
    snapshot = None if reported is None else StatusSnapshot(VERSION, "12D3", "s", "n", 0.0, 0.0, reported)
    member = Member(0, tmp_path, "12D3")
    member.process = SimpleNamespace(poll=lambda: 1 if changes.get("down") else None)
    member.snapshot, member.killed_at, member.reborn = snapshot, changes.get("killed_at"), changes.get("reborn", False)
    assert Demo(Plan(Manifest(), seconds=changes.get("seconds"))).row(member).state == expected


def member(tmp_path, index, value, attack="", state="finished"):
    """Return a node that has reported its metric."""
    said = StatusSnapshot(VERSION, f"12D3{index}", "s", "n", 0.0, 0.0, state, round=10, value=value, metric="accuracy")
    made = Member(index, tmp_path / str(index), f"12D3{index}", attack)
    RunDir.create(made.run_dir).config_file.touch()
    made.process, made.snapshot = SimpleNamespace(poll=lambda: None), said
    return made


def test_mean_and_minimum_are_over_honest_nodes(tmp_path):
    demo = Demo(Plan(Manifest()))
    demo.members = [member(tmp_path, 0, 0.9), member(tmp_path, 1, 0.8), member(tmp_path, 2, 0.1, "foe"), member(tmp_path, 3, 1.0, "foe")]
    summary = demo.summary(1.0)
    assert [row.byzantine for row in summary.nodes] == [False, False, True, True]
    assert (summary.mean, summary.min, summary.max) == (pytest.approx(0.85), 0.8, 0.9)
    assert demo.line() == "4 nodes (2 Byzantine), round 10, accuracy 0.850"


def test_crews_consensus_distance_is_that_of_whole_models(tmp_path):
    """Two crews of two stages, which differ by 2 in three numbers of the first stage and by 4 in one of the second."""
    demo = Demo(Plan(Manifest()))
    demo.members = [member(tmp_path, index, 0.5) for index in range(4)]
    values = [("a", 3, 1.0), ("b", 1, 2.0), ("a", 3, 3.0), ("b", 1, 6.0)]
    for each, (name, count, value) in zip(demo.members, values, strict=True):
        save_file({name: np.full(count, value, np.float32)}, RunDir(each.run_dir).model)
    assert demo.consensus_distance() == pytest.approx(7.0**0.5)
    demo.members = demo.members[:2]
    assert demo.consensus_distance() is None


def test_every_node_of_a_demo_has_the_initial_model_s_file(tmp_path):
    manifest = Manifest(task=TaskSection(start=str(tmp_path / "warm.safetensors")))
    with Demo(Plan(manifest, folder=tmp_path)) as demo:
        assert {demo.config(index).start for index in range(3)} == {str(tmp_path / "warm.safetensors")}
        assert Demo(Plan(Manifest())).config(0).start == ""


def test_the_run_does_not_wait_for_a_byzantine_node(tmp_path):
    """Its peers have banned it, so its rounds take the full deadline."""
    demo = Demo(Plan(Manifest()))
    late = member(tmp_path, 1, 0.5, "nan", state="training")
    demo.members = [member(tmp_path, 0, 0.9), late]
    assert demo.row(late).state == "left"
    assert list(demo.watch())


def test_byzantine_nodes_know_each_other_and_honest_nodes_are_configured_as_usual(tmp_path):
    """The demo gives the second consent for its user, who requested the attack by name."""
    plan = Plan(Manifest(), nodes=5, byzantine=((3, "alie"), (4, "nan")), folder=tmp_path)
    with Demo(plan) as demo:
        configs = [demo.config(index) for index in range(5)]
        crew = {demo.peer(3), demo.peer(4)}
    assert [(config.attack, config.attack_agreed) for config in configs[2:]] == [("", False), ("alie", True), ("nan", True)]
    assert [set(str(config.attack_params["crew"]).split(",")) for config in configs[3:]] == [crew, crew]
    assert configs[0].attack_params == {}


def test_every_owner_bans_every_byzantine_node_once_and_one_that_does_not_answer_yet_later(tmp_path, monkeypatch):
    """Otherwise a node that starts late would exchange with it for the rest of the run."""
    asked, silent = [], {"1"}

    def request(run_dir, op, **fields):
        if run_dir.name in silent:
            raise control.ControlError("it starts")
        asked.append((run_dir.name, op, fields.get("peer")))

    monkeypatch.setattr(control, "request", request)
    monkeypatch.setattr(control, "status", lambda run_dir: demo.members[int(run_dir.name)].snapshot)
    demo = Demo(Plan(Manifest(), ban_at=0.5))
    demo.members = [member(tmp_path, index, 0.5 + index / 10, "foe" if index > 1 else "") for index in range(4)]
    for each in demo.members:
        each.snapshot = structs.replace(each.snapshot, addresses=("/ip4/127.0.0.1/tcp/1",))
    demo.ban()
    assert asked == [("0", "evaluate", None), ("0", "ban", "12D32"), ("0", "ban", "12D33")]
    before = demo.before_ban
    assert (before.round, before.mean, before.min) == (10, pytest.approx(0.55), 0.5)
    asked.clear()
    silent.clear()
    for _ in range(2):
        demo.ban()
    assert asked == [("1", "ban", "12D32"), ("1", "ban", "12D33")]
    assert demo.before_ban is before
    assert demo.line() == "4 nodes (2 Byzantine, banned), round 10, accuracy 0.550"


def test_a_byzantine_node_that_all_others_have_banned_ends_as_banned(tmp_path):
    demo = Demo(Plan(Manifest(), seconds=9.0))
    demo.members = [member(tmp_path, 0, 0.9), member(tmp_path, 1, 0.8), member(tmp_path, 2, 0.1, "foe")]
    rows = (PeerStatus("12D32", "banned", standing="ban"),)
    for honest, expected in zip(demo.members, ("done", "banned"), strict=False):
        honest.snapshot = structs.replace(honest.snapshot, peers=rows)
        assert demo.row(demo.members[2]).state == expected


def test_a_lone_node_has_the_same_task_data_and_length_and_no_peers(canned):
    """So only the swarm differs; with --json no lone node runs."""
    plan = planned(canned, "--nodes", "4", "--rounds", "30", "--set", "pace.local_steps=7")
    one, all_of_them = plan.alone, plan.manifest
    assert (one.overlay.kind, one.pace.quorum) == ("alone", 1)
    assert (one.task, one.partition, one.optimizer, one.mix) == (
        all_of_them.task,
        all_of_them.partition,
        all_of_them.optimizer,
        all_of_them.mix,
    )
    assert (one.pace.rounds, one.pace.local_steps, one.seed) == (30, 7, all_of_them.seed)
    for without in (
        ["--json"],
        ["--no-alone"],
        ["--preset", "open"],
        ["--byzantine", "1:sign_flip"],
        ["--set", "overlay=base_k", "--set", "overlay.k=2"],
    ):
        assert planned(canned, *without).alone is None
    assert planned(canned, "--json", "--alone").alone is not None


def test_alone_is_refused_where_no_lone_node_can_run(canned, capsys):
    """Only if it was requested; otherwise it is left out."""
    assert main(["demo", "--alone", "--set", "overlay=base_k", "--set", "overlay.k=2"]) == 2
    assert "--alone: overlay" in capsys.readouterr().err


def test_the_table_says_what_the_swarm_did_for_a_node_and_what_to_do_next(canned, capsys):
    """The figures are of this run; without measurements none are printed."""
    told = canned.run(lambda *_: None)
    assert "next:" in (planned(canned), capsys.readouterr().out)[1]
    canned.run = lambda _progress: structs.replace(told, alone=DemoAlone(rounds=9, local_steps=180, value=0.625))
    planned(canned)
    text = capsys.readouterr().out
    assert "node 0's data, 180 local steps alone: accuracy 0.625; in the swarm: 0.9" in text


@pytest.mark.parametrize(("state", "seconds", "counts"), [("finished", None, True), ("training", None, False), ("training", 9.0, True)])
def test_a_lone_node_with_fewer_steps_is_not_compared(state, seconds, counts):
    demo = Demo(Plan(Manifest(), seconds=seconds))
    assert demo.lone_result() is None
    demo.alone = SimpleNamespace(snapshot=SimpleNamespace(state=state, round=3, local_steps=60, value=0.5))
    assert demo.lone_result() == (DemoAlone(rounds=3, local_steps=60, value=0.5) if counts else None)
