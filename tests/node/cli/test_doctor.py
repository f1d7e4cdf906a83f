"""`starling doctor`: verdicts as tables, and the command with given measurements."""

import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from starling.node.admission import chain as chains
from starling.node.admission.invite import Invite
from starling.node.admission.invite import encode as encode_invite
from starling.node.cli import doctor, verdicts
from starling.node.cli.main import main
from starling.node.cli.verdicts import Bound, Dialled, Gpu, Place, Torch
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.identity import Identity
from starling.node.status import control, final
from starling.node.status.snapshot import Resources, encode
from starling.node.storage.run_dir import RunDir
from tests.harness.cli_doubles import ADDRESS, INVITE, PEER, SWARM, refused
from tests.harness.control_socket import answering
from tests.harness.processes import ENVIRONMENT, until
from tests.harness.schemas import valid
from tests.harness.snapshots import snapshot

DAY = 86_400.0
NOW = 1_800_000_000.0
ROOM = Place(free=20_000_000_000, at=NOW)
H200 = Gpu("NVIDIA H200", 150_000_000_000, 149_000_000_000)
HOME = "/ip4/192.168.1.4/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"


@pytest.mark.parametrize(
    ("concluded", "verdict", "words"),
    [
        (verdicts.versions({"Python": "3.12.1", "torch": "2.13.0"}), "ok", "Python 3.12.1, torch 2.13.0"),
        (verdicts.versions({"Python": "3.12.1", "torch": None}), "fail", "torch missing"),
        (verdicts.device(None, "auto", driver=False), "unknown", "within 20 s"),
        (verdicts.device("ImportError: libcudart", "auto", driver=False), "fail", "ImportError: libcudart"),
        (verdicts.device(Torch("2.13.0"), "auto", driver=False), "ok", "the processor"),
        (verdicts.device(Torch("2.13.0"), "cuda", driver=False), "fail", "device is cuda, torch finds cpu"),
        (verdicts.device(Torch("2.13.0"), "auto", driver=True), "warn", "built for processors alone"),
        (verdicts.device(Torch("2.13.0", "CUDA 12.8"), "auto", driver=True), "warn", "CUDA 12.8, finds no GPU"),
        (verdicts.device(Torch("2.13.0"), "cpu", driver=True), "ok", "the processor"),
        (verdicts.device(Torch("2.13.0", mps=True), "auto", driver=False), "ok", "Apple"),
        (verdicts.device(Torch("2.13.0", gpus=(H200,)), "auto", driver=True), "ok", "NVIDIA H200, 149 GB of 150 GB free"),
        (verdicts.device(Torch("2", gpus=(Gpu("T4", 16 << 30, 1 << 28),)), "auto", driver=True), "warn", "268 MB of 17 GB"),
        (verdicts.device(Torch("2", gpus=(Gpu("T4", 16 << 30),)), "cuda", driver=True), "ok", "T4, – of 17 GB"),
        (verdicts.memory(1_000_000_000, 0), "ok", "1.0 GB available"),
        (verdicts.memory(999_999_999, 0), "warn", "1.0 GB"),
        (verdicts.memory(399_999_999, 0), "fail", "400 MB available"),
        (verdicts.memory(300_000_000, 700_000_000), "ok", "700 MB taken by this node"),
        (verdicts.cores(2, 3.9), "ok", "2 cores, load 3.9"),
        (verdicts.cores(2, 4.0), "warn", "2 cores, load 4.0"),
        (verdicts.directory("d", ROOM), "ok", "20 GB free"),
        (verdicts.directory("d", Place(free=999_999_999)), "warn", "1.0 GB free"),
        (verdicts.directory("d", Place(free=49_999_999)), "fail", "50 MB free"),
        (verdicts.directory("d", Place("Permission denied")), "fail", "d cannot be written: Permission denied"),
        (verdicts.clock(NOW, ROOM), "unknown", "2027-01-15 08:00 UTC"),
        (verdicts.clock(NOW, Place()), "unknown", "no other machine"),
        (verdicts.clock(NOW, Place(at=NOW - 299)), "unknown", ""),
        (verdicts.clock(NOW, Place(at=NOW - 301)), "warn", "the file system says 2027-01-15 07:54"),
        (verdicts.clock(NOW, ROOM, NOW + 299), "unknown", ""),
        (verdicts.clock(NOW, ROOM, NOW + DAY), "fail", "before the swarm was created (2027-01-16"),
        (verdicts.clock(NOW, ROOM, NOW - DAY, NOW - 1), "fail", "after the invitation ended"),
        (verdicts.clock(NOW, ROOM, NOW - DAY, NOW + 1), "unknown", ""),
        (verdicts.port([Bound("/ip4/0.0.0.0/tcp/0")], None), "ok", "any that is free"),
        (verdicts.port([Bound("/ip4/0.0.0.0/tcp/4001")], None), "ok", "/tcp/4001: free"),
        (verdicts.port([Bound("/ip4/0.0.0.0/tcp/4001", False, "in use")], None), "fail", "/tcp/4001: in use"),
        (verdicts.port([Bound("/ip4/0.0.0.0/tcp/4001", True, "in use")], None), "warn", "of the last run: in use"),
        (verdicts.port([Bound("a"), Bound("b", False, "no such address")], None), "fail", "b: no such address"),
        (verdicts.port([], [HOME]), "ok", f"the running node listens: {HOME}"),
        (verdicts.port([], []), "unknown", "does not say yet"),
        (verdicts.addresses({"192.0.2.2": "private"}, ["/ip4/0.0.0.0/tcp/0"], []), "warn", "cannot dial this node"),
        (verdicts.addresses({"9.9.9.9": "public"}, ["/ip4/0.0.0.0/tcp/0"], []), "ok", "9.9.9.9 (public)"),
        (verdicts.addresses({"10.0.0.2": "private"}, ["/ip4/0.0.0.0/tcp/0"], ["/dns4/a.b/tcp/1"]), "ok", "announced are /dns4/a.b"),
        (verdicts.addresses({}, ["/ip4/0.0.0.0/tcp/0"], []), "fail", "no address but loopback"),
        (verdicts.addresses({"2600::1": "public"}, ["/ip4/0.0.0.0/tcp/0"], []), "warn", "not listen on 2600::1"),
        (verdicts.addresses({"10.0.0.2": "private", "2600::1": "public"}, ["/ip4/0.0.0.0/tcp/0"], []), "warn", "not listen on 2600::1"),
        (verdicts.addresses({"10.0.0.2": "private", "2600::1": "public"}, ["/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"], []), "ok", "2600::1"),
        (verdicts.addresses({"10.0.0.2": "private"}, ["/ip6/::/tcp/0"], []), "warn", "not listen on 10.0.0.2"),
        (verdicts.addresses({"10.0.0.2": "private"}, ["/ip4/127.0.0.1/tcp/0"], []), "warn", "not listen on 10.0.0.2"),
        (verdicts.addresses({"10.0.0.2": "private", "9.9.9.9": "public"}, ["/ip4/9.9.9.9/tcp/0"], []), "ok", "9.9.9.9"),
        (verdicts.addresses({"10.0.0.2": "private", "9.9.9.9": "public"}, ["/ip4/10.0.0.2/tcp/0"], []), "warn", "not listen on 9.9.9.9"),
        (verdicts.buffers(4 << 20, 6 << 20), "ok", "at most 42 MB/s where a round trip takes 100 ms"),
        (verdicts.buffers(33_554_432, 212_992), "warn", "at most 2.1 MB/s"),
        (verdicts.buffers(None, 6 << 20), "unknown", "does not say"),
    ],
)
def test_doctor_verdicts_at_each_bound(concluded, verdict, words):
    """Just below and above each bound; a warning or failure says what to do."""
    said, found, todo = concluded
    assert said == verdict
    assert words in found
    assert todo or verdict in {"ok", "unknown"}


@pytest.mark.parametrize(
    ("dialled", "verdict", "found", "todo"),
    [
        (Dialled(HOME, 0.0123), "ok", "accepts connections, after 12 ms", ""),
        (Dialled("/dns4/a.b/tcp/1", None, "name", "not known"), "fail", "cannot be resolved: not known", "`getent hosts NAME`"),
        (Dialled("/ip4/9.9.9.9/tcp/1", None, "refused"), "fail", "no node listens there", "fresh invite"),
        (Dialled("/ip4/9.9.9.9/tcp/1", None, "silent"), "fail", "no answer within 3 s", "another network"),
        (Dialled("/ip4/9.9.9.9/tcp/1", None, "other", "Network is unreachable"), "fail", "unreachable", "`ip route`"),
        (Dialled(HOME, None, "silent", kind="private"), "fail", "no answer", "private addresses are known in their own network alone"),
        (Dialled(HOME, None, "refused", kind="loopback"), "fail", "no node listens", "loopback addresses are"),
    ],
)
def test_verdicts_on_bootstrap_addresses(dialled, verdict, found, todo):
    """An unreachable address is only a warning where another one answers or members are known."""
    ((alone, said, advice),) = verdicts.bootstraps([dialled], 0, creator=False)
    assert alone == verdict
    assert said.startswith(dialled.address)
    assert found in said
    assert todo in advice
    least = "ok" if verdict == "ok" else "warn"
    assert verdicts.bootstraps([dialled, Dialled("b", 0.1)], 0, creator=False)[0][0] == least
    assert verdicts.bootstraps([dialled], 3, creator=False)[0][0] == least


@pytest.mark.parametrize(
    ("state", "members", "verdict", "found"),
    [
        ("reachable", 3, "ok", "can dial"),
        ("hidden", 3, "warn", "cannot dial"),
        ("unknown", 3, "unknown", "no member has tried"),
        ("unknown", 0, "unknown", "no other member"),
    ],
)
def test_verdicts_on_whether_members_can_dial_the_node(state, members, verdict, found):
    answer, said, todo = verdicts.reachable(state, members)
    assert (answer, bool(todo)) == (verdict, verdict != "ok")
    assert found in said


def test_only_a_creator_needs_no_bootstrap_address():
    (creator,), (other,) = (verdicts.bootstraps([], 0, creator=creator) for creator in (True, False))
    assert (creator[0], other[0], other[2]) == ("ok", "unknown", "`starling doctor INVITE`")


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Measurements of a healthy machine with a public address and an empty folder, whose bootstrap addresses answer; tests change them."""
    monkeypatch.chdir(tmp_path)
    answers = {"interface_hosts": {"9.9.9.9": "public"}, "_largest": 16 << 20, "cores_there": 64, "disk_at": Place(free=1 << 40)}
    for name, answer in answers.items():
        monkeypatch.setattr(doctor, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(verdicts, "NODE_BYTES", 1)
    said = {"torch": Torch("2.13.0"), "failed": ""}

    async def torch():
        return said["torch"]

    async def dial(address):
        return Dialled(address, None, said["failed"]) if said["failed"] else Dialled(address, 0.01)

    monkeypatch.setattr(doctor, "ask_torch", torch)
    monkeypatch.setattr(doctor, "dial", dial)
    return said


def examined(capsys, *arguments, code=0):
    """Return the verdicts by check."""
    assert main(["doctor", *map(str, arguments), "--json"]) == code
    document = valid("doctor", capsys.readouterr().out)
    return document, {each["check"]: each for each in document["checks"]}


MACHINE = ["versions", "device", "memory", "cores", "directory", "clock", "port", "addresses", "buffers", "bootstrap"]


def test_before_joining_the_machine_is_checked_and_nothing_is_left_behind(measured, tmp_path, capsys):
    document, checks = examined(capsys)
    assert list(checks) == MACHINE
    assert (document["directory"], document["running"]) == (str(tmp_path / "starling-node"), False)
    assert list(tmp_path.iterdir()) == []


def test_an_unanswered_invite_gives_an_exit_code(measured, capsys):
    assert examined(capsys, INVITE)[1]["bootstrap"]["verdict"] == "ok"
    measured["failed"] = "refused"
    assert examined(capsys, INVITE, code=1)[1]["bootstrap"]["verdict"] == "fail"


def test_torch_that_cannot_be_imported_is_a_failure(measured, capsys):
    measured["torch"] = "ImportError: no libtorch"
    assert "no libtorch" in examined(capsys, code=1)[1]["device"]["found"]


def test_for_people_problems_come_first_with_what_to_do(measured, capsys):
    measured["failed"] = "refused"
    assert main(["doctor", INVITE]) == 1
    _, first, todo, *rest = capsys.readouterr().out.splitlines()
    assert first.split()[:2] == ["fail", "bootstrap"]
    assert todo.strip().startswith("→ ")
    order = [line.split()[0] for line in rest if not line.startswith(" ")]
    assert order == sorted(order, key=["fail", "warn", "unknown", "ok"].index)


def test_wrong_input_is_one_line(measured, tmp_path, capsys):
    refused(capsys, ["doctor", "starling-2"], "invite: 'starling-2' is not one")
    refused(capsys, ["doctor", INVITE[:-1]], "invite: is damaged")
    refused(capsys, ["doctor", "--dir", "a", INVITE, "b"], "two directories")


def joined(tmp_path, **settings):
    place = RunDir(tmp_path / "n")
    place.path.mkdir()
    place.write_config(NodeConfig(**settings))
    return place


def test_a_directory_given_instead_of_an_invite_is_the_node_s(measured, tmp_path, capsys):
    joined(tmp_path)
    document, checks = examined(capsys, "n")
    assert document["directory"] == str(tmp_path / "n")
    assert list(checks) == ["node", *MACHINE]
    assert checks["node"]["found"] == "not running"
    assert "created" in checks["bootstrap"]["found"]


@pytest.mark.real
def test_a_running_node_is_asked(measured, tmp_path, capsys):
    """Its status names the problem, its members and its addresses; an address of the invite need not answer any more."""
    place = joined(tmp_path, bootstrap=(HOME,))
    measured["failed"] = "silent"
    with answering(place.path, encode(snapshot(addresses=(HOME,), problem="it is quiet", resources=Resources(memory_bytes=10**9)))):
        document, checks = examined(capsys, "--dir", place.path)
    assert document["running"]
    assert checks["node"]["verdict"] == "warn"
    assert checks["node"]["found"].startswith("it is quiet; see `starling logs")
    assert HOME in checks["port"]["found"]
    assert "1.0 GB taken by this node" in checks["memory"]["found"]
    assert checks["bootstrap"]["verdict"] == "warn"
    (place.path / control.SOCKET_NAME).unlink()
    with answering(place.path, encode(snapshot(members=4))):
        assert examined(capsys, "--dir", place.path)[1]["node"]["found"] == "training, 4 members, 1 with an edge"


def test_remembered_members_replace_a_bootstrap_address(measured, tmp_path, capsys):
    place = joined(tmp_path, bootstrap=(HOME,))
    measured["failed"] = "silent"
    assert examined(capsys, "--dir", "n", code=1)[1]["bootstrap"]["verdict"] == "fail"
    place.remember_peers((ADDRESS,))
    assert examined(capsys, "--dir", "n")[1]["bootstrap"]["verdict"] == "warn"


def test_an_expired_invitation_is_reported_before_and_after_joining(measured, tmp_path, capsys):
    creator = Identity.from_seed(b"f" * 32)
    terms = chains.Terms(SWARM, creator.peer_id, 2, 4)
    chain = chains.invite(creator, (), terms, invitee=PEER, number=0, not_after_ms=10**12)
    ended = Invite(SWARM, (ADDRESS,), chain)
    joined(tmp_path).write_invite(ended)
    for arguments in ([encode_invite(ended)], ["--dir", "n"]):
        assert "after the invitation ended (2001-09-09" in examined(capsys, *arguments, code=1)[1]["clock"]["found"]


def test_how_a_node_ended_is_reported(measured, tmp_path, capsys):
    place = joined(tmp_path)
    place.keep_final(final.FinalStatus(ended="failed", reason="the engine died", snapshot=snapshot(round=7)))
    assert "the engine died" in examined(capsys, "--dir", "n")[1]["node"]["found"]
    (place.path / "final.json").write_text("{")
    assert examined(capsys, "--dir", "n", code=1)[1]["node"]["verdict"] == "fail"


def test_unreadable_settings_are_a_failure_and_other_checks_continue(measured, tmp_path, capsys):
    place = joined(tmp_path)
    place.config_file.write_text('device = "abacus"\n')
    _, checks = examined(capsys, "--dir", "n", code=1)
    assert "device" in checks["settings"]["found"]
    assert checks["port"]["verdict"] == "ok"


def test_a_clock_before_the_swarm_s_creation_is_reported(measured, tmp_path, capsys, monkeypatch):
    joined(tmp_path)
    monkeypatch.setattr(RunDir, "read_manifest", lambda _: Manifest(founded_ms=2**42))
    assert examined(capsys, "--dir", "n", code=1)[1]["clock"]["verdict"] == "fail"


@pytest.mark.real
def test_a_port_used_by_another_program_is_reported(measured, tmp_path, capsys):
    """A failure if the owner chose the port, a warning if it is the last run's."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        place = joined(tmp_path, listen=(f"/ip4/127.0.0.1/tcp/{taken}",))
        assert examined(capsys, "--dir", "n", code=1)[1]["port"]["verdict"] == "fail"
        place.write_config(NodeConfig(listen=("/ip4/127.0.0.1/tcp/0",)))
        place.keep_port((f"/ip4/127.0.0.1/tcp/{taken}",))
        assert examined(capsys, "--dir", "n")[1]["port"]["verdict"] == "warn"
    assert examined(capsys, "--dir", "n")[1]["port"]["verdict"] == "ok"


@pytest.mark.real
@pytest.mark.parametrize(
    ("address", "failed"), [("/ip4/127.0.0.1/tcp/1", "refused"), ("/dns4/no.such.name.invalid/tcp/1", "name"), ("/unix/a", "other")]
)
def test_dialling_reports_its_outcome(address, failed):
    dialled = trio.run(doctor.dial, address)
    assert (dialled.failed, dialled.seconds) == (failed, None)


@pytest.mark.real
def test_dialling_a_listening_peer_takes_no_time():
    with socket.create_server(("127.0.0.1", 0)) as other:
        dialled = trio.run(doctor.dial, f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}")
    assert dialled.seconds < verdicts.DIAL_S
    assert dialled.kind == "loopback"


def test_doctor_does_not_wait_for_a_silent_node(autojump_clock, monkeypatch):
    async def silence(host, port):
        await trio.sleep_forever()

    monkeypatch.setattr(trio, "open_tcp_stream", silence)
    assert trio.run(doctor.dial, "/ip4/9.9.9.9/tcp/1", clock=autojump_clock).failed == "silent"
    assert autojump_clock.current_time() == pytest.approx(verdicts.DIAL_S)


def test_addresses_are_those_of_interfaces_without_loopback(monkeypatch):
    kinds = {"127.0.0.1": None, "192.168.1.4": "private", "9.9.9.9": "public", "2600::1": "public", "fe80::1%eth0": None}
    families = {host: socket.AF_INET6 if ":" in host else socket.AF_INET for host in kinds}
    found = {"eth0": [SimpleNamespace(address=host, family=family) for host, family in families.items()]}
    monkeypatch.setattr("psutil.net_if_addrs", lambda: found)
    assert doctor.interface_hosts() == {host: kind for host, kind in kinds.items() if kind}
    monkeypatch.setattr("psutil.net_if_addrs", dict)
    assert doctor.interface_hosts() == {}


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ('print(\'{"version": "2.13.0", "mps": true}\')', Torch("2.13.0", mps=True)),
        ("import no_such_torch", "ModuleNotFoundError: No module named 'no_such_torch'"),
        ("raise SystemExit(3)", "exit status 3"),
        (None, "no process for it: No such file or directory"),
        ("import time; time.sleep(60)", None),
    ],
)
@pytest.mark.real
def test_torch_is_probed_in_a_process_that_may_fail_or_hang(program, answer, monkeypatch):
    monkeypatch.setattr(doctor, "PROBE", ("/no/python",) if program is None else (sys.executable, "-c", program))
    monkeypatch.setattr(verdicts, "TORCH_S", 1.0 if answer is None else 60.0)
    assert trio.run(doctor.ask_torch) == answer


@pytest.mark.parametrize("words", [["doctor"], ["demo"], ["create"], ["join", "starling1:x"], ["run"]])
@pytest.mark.parametrize(
    ("version", "said"), [(None, "libp2p is missing"), ("0.7.9", "libp2p is 0.7.9, this version of Starling needs 0.8.1")]
)
def test_without_the_right_libp2p_there_is_one_line(words, version, said, tmp_path, monkeypatch, capsys):
    """It comes before anything starts: pip does not install libp2p with Starling, decisions/0136."""

    def installed(_):
        if version is None:
            raise PackageNotFoundError
        return version

    monkeypatch.setattr("importlib.metadata.version", installed)
    refused(capsys, [*words, "--dir", tmp_path / "node"], said, "`pip install --no-deps libp2p==0.8.1`", code=1)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_this_user_may_not_enter_is_a_failure_in_one_line(measured, tmp_path, capsys, monkeypatch):
    """The permission error is simulated, since root may enter any directory."""
    joined(tmp_path)
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: Path(path).name != "node.toml")
    document, checks = examined(capsys, "--dir", "n")
    assert (list(checks), document["running"]) == (MACHINE, False)


def test_an_unwritable_folder_is_reported_with_the_reason(tmp_path):
    (tmp_path / "file").touch()
    assert doctor.disk_at(tmp_path / "file" / "node").error == "Not a directory"
    assert doctor.disk_at(tmp_path / "new" / "node").error == ""


@pytest.mark.real
@pytest.mark.slow
def test_in_an_empty_folder_as_a_person_runs_it(tmp_path):
    """All checks of the machine run, the exit code agrees with them, and nothing is written.

    Where torch does not start in time, doctor says to try again when the machine is less busy; so does this test.
    """

    def torch_answered():
        done = subprocess.run(["starling", "doctor", "--json"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        found = valid("doctor", done.stdout)
        assert [each["check"] for each in found["checks"]] == MACHINE
        assert done.returncode == any(each["verdict"] == "fail" for each in found["checks"])
        assert done.stderr == ""
        device = found["checks"][MACHINE.index("device")]
        if device["verdict"] == "unknown":
            assert device["found"].startswith("torch did not start within")
            return False
        assert device["verdict"] in {"ok", "warn"}
        return True

    until("torch never starts in time", torch_answered)
    assert list(tmp_path.iterdir()) == []
