"""The failure detector of one node: (state, message) -> (state, messages)."""

from math import inf

import msgspec
import pytest

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.membership.anti_entropy import AT_ONCE as AT_ONCE_TOLD
from starling.gossip.membership.anti_entropy import PER_S
from starling.gossip.membership.events import Announced, Changed, ClockSample, Died, Joined, Reborn, Send, Suspected
from starling.gossip.membership.local_health import MOST
from starling.gossip.membership.pacing import AT_ONCE
from starling.gossip.membership.suspects import PROBED_AGAIN
from starling.gossip.membership.suspicion import LONE
from starling.gossip.membership.table import Table, entry_of, key_of
from starling.gossip.overlay.ranks import digest
from starling.gossip.wire import schema as wire
from starling.gossip.wire.frames import decode, encode
from tests.harness.detectors import TIMING, detector, quiet, record, sent


def knowing(*others, now=0.0, met=()):
    """Return a detector named `me` that knows these peers, has met some of them, and starts nothing by the clock."""
    core = detector("me", now)
    core.receive("a", wire.Sync(tuple(record(peer) for peer in others)), now)
    core.last_frame.clear()
    core.last_frame.update(dict.fromkeys(met, -inf))
    for peer in others:
        core.view.introductions.meet(peer)
    quiet(core)
    return core


def facts(outputs):
    return [o for o in outputs if not isinstance(o, Send)]


def rumor(peer, source, state="suspect", version=0):
    return wire.Rumor(peer, 1, version, state, source)


def test_a_newcomers_hello_is_answered_with_known_records_and_forwarded():
    core = knowing("a", "b", "told", met=["a", "b"])
    out = core.receive("c", wire.Hello(record("c"), digest(["c"]), 0.0), 1.0)
    assert facts(out) == [Joined("c")]
    ((peer, sync),) = sent(out, wire.Sync)
    assert peer == "c"
    assert sorted(r.peer for r in sync.records) == ["a", "b", "c", "me"]
    assert {peer for peer, spread in sent(out, wire.Spread) if spread.records == (record("c"),)} == {"a", "b", "c", "told"}


def test_a_hello_from_a_peer_with_a_table_starts_a_comparison():
    core = knowing("a", "b", met=["a", "b"])
    out = core.receive("c", wire.Hello(record("c"), b"other-digest", 0.0), 1.0)
    assert sent(out, wire.Compare) == [("c", core.member_list.table.first_message(differs=True))]
    assert sent(out, wire.Sync) == []
    assert sent(core.receive("a", wire.Hello(record("a"), core.member_list.digest, 0.0), 1.0), wire.Compare) == []


def told(core, peer, now):
    """Return the peers whose records are sent to a peer that shows an empty table."""
    out = core.receive(peer, wire.Compare(leaves=(wire.Leaf("", b""),)), now)
    return sorted(record.peer for _, sync in sent(out, wire.Sync) for record in sync.records)


def spread(outputs):
    """Return the peers whose records are forwarded, in order."""
    return list(dict.fromkeys(it.peer for _, message in sent(outputs, wire.Spread) for it in message.records))


def test_reported_peers_are_not_forwarded_before_they_are_met():
    core, other = knowing("a", "b", met=["a", "b"]), b"other-digest"
    out = core.receive("a", wire.Spread((record("told"),)), 1.0)
    assert facts(out) == [Announced("told")]
    assert (spread(out), [peer for peer, _ in sent(out, wire.Probe)]) == ([], ["told"])
    assert told(core, "b", 1.1) == ["a", "b", "me"]
    assert sent(core.receive("b", wire.Want((key_of("told"),)), 1.1), wire.Sync) == []
    assert spread(core.receive("a", wire.Spread((record("told", version=1),)), 1.2)) == []
    out = core.receive("told", wire.Acknowledge(0, other, 0.0), 1.3)
    assert Joined("told") in facts(out)
    assert spread(out) == ["told"]
    assert told(core, "b", 1.6) == ["a", "b", "me", "told"]
    assert sent(core.receive("b", wire.Want((key_of("told"),)), 1.6), wire.Sync) == [("b", wire.Sync((record("told", version=1),)))]
    assert spread(core.receive("a", wire.Spread((record("told", version=2),)), 2.0)) == ["told"]


def test_a_newcomer_to_a_large_swarm_is_probed_at_once_by_some():
    swarm = [f"n{each:04}" for each in range(640)]
    probing = 0
    for each in range(100):
        core = detector("me", seed=each)
        core.receive("a", wire.Sync(tuple(record(peer) for peer in swarm)), 0.0)
        out = core.receive("a", wire.Spread((record("newcomer"),)), 0.01)
        probing += "newcomer" in [peer for peer, _ in sent(out, wire.Probe)]
    assert 2 <= probing <= 25, "a tenth of them"


def test_a_newcomer_does_not_forward_records_that_are_new_to_itself_only():
    core = detector("me")
    out = core.receive("a", wire.Sync((record("a"), record("b"), record("c"))), 0.1)
    assert sent(out, wire.Spread) == []
    assert {peer for peer, _ in sent(out, wire.Probe)} == {"a", "b", "c"}


def test_a_probe_is_acknowledged_with_its_nonce():
    core = knowing("a", "b")
    out = core.receive("a", wire.Probe(7, core.member_list.digest, 5.0), 1.0)
    assert out == [Send("a", wire.Acknowledge(7, core.member_list.digest, 1.0))]


def test_an_acknowledged_probe_gives_a_clock_sample():
    core = knowing("a")
    (_, probe), *_ = sent(core.connection_lost("a", 10.0), wire.Probe)
    out = core.receive("a", wire.Acknowledge(probe.nonce, core.member_list.digest, 99.5), 10.2)
    assert facts(out) == [ClockSample("a", 99.5, pytest.approx(0.2))]
    assert core.rtt_s["a"] == pytest.approx(0.2)
    assert facts(core.receive("a", wire.Acknowledge(probe.nonce, core.member_list.digest, 99.5), 10.3)) == []  # twice: nothing


@pytest.mark.parametrize("answered_s", [1.2, 1.7])
def test_a_late_answer_shows_how_long_it_took_and_is_no_clock_sample(answered_s):
    """After helpers were asked, or the probe was abandoned; otherwise long round trips on a congested line would go unnoticed."""
    core = knowing("a", "b", "c", met=["a"])
    (_, probe), *_ = sent(core.connection_lost("a", 0.0), wire.Probe)
    for tick_s in (0.5, 1.5):
        if tick_s < answered_s:
            core.tick(tick_s)
    out = core.receive("a", wire.Acknowledge(probe.nonce, core.member_list.digest, 0.0), answered_s)
    assert not any(isinstance(it, ClockSample) for it in out)
    assert core.rtt_s["a"] == answered_s


def test_an_acknowledgement_from_another_peer_does_not_count():
    core = knowing("a", "b")
    (_, probe), *_ = sent(core.connection_lost("a", 0.1), wire.Probe)
    assert facts(core.receive("b", wire.Acknowledge(probe.nonce, core.member_list.digest, 0.0), 0.2)) == []
    assert facts(core.receive("b", wire.Acknowledge(probe.nonce, core.member_list.digest, 0.0, "a"), 0.2)) == []  # it is not asked to help
    assert core.prober.probes.find("a").nonce == probe.nonce


def test_silence_goes_from_probe_to_helpers_to_suspicion_to_death():
    core = knowing("a", "b", "c", "d", met=["a"])
    (_, probe), *_ = sent(core.connection_lost("a", 0.0), wire.Probe)
    out = core.tick(TIMING.timeout_s)
    helpers = sent(out, wire.ProbeFor)
    assert len(helpers) == TIMING.helpers
    assert all(message == wire.ProbeFor(probe.nonce, "a") and peer != "a" for peer, message in helpers)
    assert sent(out, wire.Probe)[0][0] == "a"  # asked again, since the first frame may be lost
    core.frame_seen("b", TIMING.timeout_s)  # other peers answer
    out = core.tick(3 * TIMING.timeout_s)
    assert facts(out) == [Suspected("a")]
    assert "a" in core.member_list.alive
    until = 3 * TIMING.timeout_s + LONE * TIMING.suspicion_s
    while core.deadline < until:
        assert facts(core.tick(core.deadline)) == []
    out = core.tick(core.deadline)
    assert facts(out) == [Died("a")]
    assert ("a", wire.Spread((), (rumor("a", "me", "dead"),))) in sent(out)  # the accusation is sent to it, to refute


def test_a_suspended_node_declares_no_member_dead_before_it_has_read_its_messages():
    core = knowing("a", "b")
    core.member_list.suspect("a", 0.0)
    core.prober.suspects.judge_at = 0.25
    out = core.tick(3600.0)
    assert [peer for peer, _ in sent(out, wire.Probe)] == ["a"]
    assert "a" in core.member_list.alive
    while core.deadline < 3600.0 + MOST * TIMING.timeout_s:
        assert facts(core.tick(core.deadline)) == []
    assert facts(core.tick(core.deadline)) == [Died("a")]


def test_a_helper_that_reaches_the_member_ends_the_probe():
    core = knowing("a", "b")
    (_, probe), *_ = sent(core.connection_lost("a", 0.0), wire.Probe)
    core.tick(TIMING.timeout_s)
    core.receive("b", wire.Acknowledge(probe.nonce, core.member_list.digest, 0.0, "a"), 0.6)
    assert facts(core.tick(5.0)) == []


def test_an_indirect_probe_is_relayed_both_ways():
    core = knowing("a", "b")
    ((peer, probe),) = sent(core.receive("a", wire.ProbeFor(42, "b"), 1.0), wire.Probe)
    assert peer == "b"
    out = core.receive("b", wire.Acknowledge(probe.nonce, core.member_list.digest, 1.1), 1.2)
    assert ("a", wire.Acknowledge(42, core.member_list.digest, 1.2, "b")) in sent(out)


def test_indirect_probes_are_only_for_members_and_bounded():
    core = knowing("a", "b")
    assert sent(core.receive("stranger", wire.ProbeFor(1, "b"), 1.0)) == []
    assert sent(core.receive("a", wire.ProbeFor(1, "unknown"), 1.0)) == []
    probes = sum(len(sent(core.receive("a", wire.ProbeFor(i, "b"), 1.0), wire.Probe)) for i in range(200))
    assert probes == 16
    assert sent(core.receive("b", wire.ProbeFor(1, "a"), 1.0), wire.Probe), "who asks much keeps nobody else from it"


def test_a_broken_connection_starts_a_probe_and_a_failed_dial_asks_helpers():
    core = knowing("a", "b", "c")
    assert [peer for peer, _ in sent(core.connection_lost("a", 1.0), wire.Probe)] == ["a"]
    assert len(sent(core.connection_lost("a", 1.1), wire.ProbeFor)) == 2
    assert core.connection_lost("a", 1.2) == core.connection_lost("unknown", 1.2) == core.connection_lost("me", 1.2) == []
    assert core.member_list.members["a"].status == "alive"


@pytest.mark.parametrize("state", ["suspect", "dead"])
def test_a_rumor_of_death_is_only_a_suspicion(state):
    core = knowing("a", "byzantine")
    out = core.receive("byzantine", wire.Spread((), (rumor("a", "byzantine", state),)), 1.0)
    assert facts(out) == [Suspected("a")]
    ((_, probe),) = sent(out, wire.Probe)
    assert rumor("a", "me") in probe.rumors  # the accused receives it
    assert facts(core.receive("a", wire.Acknowledge(probe.nonce, core.member_list.digest, 1.0), 1.1))[0] == Changed("a")
    assert core.member_list.members["a"].status == "alive"


def test_many_suspects_are_probed_again_in_turn_a_few_at_a_time():
    """Each probe of who came and went is a dial, so a flood of them would have had each dialled ten times."""
    others = [f"m{number:02}" for number in range(4 * PROBED_AGAIN)]
    core = knowing(*others)
    for peer in others:
        core.prober.suspects.suspect(peer, 1.0)
    now, probed = 1.0, []
    for _ in range(8):
        again = [peer for peer, _ in sent(core.prober.suspects.judge(now, core.prober.probe), wire.Probe)]
        assert len(again) == PROBED_AGAIN
        probed += again
        now = core.prober.suspects.judge_at
    assert all(probed.count(peer) == 2 for peer in others)


def test_a_rumor_about_a_member_with_a_recent_frame_is_ignored():
    core = knowing("a", "byzantine")
    core.receive("a", wire.Probe(1, core.member_list.digest, 0.0), 1.0)
    assert facts(core.receive("byzantine", wire.Spread((), (rumor("a", "byzantine"),)), 1.1)) == []
    assert facts(core.receive("byzantine", wire.Spread((), (rumor("a", "byzantine"),)), 1.0 + TIMING.timeout_s)) == [Suspected("a")]


@pytest.mark.parametrize("version", [1, 2**62])
def test_a_rumor_about_an_unknown_version_is_ignored(version):
    core = knowing("a", "byzantine")
    out = core.receive(
        "byzantine", wire.Spread((), (rumor("a", "byzantine", version=version), rumor("me", "byzantine", version=version))), 1.0
    )
    assert out == []
    assert core.own.version == 0


def test_an_outdated_rumor_is_answered_with_the_newer_record():
    core = knowing("a", "b")
    core.receive("a", wire.Spread((record("a", 1, 3),)), 1.0)
    out = core.receive("b", wire.Spread((), (rumor("a", "b"),)), 9.0)
    assert ("b", wire.Spread((record("a", 1, 3),))) in sent(out)


def test_a_rumor_in_another_peer_s_name_is_a_fault():
    with pytest.raises(RemoteProtocolError, match="byzantine: rumor_of_another"):
        knowing("a", "byzantine").receive("byzantine", wire.Spread((), (rumor("a", "b"),)), 1.0)


def test_a_rumor_of_a_non_member_is_ignored():
    assert facts(knowing("a").receive("stranger", wire.Spread((), (rumor("a", "stranger"),)), 1.0)) == []


def test_an_accused_member_refutes_with_a_newer_record():
    core = knowing("a", "b")
    out = core.receive("a", wire.Probe(1, core.member_list.digest, 0.0, (rumor("me", "a"),)), 1.0)
    assert core.own == record("me", 1, 1)
    assert {peer for peer, spread in sent(out, wire.Spread) if core.own in spread.records} == {"a", "b"}


def test_a_refutation_goes_even_to_an_accuser_believed_dead():
    core = knowing("a", "b")
    core.member_list.suspect("a", 1.0)
    core.member_list.mark_dead("a", 3.0)
    out = core.receive("a", wire.Spread((), (rumor("me", "a", "dead"),)), 9.0)
    assert ("a", wire.Spread((), (rumor("a", "me", "dead"),))) in sent(out)
    assert ("a", wire.Spread((record("me", 1, 1),))) in sent(out)


def test_refutations_are_at_least_a_timeout_apart():
    core = knowing("a", "byzantine")
    core.receive("byzantine", wire.Spread((), (rumor("me", "byzantine"),)), 1.0)
    core.receive("byzantine", wire.Spread((), (rumor("me", "byzantine", version=1),)), 1.1)
    assert core.own.version == 1
    assert core.deadline <= 1.0 + TIMING.timeout_s
    core.tick(1.0 + TIMING.timeout_s)
    assert core.own.version == 2


def test_a_peer_that_lists_a_dead_member_gets_the_accusation():
    core = knowing("a", "b")
    core.member_list.suspect("a", 1.0)
    core.member_list.mark_dead("a", 3.0)
    out = core.receive("b", wire.Sync((record("a"), record("b"))), 9.0)
    assert ("b", wire.Spread((), (rumor("a", "me", "dead"),))) in sent(out)


def stream(core, versions, every_s, until):
    """Send newer records of `a` at this rate, then silence; return when one was stored, and when it was forwarded."""
    stored, passed_on, now, held = [], [], 0.0, core.member_list.members["a"].record
    while now < until:
        out = []
        if versions:
            out = core.receive("a", wire.Spread((versions.pop(0),)), now)
        out += core.tick(now)
        core.last_frame.clear()
        if core.member_list.members["a"].record is not held:
            held = core.member_list.members["a"].record
            stored.append(now)
        passed_on += [now] * len(sent(out, wire.Spread))
        now += every_s
    return stored, passed_on


@pytest.mark.parametrize(
    "versions",
    [
        [record("a", version=version) for version in range(1, 1001)],
        [record("a", life, version=0) for life in range(2, 1002)],
        [record("a", life, version, ("alive", "left")[version]) for life in range(2, 502) for version in (0, 1)],
    ],
    ids=["versions", "lives", "comings_and_goings"],
)
def test_a_stream_of_records_is_rate_limited_and_ends_with_the_newest(versions):
    core, newest = knowing("a", "b", "c"), versions[-1]
    stored, passed_on = stream(core, versions, 0.01, 12.0)
    assert AT_ONCE < len(stored) <= AT_ONCE + 10 / (TIMING.suspicion_s / 2)
    assert len(passed_on) <= 3 * len(stored)
    assert core.member_list.members["a"].record == newest
    assert core.deadline > 12.0, "nothing waits any more"


def test_a_queued_refutation_is_sent_in_time():
    core = knowing("a", "b")
    for version in range(1, 2 * AT_ONCE):
        core.receive("b", wire.Spread((record("a", version=version),)), 1.0)
    current = core.member_list.members["a"].record.version
    core.receive("b", wire.Spread((), (rumor("a", "b", version=current),)), 1.0)
    assert core.member_list.members["a"].status == "suspect"
    core.receive("b", wire.Spread((record("a", version=100),)), 1.0)
    while core.deadline <= 1.0 + TIMING.suspicion_s + TIMING.timeout_s:
        core.tick(core.deadline)
    member = core.member_list.members["a"]
    assert (member.present, member.record.version) == (True, 100)


def test_another_digest_in_a_probe_starts_a_comparison_once_a_timeout():
    core, other = knowing("a", "b"), b"other-digest"
    assert [peer for peer, _ in sent(core.receive("a", wire.Probe(1, other, 0.0), 1.0), wire.Compare)] == ["a"]
    assert sent(core.receive("b", wire.Probe(1, other, 0.0), 1.1), wire.Compare) == []
    assert core.deadline == 1.0 + TIMING.timeout_s
    assert [peer for peer, _ in sent(core.tick(core.deadline), wire.Compare)] == ["b"]
    core.receive("a", wire.Probe(1, other, 0.0), 1.6)
    core.receive("a", wire.Probe(1, core.member_list.digest, 0.0), 1.7)
    assert sent(core.tick(2.0), wire.Compare) == [], "it knows what we know by now"


def test_a_peer_with_ever_new_digests_delays_no_other_peer():
    core, answered = knowing("liar", "a", "b"), []
    for step in range(60):
        now = 1.0 + step * TIMING.timeout_s / 10
        asking = ["liar", *(["a"] if step % 10 == 5 else []), *(["b"] if step % 10 == 7 else [])]
        for peer in asking:
            out = core.receive(peer, wire.Probe(1, b"other-digest", 0.0), now)
            answered += [to for to, _ in sent(out, wire.Compare)]
    assert answered == ["liar", "a", "b", "liar", "a", "b"]


def test_strangers_take_no_turns_of_members():
    core = knowing("a")
    for stranger in ("s", "t"):
        assert sent(core.receive(stranger, wire.Probe(1, b"other-digest", 0.0), 1.0), wire.Compare) == []
    assert [peer for peer, _ in sent(core.receive("a", wire.Probe(1, b"other-digest", 0.0), 1.0), wire.Compare)] == ["a"]


def test_a_probing_stranger_gets_a_hello():
    core = knowing("a")
    ((peer, hello),) = sent(core.receive("stranger", wire.Probe(1, b"other-digest", 0.0), 1.0), wire.Hello)
    assert peer == "stranger"
    assert hello.record == core.own


def test_a_table_is_answered_with_missing_records_and_a_request_for_ours():
    core = knowing("a", "b", met=["a", "b"])
    theirs = Table((entry_of(it), it.peer) for it in [record("a"), record("b", version=1), record("c")])
    out = core.receive("a", theirs.first_message(differs=True), 1.0)
    assert {it for _, sync in sent(out, wire.Sync) for it in sync.records} == {record("me"), record("b")}
    assert sent(out, wire.Want) == [("a", wire.Want((key_of("c"),)))]
    assert sent(out, wire.Compare) == []


def test_an_older_record_is_answered_with_the_newer_one_also_of_a_member_that_left():
    core = knowing("a", "b", "c", met=["a", "b", "c"])
    core.receive("b", wire.Spread((record("b", version=2),)), 1.0)
    core.receive("c", wire.Farewell(record("c", version=1, status="left")), 1.0)
    out = core.receive("a", wire.Sync((record("a"), record("b"), record("c"))), 1.0)
    assert {it for _, sync in sent(out, wire.Sync) for it in sync.records} == {
        record("b", version=2),
        record("c", version=1, status="left"),
    }
    assert "c" not in core.member_list.alive


def test_records_are_sent_in_frames_within_the_lanes_limit():
    addresses = tuple("x" * 256 for _ in range(8))
    largest = wire.Record("p" * 128, "s" * 64, 2**62, 2**62, "alive", addresses, b"s" * 64, bytes(wire.MAX_CREDENTIAL_BYTES))
    core = knowing("a", met=["a", largest.peer])
    frames = core.spreading.anti_entropy.tell("a", [largest] * (2 * wire.MAX_RECORDS + 1), 1.0)
    assert [len(frame.message.records) for frame in frames] == [wire.MAX_RECORDS, wire.MAX_RECORDS, 1]
    assert max(len(encode(frame.message)) for frame in frames) <= wire.MAX_FRAME_BYTES["control"]
    assert [decode("control", "a", encode(frame.message)) for frame in frames] == [frame.message for frame in frames]


def greedy(peer):
    """Return frames with which a peer may hope to get many records."""
    nothing, keys = wire.Leaf("", b""), tuple(key_of(f"n{each:04}") for each in range(wire.MAX_KEYS))
    digits = "0123456789abcdef"
    branches = tuple(wire.Branch(one + other, bytes(16)) for one in digits for other in digits)[: wire.MAX_BRANCHES]
    return [
        wire.Hello(record(peer), digest([peer]), 0.0),
        wire.Compare(leaves=(nothing,) * wire.MAX_LEAVES),
        wire.Want(keys),
        wire.Compare(branches),
        wire.Compare((wire.Branch("", bytes(16)),)),
        wire.Sync(tuple(record(it) for it in ("n0001", "n0002"))),
    ]


@pytest.mark.parametrize("strangers", [False, True], ids=["a_member", "strangers"])
def test_bytes_per_second_sent_on_a_peer_s_request_are_bounded(strangers):
    others = [f"n{each:04}" for each in range(1500)]
    core = knowing(*others, met=others)
    core.member_list.max_members = 1501  # strangers stay strangers
    for peer in ("n0001", "n0002"):
        core.receive(peer, wire.Spread((record(peer, version=1),)), 0.0)
    octets = 0
    for step in range(1000):
        peer = f"s{step:04}" if strangers else "n0000"
        for message in greedy(peer):
            out = core.receive(peer, message, 1.0 + step / 100)
            octets += sum(len(encode(it)) for to, it in sent(out) if to == peer and isinstance(it, wire.Compare | wire.Want | wire.Sync))
    size, seconds = len(encode(wire.Sync((record("n0000"),)))), 10.0
    assert octets < 1.5 * max(size, 256) * (AT_ONCE_TOLD + PER_S * seconds)
    assert told(core, "n0700", 11.0), "who is modest gets what it lacks"


@pytest.mark.parametrize(
    "leaf",
    [wire.Leaf("", b"seven b"), wire.Leaf("", bytes(24)), wire.Leaf("1", bytes(16)), wire.Leaf("", b"b" * 16 + b"a" * 16)],
    ids=["no_entry", "half_an_entry", "elsewhere", "unsorted"],
)
def test_a_malformed_table_is_the_senders_fault(leaf):
    with pytest.raises(RemoteProtocolError, match="a: comparison_malformed"):
        knowing("a").receive("a", wire.Compare(leaves=(leaf,)), 1.0)


def test_the_nodes_own_record_from_the_future_is_outranked():
    core = knowing("a")
    core.receive("a", wire.Spread((record("me", 50, 3, "left"),)), 1.0)
    assert core.own == record("me", 51, 0)
    core.receive("a", wire.Spread((record("me", 51, 3),)), 1.0)
    assert core.own == record("me", 51, 4)
    core.receive("a", wire.Spread((record("me", 51, 2, "left"),)), 1.0)
    assert core.own == record("me", 52, 0), "who has left comes back in a new incarnation only"


def test_a_restarted_member_is_alive_again():
    core = knowing("a", "b")
    assert facts(core.receive("a", wire.Hello(record("a", 2), core.member_list.digest, 0.0), 1.0)) == [Reborn("a")]


def test_leaving_sends_a_farewell_to_all_and_then_nothing():
    core = knowing("a", "b")
    out = core.leave(1.0)
    assert sent(out) == [(peer, wire.Farewell(record("me", 1, 1, "left"))) for peer in ("a", "b")]
    assert core.deadline == inf
    assert core.leave(2.0) == core.tick(9.0) == core.greet("a", 9.0) == core.update(9.0, addresses=("/n",)) == []
    assert core.receive("a", wire.Probe(1, b"other-digest", 0.0), 2.0) == core.connection_lost("a", 2.0) == []


def test_new_addresses_are_spread():
    core = knowing("a")
    out = core.update(1.0, addresses=("/new",))
    assert sent(out) == [("a", wire.Spread((record("me", 1, 1, addresses=("/new",)),)))]
    assert core.update(2.0, addresses=("/new",)) == []


def test_a_lone_node_sends_nothing():
    core = detector("me")
    assert [core.tick(float(t)) for t in range(100)] == [[]] * 100


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (wire.Hello(record("b"), b"a-digest", 0.0), "record_of_another"),
        (wire.Hello(msgspec.structs.replace(record("a"), swarm="other"), b"a-digest", 0.0), "foreign_swarm"),
        (wire.Hello(msgspec.structs.replace(record("a", 2), signature=b""), b"a-digest", 0.0), "record_forged"),
        (wire.Farewell(record("b", 2, status="left")), "record_of_another"),
        (wire.Spread((msgspec.structs.replace(record("b", 9), signature=b"x"),)), "record_forged"),
        (wire.Spread((msgspec.structs.replace(record("me", 9), signature=b"x"),)), "record_forged"),
        (wire.Sync((record("new"), msgspec.structs.replace(record("c"), swarm="other"))), "record_forged"),
        (wire.Spread((record("new"),), (rumor("b", "c"),)), "rumor_of_another"),
    ],
)
def test_bad_messages_are_the_senders_fault_and_have_no_effect(message, reason):
    core = knowing("a", "b")
    before = core.member_list.alive
    with pytest.raises(RemoteProtocolError, match=f"a: {reason}"):
        core.receive("a", message, 1.0)
    assert core.member_list.alive == before


@pytest.mark.parametrize("late", [False, True])
def test_a_peer_met_long_after_its_report_is_not_forwarded(late):
    """In a large swarm each member is met once per cycle of probes, hours after comparisons have spread its record."""
    core = knowing("a", "b", "c")
    core.tick(1.0)
    core.receive("a", wire.Spread((record("newcomer"),)), 1.0)
    met = 1.0 + (2 * TIMING.sync_s if late else 0.1)
    while core.deadline < met:
        core.tick(core.deadline)
    out = core.frame_seen("newcomer", met) + core.tick(met)
    told = [peer for peer, message in sent(out, wire.Spread) if any(it.peer == "newcomer" for it in message.records)]
    assert bool(told) is not late
