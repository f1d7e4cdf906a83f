"""Membership behind a gate: peers that are not admitted learn nothing, and revocations reach everybody in any order of arrival."""

from dataclasses import dataclass, field

import pytest

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.membership.detector import Detector
from starling.gossip.membership.events import Died, Joined, Send
from starling.gossip.membership.local_record import LocalRecord
from starling.gossip.membership.member_list import MemberList
from starling.gossip.membership.table import key_of
from starling.gossip.wire import schema as wire
from tests.harness.detectors import TIMING, quiet, record, sent, sign, verify

DIGEST = b"other-digest"


@dataclass(slots=True)
class Ring:
    """A gate: peers named x… are refused, those in `waiting` not yet admitted; a revocation's `by` names those it removes."""

    closed: bool = True
    waiting: set[str] = field(default_factory=set)
    out: dict[str, wire.Revocation] = field(default_factory=dict)
    first: dict[str, wire.Record] = field(default_factory=dict)
    _changed: bool = False

    @property
    def revoked(self):
        return tuple(self.out[peer] for peer in sorted(self.out))

    @property
    def digest(self):
        return (":".join(sorted(self.out)).encode() + bytes(16))[:32]

    def fault(self, record):
        return "not_listed" if record.peer.startswith("x") else ""

    def admits(self, record):
        return not self.fault(record) and record.peer not in self.waiting and record.peer not in self.out

    def answer(self, record):
        return self.out.get(record.peer) or self.first.get(record.peer)

    def revoke(self, revocations):
        if any(not revocation.signature for revocation in revocations):
            raise ValueError("revocation_forged")
        new = [revocation for revocation in revocations if revocation.by not in self.out]
        self.out |= {revocation.by: revocation for revocation in new}
        self._changed = self._changed or bool(new)
        return new

    def changed(self):
        changed, self._changed = self._changed, False
        return changed


def void(peer):
    return wire.Revocation(b"chain", peer, b"signature")


def guarded(*others, gate=None, peer="me"):
    core = Detector(LocalRecord(record(peer), sign), MemberList(verify, gate or Ring()), TIMING, 0, lambda t: t, 0.0)
    if others:
        core.receive(others[0], wire.Sync(tuple(record(other) for other in others)), 0.0)
    for other in others:
        core.view.introductions.meet(other)
    quiet(core)
    core.spreading.dissemination.due_at = float("inf")
    core.spreading.quiet_until = -float("inf")
    return core


@pytest.mark.parametrize("message", [wire.Spread((record("c"), record("x"))), wire.Sync((record("x"),))])
def test_a_record_that_no_honest_member_forwards_is_the_senders_fault_without_effect(message):
    core = guarded("a", "b")
    with pytest.raises(RemoteProtocolError, match="a: not_listed"):
        core.receive("a", message, 1.0)
    with pytest.raises(RemoteProtocolError, match="x: not_listed"):
        core.receive("x", wire.Hello(record("x"), DIGEST, 0.0), 1.0)
    assert core.member_list.alive == ("a", "b", "me")


@pytest.mark.parametrize(
    "message",
    [
        wire.Hello(record("w"), DIGEST, 0.0),
        wire.Sync(()),
        wire.Sync((record("w"),)),
        wire.Spread((record("w"),)),
        wire.Farewell(record("w")),
        wire.Want((key_of("a"),)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_peer_that_is_not_admitted_gets_no_answer(message):
    core = guarded("a", "b", gate=Ring(waiting={"w"}))
    assert core.receive("w", message, 1.0) == []
    assert "w" not in core.member_list.members


def test_a_non_member_that_compares_tables_is_asked_for_its_record_only():
    core = guarded("a", "b")
    out = core.receive("w", wire.Compare(leaves=(wire.Leaf("", b""),)), 1.0)
    assert out == [Send("w", wire.Want((key_of("w"),)))]


def test_a_non_members_probe_is_acknowledged_without_rumors_and_hello():
    core = guarded("a", "b")
    core.receive("a", wire.Spread((), (wire.Rumor("b", 1, 0, "suspect", "a"),)), 5.0)
    out = core.receive("w", wire.Probe(7, DIGEST, 0.0), 5.0)
    assert sent(out, wire.Acknowledge) == [("w", wire.Acknowledge(7, core.member_list.digest, 5.0))]
    assert sent(out, wire.Hello) == []


def test_in_an_open_swarm_strangers_are_answered():
    core = guarded("a", gate=Ring(closed=False, waiting={"w"}))
    assert sent(core.receive("w", wire.Hello(record("w"), DIGEST, 0.0), 1.0), wire.Compare)
    assert sent(core.receive("w", wire.Probe(7, DIGEST, 0.0), 2.0), wire.Hello)


def test_a_peer_admitted_later_is_answered_then_and_spread():
    gate = Ring(waiting={"w"})
    core = guarded("a", "b", gate=gate)
    assert core.receive("w", wire.Hello(record("w"), DIGEST, 0.0), 1.0) == []
    gate.waiting.clear()
    out = core.admit(record("w"), "w", 2.0)
    assert Joined("w") in out
    ((peer, sync),) = sent(out, wire.Sync)
    assert (peer, {it.peer for it in sync.records}) == ("w", {"a", "me", "w"}), "of b it has only heard"
    assert {peer for peer, spread in sent(out, wire.Spread) if spread.records} == {"a", "b", "w"}
    assert sent(core.admit(record("c"), "a", 3.0), wire.Sync) == [], "who only told of it knows us already"


def test_a_new_revocation_removes_and_is_forwarded_at_once_also_to_the_removed():
    core = guarded("a", "b", "c")
    out = core.receive("a", wire.Revoked((void("b"),), bytes(16)), 1.0)
    assert Died("b") in out
    assert core.member_list.alive == ("a", "c", "me")
    assert {peer for peer, _ in sent(out, wire.Revoked)} == {"a", "b", "c"}
    assert core.receive("c", wire.Revoked((void("b"),), bytes(16)), 1.1) == []
    assert core.receive("c", wire.Spread((record("b", version=5),)), 1.2) == [
        Send("c", wire.Revoked((void("b"),), core.member_list.gate.digest))
    ]


def test_an_invalid_revocation_is_a_fault_without_effect():
    core = guarded("a", "b")
    with pytest.raises(RemoteProtocolError, match="a: revocation_forged"):
        core.receive("a", wire.Revoked((void("b"), wire.Revocation(b"", "a", b"")), bytes(16)), 1.0)
    assert core.member_list.alive == ("a", "b", "me")


def test_a_node_s_own_revocation_removes_and_is_forwarded():
    core = guarded("a", "b")
    out = core.revoke(void("a"), 1.0)
    assert Died("a") in out
    assert {peer for peer, _ in sent(out, wire.Revoked)} == {"a", "b"}


def talk(one, other, first):
    """Exchange messages between two cores until none is left; return the number of Revoked messages."""
    names = {one.own.peer: one, other.own.peer: other}
    queue, count = [(one.own.peer, first)], 0
    now = 10.0
    while queue:
        source, send = queue.pop(0)
        if send.peer not in names:
            continue
        now += 0.01
        count += isinstance(send.message, wire.Revoked)
        out = names[send.peer].receive(source, send.message, now)
        queue += [(send.peer, output) for output in out if isinstance(output, Send) and isinstance(output.message, wire.Revoked)]
    return count


@pytest.mark.parametrize(("mine", "theirs"), [(3, 0), (0, 3), (2, 2), (40, 40), (0, 0)])
def test_two_members_that_compare_digests_share_all_revocations(mine, theirs):
    one, other = guarded("z", "q", peer="y"), guarded("y", "q", peer="z")
    one.member_list.gate.revoke([void(f"one{n}") for n in range(mine)])
    other.member_list.gate.revoke([void(f"other{n}") for n in range(theirs)])
    talk(one, other, Send("z", wire.Revoked((), one.member_list.gate.digest, reply=True)))
    assert one.member_list.gate.revoked == other.member_list.gate.revoked
    assert len(one.member_list.gate.revoked) == mine + theirs
    assert talk(one, other, Send("z", wire.Revoked((), one.member_list.gate.digest, reply=True))) == 1, "then there is nothing to say"


def test_requests_for_revocations_are_not_amplified():
    core = guarded("a")
    core.member_list.gate.revoke([void(f"r{n:03d}") for n in range(100)])
    core.member_list.gate.changed()
    ask = wire.Revoked((), bytes(16), reply=True)
    frames = sent(core.receive("a", ask, 1.0), wire.Revoked)
    assert [len(message.revocations) for _, message in frames] == [wire.MAX_REVOCATIONS] * 6 + [4]
    assert [message.reply for _, message in frames] == [False] * 6 + [True]
    assert sent(core.receive("stranger", ask, 1.0 + TIMING.timeout_s), wire.Revoked) == []
    assert sent(core.receive("a", ask, 2.0), wire.Revoked) == frames
    assert sent(core.receive("a", ask, 2.0 + TIMING.timeout_s / 2), wire.Revoked) == []
    assert sent(core.receive("stranger", ask, 2.0 + TIMING.timeout_s), wire.Revoked) == frames, "to a, in its turn"


def test_a_flood_of_revocation_requests_delays_no_other_peer():
    core = guarded("liar", "a")
    core.member_list.gate.revoke([void("r")])
    core.member_list.gate.changed()
    ask, answered = wire.Revoked((), bytes(16), reply=True), []
    for step in range(40):
        for peer in ("liar", "a") if step % 10 == 5 else ("liar",):
            out = core.receive(peer, ask, 1.0 + step * TIMING.timeout_s / 10)
            answered += [to for to, _ in sent(out, wire.Revoked)]
    assert answered == ["liar", "a", "liar", "a"]


def test_anti_entropy_sends_a_digest_of_existing_revocations():
    core = guarded("a")
    core.spreading.sync_at = 5.0
    assert sent(core.tick(5.0), wire.Revoked) == []
    core.member_list.gate.revoke([void("r")])
    core.spreading.sync_at = 6.0
    assert sent(core.tick(6.0), wire.Revoked) == [("a", wire.Revoked((), core.member_list.gate.digest, reply=True))]


def test_anti_entropy_removes_members_with_lapsed_credentials():
    gate = Ring()
    core = guarded("a", "b", gate=gate)
    gate.waiting.add("b")
    core.spreading.sync_at = 5.0
    assert Died("b") in core.tick(5.0)
    assert core.member_list.alive == ("a", "me")


def test_a_second_user_of_an_invitation_is_answered_with_the_first_record():
    gate = Ring(waiting={"b"}, first={"b": record("a")})
    core = guarded("a", gate=gate)
    out = core.receive("a", wire.Sync((record("b"),)), 1.0)
    assert sent(out, wire.Spread) == [("a", wire.Spread((record("a"),)))]


def test_a_new_credential_makes_a_new_record_version():
    core = guarded("a", "b")
    out = core.update(1.0, credential=b"credential")
    assert (core.own.version, core.own.credential) == (1, b"credential")
    assert core.member_list.members["me"].record == core.own
    assert {peer for peer, spread in sent(out, wire.Spread) if spread.records == (core.own,)} == {"a", "b"}
    assert core.update(2.0, credential=b"credential") == []
    core.leave(3.0)
    assert core.update(4.0, credential=b"x") == core.admit(record("c"), "c", 4.0) == core.revoke(void("a"), 4.0) == []
