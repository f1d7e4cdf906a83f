"""Issuing and using invitations: each number is issued once and stored in the run directory; mistakes are reported in one line."""

from datetime import UTC, datetime

import pytest

from starling.gossip.errors import ConfigError
from starling.gossip.wire.schema import Revocation
from starling.node.admission import chain as chains
from starling.node.admission import invite as invites
from starling.node.admission import revocations
from starling.node.admission.credential import Ticket
from starling.node.admission.invite import Invite
from starling.node.admission.issue import give, given, take_up
from starling.node.cli.main import main
from starling.node.config import manifest as manifests
from starling.node.config.schema import AdmissionSection, Manifest, NodeConfig
from starling.node.identity import Identity
from starling.node.net.libp2p.connection import ConnectionInfo
from starling.node.net.libp2p.guards import make_room
from starling.node.net.limits import ORIGIN_SHARE, origin_of
from starling.node.status import control
from starling.node.status.snapshot import VERSION, StatusSnapshot
from starling.node.storage.run_dir import RunDir
from tests.harness.invitations import CREATOR, PEOPLE, TERMS, chain_of

NOW_S = 1_700_000_000.0
ADDRESS = (f"/ip4/203.0.113.7/tcp/4001/p2p/{CREATOR.peer_id}",)


def given_by(folder, who=CREATOR, above=(), *, now_s=NOW_S, days=30.0, peer=""):
    return give(folder, TERMS, who, above, ADDRESS, days=days, now_s=now_s, peer=peer)


def one_line(error):
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_an_invitation_is_one_line_of_text(tmp_path):
    issued = given_by(tmp_path / "issued")
    assert issued.left is None
    assert issued.until == datetime.fromtimestamp(NOW_S + 30 * 86400, UTC)
    text = invites.encode(issued.invite)
    assert text.startswith("starling2:")
    assert (tmp_path / "issued" / "0").read_text() == text + "\n"
    chain = take_up(invites.decode(text), PEOPLE[1])
    chains.check(chain, TERMS)
    assert chain[-1].holder == PEOPLE[1].peer_id
    assert take_up(invites.decode(text), PEOPLE[1]) == chain, "the same after a restart"


def test_the_bearer_key_is_stored_only_in_the_invite(tmp_path):
    invite = given_by(tmp_path / "issued").invite
    assert invite.bearer not in chains.encode(take_up(invite, PEOPLE[1]))
    assert "bearer" not in repr(invite)
    assert (tmp_path / "issued" / "0").stat().st_mode & 0o077 == 0
    assert (tmp_path / "issued").stat().st_mode & 0o077 == 0


def test_an_invitation_for_one_peer_does_not_admit_another(tmp_path):
    invite = given_by(tmp_path / "issued", peer=PEOPLE[1].peer_id).invite
    assert invite.bearer == b""
    assert take_up(invite, PEOPLE[1])[-1].holder == PEOPLE[1].peer_id
    with pytest.raises(ConfigError, match=f"it is for {PEOPLE[1].peer_id}, this node is {PEOPLE[2].peer_id}") as error:
        take_up(invite, PEOPLE[2])
    one_line(error)


def test_every_number_is_issued_once_until_it_expires(tmp_path):
    above = chain_of(1)
    assert [given_by(tmp_path / "issued", PEOPLE[1], above).number for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ConfigError, match="all 3 invitations of this node are issued") as error:
        given_by(tmp_path / "issued", PEOPLE[1], above)
    one_line(error)
    again = given_by(tmp_path / "issued", PEOPLE[1], above, now_s=NOW_S + 31 * 86400)
    assert (again.number, again.left) == (0, 2)
    assert [given_by(tmp_path / "creator").number for _ in range(5)] == list(range(5))


def test_other_files_in_the_folder_do_no_harm(tmp_path):
    folder = tmp_path / "issued"
    folder.mkdir()
    (folder / "notes.txt").write_text("0 is for Ada")
    (folder / "0").write_text("")
    (folder / "1").write_bytes(b"\xff\xff")
    issued = given_by(folder)
    assert issued.number == 2
    assert given(folder) == {2: issued.invite.chain}


@pytest.mark.parametrize(
    ("who", "above", "options", "says"),
    [
        (PEOPLE[3], chain_of(3), {}, "at the end of a chain"),
        (PEOPLE[5], (), {}, "has no invitation itself"),
        (CREATOR, (), {"days": 0.0}, "--days: must be > 0"),
        (CREATOR, (), {"days": float("nan")}, "--days: must be > 0"),
        (CREATOR, (), {"peer": "nobody"}, "--for: 'nobody' is no peer id"),
    ],
)
def test_inviting_without_permission_is_refused_with_the_reason(tmp_path, who, above, options, says):
    with pytest.raises(ConfigError, match=says) as error:
        given_by(tmp_path / "issued", who, above, **options)
    one_line(error)
    assert not (tmp_path / "issued").exists()


def test_an_unwritable_folder_gives_one_line(tmp_path):
    (tmp_path / "issued").write_text("a file")
    with pytest.raises(ConfigError, match="cannot write in") as error:
        given_by(tmp_path / "issued")
    one_line(error)


def test_a_key_of_another_invitation_gives_one_line(tmp_path):
    one, other = given_by(tmp_path / "issued").invite, given_by(tmp_path / "issued").invite
    with pytest.raises(ConfigError, match="does not fit") as error:
        take_up(Invite(one.swarm, one.bootstrap, one.chain, other.bearer), PEOPLE[1])
    one_line(error)


def test_revocations_survive_restarts_and_a_damaged_file_is_ignored(tmp_path):
    place = RunDir.create(tmp_path / "node")
    assert place.issued() == {}
    known = (revocations.revoke(CREATOR, chain_of(1), TERMS), Revocation(b"x", "y", b""))
    place.keep_revoked(known)
    assert place.known_revoked() == known
    (tmp_path / "node" / "revoked").write_text("rubbish\n")
    assert place.known_revoked() == ()


def creator_in(folder, admission, monkeypatch=None):
    """Create the run directory of a swarm's creator; with `monkeypatch` its node appears to be running."""
    place = RunDir.create(folder)
    place.write_config(NodeConfig())
    place.write_manifest(manifests.create(Manifest(admission=admission), Identity.load_or_create(place.key), 1))
    if monkeypatch is not None:
        status = StatusSnapshot(VERSION, "p", place.swarm(), "n", 0.0, 0.0, "training", addresses=ADDRESS)
        monkeypatch.setattr(control, "status", lambda _run_dir: status)
    return place


@pytest.mark.parametrize("damage", ["", "1", "1 2 3", "-1 2", "x y", "1 " + "9" * 5000, "\xff"])
def test_a_ticket_survives_restarts_and_a_damaged_file_is_ignored(tmp_path, damage):
    place = RunDir.create(tmp_path / "node")
    assert place.known_ticket() is None
    place.keep_ticket(Ticket(7, 2**62))
    assert place.known_ticket() == Ticket(7, 2**62)
    (tmp_path / "node" / "ticket").write_text(damage, encoding="latin-1")
    assert place.known_ticket() is None


@pytest.mark.parametrize("arguments", [["revoke", "0"], ["invite"]])
def test_commands_for_a_running_node_say_how_to_start_it(tmp_path, capsys, arguments):
    place = creator_in(tmp_path / "node", AdmissionSection(kind="invite"))
    assert main([*arguments, "--dir", str(place.path)]) == 1
    said = capsys.readouterr().err
    assert f"`starling run --dir {place.path}`" in said
    assert said.count("\n") == 1


def test_a_running_node_of_an_invited_swarm_prints_an_invitation_and_says_how_to_void_it(tmp_path, capsys, monkeypatch):
    place = creator_in(tmp_path / "node", AdmissionSection(kind="invite"), monkeypatch)
    for number in (0, 1):
        assert main(["invite", "--dir", str(place.path), "--days", "7"]) == 0
        said = capsys.readouterr()
        invite = invites.decode(said.out)
        assert said.out.count("\n") == said.err.count("\n") == 1
        assert f"`starling revoke {number} --dir {place.path}`" in said.err
        assert take_up(invite, PEOPLE[1])[-1].number == number
        assert place.issued()[number] == invite.chain
    assert main(["invite", "--dir", str(place.path), "--for", "nobody"]) == 2
    assert "--for: 'nobody' is no peer id" in capsys.readouterr().err


def test_a_running_node_of_an_open_swarm_prints_the_plain_line(tmp_path, capsys, monkeypatch):
    place = creator_in(tmp_path / "node", AdmissionSection(), monkeypatch)
    assert main(["invite", "--dir", str(place.path)]) == 0
    assert invites.decode(capsys.readouterr().out) == Invite(place.swarm(), ADDRESS)
    assert main(["invite", "--dir", str(place.path), "--for", PEOPLE[1].peer_id]) == 2
    assert "takes members without invitation" in capsys.readouterr().err


def test_revoking_prints_the_removed_peers(tmp_path, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(control, "request", lambda run_dir, op, **fields: asked.append((op, fields)) or {"removed": ["a", "b"]})
    assert main(["revoke", "a", "--dir", str(tmp_path)]) == 0
    assert asked == [("revoke", {"peer": "a"})]
    said = capsys.readouterr()
    assert (said.out, said.err) == ("a\nb\n", "revoked; 2 members are removed, and the revocation is being sent to the others\n")


def test_joining_with_anothers_invitation_is_one_line_and_creates_no_node(tmp_path, capsys):
    invite = given_by(tmp_path / "issued", peer=PEOPLE[1].peer_id).invite
    assert main(["join", invites.encode(invite), "--dir", str(tmp_path / "node")]) == 2
    said = capsys.readouterr().err
    assert f"it is for {PEOPLE[1].peer_id}" in said
    assert said.count("\n") == 1
    assert not RunDir(tmp_path / "node").config_file.exists()


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("8.8.8.8", "8.8.8.0/24"),
        ("8.8.8.255", "8.8.8.0/24"),
        ("::ffff:8.8.8.8", "8.8.8.0/24"),
        ("2001:4860:4860::8888", "2001:4860:4860::/48"),
        ("127.0.0.1", ""),
        ("10.1.2.3", ""),
        ("192.168.0.1", ""),
        ("::1", ""),
        ("fe80::1%eth0", ""),
        ("fd00::1", ""),
        ("100.64.0.1", ""),
    ],
)
def test_an_origin_is_the_prefix_that_one_customer_of_a_network_gets(host, origin):
    assert origin_of(host) == origin


def test_one_public_prefix_has_a_share_of_the_connections_and_private_ones_have_none():
    limits = NodeConfig().limits
    most = limits.connections // ORIGIN_SHARE
    army = [ConnectionInfo(f"p{n}", f"8.8.8.{n}", True, 0.0, 990.0, "8.8.8.0/24") for n in range(most)]
    other = ConnectionInfo("honest", "9.9.9.9", True, 0.0, 0.0, "9.9.9.0/24")
    newcomer = ConnectionInfo("q", "8.8.8.200", True, 1000.0, 1000.0, "8.8.8.0/24")
    assert make_room([other, *army[1:]], newcomer, limits, 1000.0) == []
    assert make_room([other, *army], newcomer, limits, 1000.0) is None
    idle = ConnectionInfo("idle", "8.8.8.77", True, 0.0, 0.0, "8.8.8.0/24")
    assert make_room([other, *army[1:], idle], newcomer, limits, 1000.0) == [idle]
    elsewhere = ConnectionInfo("q", "9.9.8.1", True, 1000.0, 1000.0, "9.9.8.0/24")
    assert make_room([other, *army], elsewhere, limits, 1000.0) == []
    private = [ConnectionInfo(f"p{n}", f"10.0.0.{n}", True, 0.0, 990.0) for n in range(limits.connections - 1)]
    assert make_room(private, ConnectionInfo("q", "10.0.1.1", True, 1000.0, 1000.0), limits, 1000.0) == []


def test_prefixes_that_fill_all_connections_give_one_up_to_a_newcomer_of_another():
    limits = NodeConfig().limits
    most = limits.connections // ORIGIN_SHARE
    every = [
        ConnectionInfo(f"p{net} {n}", f"8.8.{net}.{n}", True, 0.0, 990.0 + n / most, f"8.8.{net}.0/24")
        for net in range(ORIGIN_SHARE)
        for n in range(most - (net == 1))
    ]
    every += [ConnectionInfo("honest", "9.9.9.9", True, 0.0, 950.0, "9.9.9.0/24")]
    assert len(every) == limits.connections
    newcomer = ConnectionInfo("q", "9.9.8.1", True, 1000.0, 1000.0, "9.9.8.0/24")
    assert make_room(every, newcomer, limits, 1000.0) == [every[0]], "of the prefix that holds most, not the honest one that is idler"
    same = ConnectionInfo("q", "8.8.1.200", True, 1000.0, 1000.0, "8.8.1.0/24")
    assert make_room(every, same, limits, 1000.0) is None, "nobody holds two more than its prefix"
    ours = [ConnectionInfo(f"d{n}", f"7.7.{n}.1", False, 0.0, 990.0, f"7.7.{n}.0/24") for n in range(limits.connections)]
    assert make_room(ours, newcomer, limits, 1000.0) is None, "those that this node dialled stay"
