"""The failure detector, one node at a time: (state, message) -> (state, messages)."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path

import msgspec
import pytest

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.membership.dissemination import MAX_FRAME_RECORDS
from starling.gossip.membership.events import Changed, ClockSample, Died, Joined, Reborn, Send, Suspected
from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import (
    MAX_CREDENTIAL_BYTES,
    MAX_FRAME_BYTES,
    Acknowledge,
    Beacon,
    BeaconQuery,
    Claim,
    Evidence,
    Farewell,
    Hello,
    Probe,
    ProbeFor,
    Record,
    Revocation,
    Revoked,
    Rumor,
    Spread,
    Sync,
    Told,
)
from tests.harness.detectors import TIMING, detector, record

GOLDEN = Path(__file__).parents[2] / "golden" / "control.json"


def knowing(*others, now=0.0):
    """A detector named `me` that knows these peers and starts nothing by the clock."""
    core = detector("me", now)
    core.receive("a", Sync(tuple(record(peer) for peer in others), reply=False), now)
    core.last_frame.clear()
    core._probes._open.clear()
    core._probe_at = core._sync_at = inf
    return core


def sent(outputs, kind=None):
    return [
        (o.peer, o.message) for o in outputs if isinstance(o, Send) and (kind is None or isinstance(o.message, kind))
    ]


def facts(outputs):
    return [o for o in outputs if not isinstance(o, Send)]


def rumor(peer, source, state="suspect", version=0):
    return Rumor(peer, 1, version, state, source)


def test_hello_is_answered_with_all_records_and_spread_to_the_others():
    """Joining needs one living member."""
    core = knowing("a", "b")
    out = core.receive("c", Hello(record("c"), b"other-digest", 0.0), 1.0)
    assert facts(out) == [Joined("c")]
    ((peer, sync),) = sent(out, Sync)
    assert peer == "c"
    assert [r.peer for r in sync.records] == ["a", "b", "c", "me"]
    assert sync.reply
    assert {peer for peer, spread in sent(out, Spread) if spread.records == (record("c"),)} == {"a", "b", "c"}


def test_a_newcomer_does_not_spread_what_is_new_only_to_itself_and_probes_some_at_once():
    """Its first Sync is old news to everybody; its clock needs samples early."""
    core = detector("me")
    out = core.receive("a", Sync((record("a"), record("b"), record("c")), reply=False), 0.1)
    assert sent(out, Spread) == []
    assert {peer for peer, _ in sent(out, Probe)} == {"a", "b", "c"}


def test_a_probe_is_acknowledged_with_its_nonce():
    core = knowing("a", "b")
    out = core.receive("a", Probe(7, core.member_list.digest, 5.0), 1.0)
    assert out == [Send("a", Acknowledge(7, core.member_list.digest, 1.0))]


def test_an_acknowledgement_of_our_probe_gives_a_clock_sample():
    core = knowing("a")
    (_, probe), *_ = sent(core.connection_lost("a", 10.0), Probe)
    out = core.receive("a", Acknowledge(probe.nonce, core.member_list.digest, 99.5), 10.2)
    assert facts(out) == [ClockSample("a", 99.5, pytest.approx(0.2))]
    assert core.rtt_s["a"] == pytest.approx(0.2)
    assert (
        facts(core.receive("a", Acknowledge(probe.nonce, core.member_list.digest, 99.5), 10.3)) == []
    )  # twice: nothing


def test_an_acknowledgement_from_another_than_the_one_probed_counts_for_nothing():
    """Nonces are guessable; identities are not."""
    core = knowing("a", "b")
    (_, probe), *_ = sent(core.connection_lost("a", 0.1), Probe)
    assert facts(core.receive("b", Acknowledge(probe.nonce, core.member_list.digest, 0.0), 0.2)) == []
    assert (
        facts(core.receive("b", Acknowledge(probe.nonce, core.member_list.digest, 0.0, "a"), 0.2)) == []
    )  # not asked to help
    assert core._probes.find("a").nonce == probe.nonce


def test_silence_goes_from_probe_to_helpers_to_suspicion_to_death():
    """The whole way down: one timeout, two more for the helpers, then the time to refute."""
    core = knowing("a", "b", "c", "d")
    (_, probe), *_ = sent(core.connection_lost("a", 0.0), Probe)
    out = core.tick(TIMING.timeout_s)
    helpers = sent(out, ProbeFor)
    assert len(helpers) == TIMING.helpers
    assert all(message == ProbeFor(probe.nonce, "a") and peer != "a" for peer, message in helpers)
    assert sent(out, Probe)[0][0] == "a"  # asked once more, the first frame may be lost
    out = core.tick(3 * TIMING.timeout_s)
    assert facts(out) == [Suspected("a")]
    assert "a" in core.member_list.alive
    until = 3 * TIMING.timeout_s + TIMING.suspicion_s
    while core.deadline < until:
        assert facts(core.tick(core.deadline)) == []
    out = core.tick(core.deadline)
    assert facts(out) == [Died("a")]
    assert ("a", Spread((), (rumor("a", "me", "dead"),))) in sent(out)  # it is told, to refute if it lives


def test_who_slept_itself_buries_nobody_before_it_has_read_its_mail():
    """A laptop that wakes up must not find everybody dead."""
    core = knowing("a", "b")
    core.member_list.suspect("a", 0.0)
    core._suspects_at = 0.25
    out = core.tick(3600.0)
    assert [peer for peer, _ in sent(out, Probe)] == ["a"]
    assert "a" in core.member_list.alive
    assert facts(core.tick(3600.25)) == [Died("a")]


def test_a_helper_that_reaches_the_member_ends_the_probe():
    core = knowing("a", "b")
    (_, probe), *_ = sent(core.connection_lost("a", 0.0), Probe)
    core.tick(TIMING.timeout_s)
    core.receive("b", Acknowledge(probe.nonce, core.member_list.digest, 0.0, "a"), 0.6)
    assert facts(core.tick(5.0)) == []


def test_an_indirect_probe_is_relayed_both_ways():
    core = knowing("a", "b")
    ((peer, probe),) = sent(core.receive("a", ProbeFor(42, "b"), 1.0), Probe)
    assert peer == "b"
    out = core.receive("b", Acknowledge(probe.nonce, core.member_list.digest, 1.1), 1.2)
    assert ("a", Acknowledge(42, core.member_list.digest, 1.2, "b")) in sent(out)


def test_indirect_probes_are_only_for_members_and_bounded():
    """A stranger cannot make us dial around, nor a member without end."""
    core = knowing("a", "b")
    assert sent(core.receive("stranger", ProbeFor(1, "b"), 1.0)) == []
    assert sent(core.receive("a", ProbeFor(1, "unknown"), 1.0)) == []
    probes = sum(len(sent(core.receive("a", ProbeFor(i, "b"), 1.0), Probe)) for i in range(200))
    assert 0 < probes <= 64


def test_a_broken_connection_is_inquired_at_once_and_a_failed_dial_goes_on_to_the_helpers():
    """The network's word starts an inquiry; it is no verdict."""
    core = knowing("a", "b", "c")
    assert [peer for peer, _ in sent(core.connection_lost("a", 1.0), Probe)] == ["a"]
    assert len(sent(core.connection_lost("a", 1.1), ProbeFor)) == 2
    assert (
        core.connection_lost("a", 1.2) == core.connection_lost("unknown", 1.2) == core.connection_lost("me", 1.2) == []
    )
    assert core.member_list.members["a"].status == "alive"


@pytest.mark.parametrize("state", ["suspect", "dead"])
def test_a_rumor_of_death_is_only_a_suspicion(state):
    """One liar must not kill a live member: its word starts our own probes, and the answer clears it."""
    core = knowing("a", "liar")
    out = core.receive("liar", Spread((), (rumor("a", "liar", state),)), 1.0)
    assert facts(out) == [Suspected("a")]
    ((_, probe),) = sent(out, Probe)
    assert rumor("a", "me") in probe.rumors  # the accused hears of it
    assert facts(core.receive("a", Acknowledge(probe.nonce, core.member_list.digest, 1.0), 1.1))[0] == Changed("a")
    assert core.member_list.members["a"].status == "alive"


def test_a_rumor_about_whom_we_just_heard_is_not_believed():
    """Bounds what a liar's frames make us do to one probe per member and timeout."""
    core = knowing("a", "liar")
    core.receive("a", Probe(1, core.member_list.digest, 0.0), 1.0)
    assert facts(core.receive("liar", Spread((), (rumor("a", "liar"),)), 1.1)) == []
    assert facts(core.receive("liar", Spread((), (rumor("a", "liar"),)), 1.0 + TIMING.timeout_s)) == [Suspected("a")]


@pytest.mark.parametrize("version", [1, 2**62])
def test_a_rumor_about_a_version_nobody_holds_is_ignored(version):
    """Else a liar could run a member's counter to its end."""
    core = knowing("a", "liar")
    out = core.receive(
        "liar", Spread((), (rumor("a", "liar", version=version), rumor("me", "liar", version=version))), 1.0
    )
    assert out == []
    assert core.own.version == 0


def test_an_outdated_rumor_is_answered_with_the_newer_record():
    core = knowing("a", "b")
    core.receive("a", Spread((record("a", 1, 3),)), 1.0)
    out = core.receive("b", Spread((), (rumor("a", "b"),)), 9.0)
    assert ("b", Spread((record("a", 1, 3),))) in sent(out)


def test_a_rumor_in_anothers_name_is_a_fault():
    """Everyone speaks for himself, so one liar is one voice."""
    with pytest.raises(RemoteProtocolError, match="liar: rumor_of_another"):
        knowing("a", "liar").receive("liar", Spread((), (rumor("a", "b"),)), 1.0)


def test_a_strangers_rumor_is_not_heard():
    assert facts(knowing("a").receive("stranger", Spread((), (rumor("a", "stranger"),)), 1.0)) == []


def test_the_accused_refutes_by_a_newer_record_to_all_and_to_the_accuser():
    core = knowing("a", "b")
    out = core.receive("a", Probe(1, core.member_list.digest, 0.0, (rumor("me", "a"),)), 1.0)
    assert core.own == record("me", 1, 1)
    assert {peer for peer, spread in sent(out, Spread) if core.own in spread.records} == {"a", "b"}


def test_who_believes_us_dead_gets_the_refutation_though_it_is_dead_to_us():
    """How the halves of a healed partition meet."""
    core = knowing("a", "b")
    core.member_list.suspect("a", 1.0)
    core.member_list.mark_dead("a", 3.0)
    out = core.receive("a", Spread((), (rumor("me", "a", "dead"),)), 9.0)
    assert ("a", Spread((), (rumor("a", "me", "dead"),))) in sent(out)
    assert ("a", Spread((record("me", 1, 1),))) in sent(out)


def test_refutations_are_a_timeout_apart():
    """A liar's frames do not become a flood of ours; the second accusation is refuted too, a little later."""
    core = knowing("a", "liar")
    core.receive("liar", Spread((), (rumor("me", "liar"),)), 1.0)
    core.receive("liar", Spread((), (rumor("me", "liar", version=1),)), 1.1)
    assert core.own.version == 1
    assert core.deadline <= 1.0 + TIMING.timeout_s
    core.tick(1.0 + TIMING.timeout_s)
    assert core.own.version == 2


def test_who_lists_a_member_dead_to_us_hears_our_doubt():
    core = knowing("a", "b")
    core.member_list.suspect("a", 1.0)
    core.member_list.mark_dead("a", 3.0)
    out = core.receive("b", Sync((record("a"), record("b")), reply=False), 9.0)
    assert ("b", Spread((), (rumor("a", "me", "dead"),))) in sent(out)


def test_another_digest_in_a_probe_starts_a_sync_once_a_timeout():
    core = knowing("a", "b")
    assert len(sent(core.receive("a", Probe(1, b"other-digest", 0.0), 1.0), Sync)) == 1
    assert sent(core.receive("b", Probe(1, b"other-digest", 0.0), 1.1), Sync) == []
    assert len(sent(core.receive("b", Probe(1, b"other-digest", 0.0), 1.6), Sync)) == 1


def test_a_stranger_that_probes_us_is_greeted():
    """It knows us and we do not know it: its Sync will tell."""
    core = knowing("a")
    ((peer, hello),) = sent(core.receive("stranger", Probe(1, b"other-digest", 0.0), 1.0), Hello)
    assert peer == "stranger"
    assert hello.record == core.own


def test_a_sync_is_answered_with_what_it_lacks():
    core = knowing("a", "b")
    ((_, answer),) = sent(core.receive("a", Sync((record("a"), record("b")), reply=True), 1.0), Sync)
    assert answer == Sync((record("me"),), reply=False)
    assert sent(core.receive("a", Sync((record("a"), record("b"), record("me")), reply=True), 1.0), Sync) == []


def test_a_large_sync_is_cut_into_frames_within_the_lanes_limit():
    """Largest possible records: longest names, eight longest addresses, the longest credential."""
    addresses = tuple("x" * 256 for _ in range(8))
    largest = Record("p" * 128, "s" * 64, 2**62, 2**62, "alive", addresses, b"s" * 64, bytes(MAX_CREDENTIAL_BYTES))
    frames = detector("me")._sync("a", [largest] * (2 * MAX_FRAME_RECORDS + 1), reply=True)
    assert [frame.message.reply for frame in frames] == [False, False, True]
    assert max(len(encode(frame.message)) for frame in frames) <= MAX_FRAME_BYTES["control"]


def test_a_record_of_ours_from_the_future_is_outranked():
    """Our clock ran ahead in an earlier life: without this we would be dead to everybody until it is reached again."""
    core = knowing("a")
    core.receive("a", Spread((record("me", 50, 3, "left"),)), 1.0)
    assert core.own == record("me", 51, 0)
    core.receive("a", Spread((record("me", 51, 3, "left"),)), 1.0)
    assert core.own == record("me", 51, 4)


def test_a_restarted_member_is_reborn():
    core = knowing("a", "b")
    assert facts(core.receive("a", Hello(record("a", 2), core.member_list.digest, 0.0), 1.0)) == [Reborn("a")]


def test_leaving_says_farewell_to_all_and_then_nothing():
    core = knowing("a", "b")
    out = core.leave(1.0)
    assert sent(out) == [(peer, Farewell(record("me", 1, 1, "left"))) for peer in ("a", "b")]
    assert core.deadline == inf
    assert core.leave(2.0) == core.tick(9.0) == core.greet("a", 9.0) == core.update_addresses(("/n",), 9.0) == []
    assert core.receive("a", Probe(1, b"other-digest", 0.0), 2.0) == core.connection_lost("a", 2.0) == []


def test_new_addresses_are_told_to_all():
    core = knowing("a")
    out = core.update_addresses(("/new",), 1.0)
    assert sent(out) == [("a", Spread((record("me", 1, 1, addresses=("/new",)),)))]
    assert core.update_addresses(("/new",), 2.0) == []


def test_alone_nothing_is_sent():
    core = detector("me")
    assert [core.tick(float(t)) for t in range(100)] == [[]] * 100


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Hello(record("b"), b"a-digest", 0.0), "record_of_another"),
        (Hello(msgspec.structs.replace(record("a"), swarm="other"), b"a-digest", 0.0), "foreign_swarm"),
        (Hello(msgspec.structs.replace(record("a", 2), signature=b""), b"a-digest", 0.0), "record_forged"),
        (Farewell(record("b", 2, status="left")), "record_of_another"),
        (Spread((msgspec.structs.replace(record("b", 9), signature=b"x"),)), "record_forged"),
        (Spread((msgspec.structs.replace(record("me", 9), signature=b"x"),)), "record_forged"),
        (Sync((record("new"), msgspec.structs.replace(record("c"), swarm="other")), False), "record_forged"),
        (Spread((record("new"),), (rumor("b", "c"),)), "rumor_of_another"),
    ],
)
def test_bad_messages_are_the_senders_fault_and_have_no_effect(message, reason):
    """Not even their good half: facts that were never told could not be caught up on."""
    core = knowing("a", "b")
    before = core.member_list.alive
    with pytest.raises(RemoteProtocolError, match=f"a: {reason}"):
        core.receive("a", message, 1.0)
    assert core.member_list.alive == before


def golden_messages():
    r, d = (
        record("12D3KooWpeer", 1_700_000_000_000, 3, addresses=("/ip4/10.0.0.1/tcp/4001/p2p/12D3KooWpeer",)),
        bytes(16),
    )
    doubt = Rumor("12D3KooWother", 1_700_000_000_001, 2, "suspect", "12D3KooWpeer")
    return {
        "hello": Hello(r, d, 12.5),
        "probe": Probe(1, d, 12.5, (doubt,)),
        "probe_short": Probe(1, d, 12.5),
        "acknowledge": Acknowledge(1, d, 12.5, "12D3KooWother", (doubt,)),
        "acknowledge_short": Acknowledge(1, d, 12.5),
        "probe_for": ProbeFor(2**62, "12D3KooWother"),
        "spread": Spread((r,), (doubt,)),
        "sync": Sync((r,), True),
        "farewell": Farewell(msgspec.structs.replace(r, status="left")),
        "hello_credential": Hello(msgspec.structs.replace(r, credential=b"credential"), d, 12.5),
        "revoked": Revoked((Revocation(b"chain", "12D3KooWpeer", b"signature"),), d, True),
        "revoked_short": Revoked((), d),
        "told": Told((Claim("12D3KooWpeer", 1_700_000_000_000, 7, bytes(32), bytes(64)),)),
        "evidence": Evidence("equivocation", "12D3KooWpeer", b"one", b"other"),
        "beacon": Beacon(7, bytes(range(64))),
        "beacon_query": BeaconQuery(7),
    }


def test_the_wire_format_of_every_control_message_is_what_it_was():
    """Tags and field order never change: old peers must read new frames."""
    golden = json.loads(GOLDEN.read_text())
    assert {name: encode(message).hex() for name, message in golden_messages().items()} == golden
    for name, frame in golden.items():
        assert decode("control", "a", bytes.fromhex(frame)) == golden_messages()[name]


def test_defaults_may_be_missing_on_the_wire():
    """Fields with a default were appended, or will be: an older peer does not send them."""
    frame = bytes.fromhex("94a370726201c408000000000000000000")
    assert decode("control", "a", frame) == Probe(1, bytes(8), 0)
    plain = encode(Farewell(record("a", status="left")))
    assert plain[5] == 0x98, "a record of eight fields, the last of them the credential"
    older = plain[:5] + bytes([0x97]) + plain[6:].removesuffix(b"\xc4\x00")
    assert decode("control", "a", older) == Farewell(record("a", status="left"))
