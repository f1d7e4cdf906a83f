"""Members join when they are met: what a record proves, and what it does not."""

from math import inf

from starling.gossip.membership.events import Announced, Died, Joined, Reborn, Send, Suspected
from starling.gossip.membership.spreading import MEETERS
from starling.gossip.wire import schema as wire
from tests.harness.detectors import TIMING, DetectorSwarm, detector, names, quiet, record, sent


def facts(outputs):
    return [output for output in outputs if not isinstance(output, Send)]


def all_until(core, until):
    """Run the timers until then, while frames of `a` arrive; return the commands."""
    out = []
    while core.deadline <= until:
        core.frame_seen("a", core.deadline)
        out += core.tick(core.deadline)
    return out


def newcomer():
    """A detector that has met `a`, with no other members."""
    core = detector("me")
    core.receive("a", wire.Hello(record("a"), b"", 0.0), 0.0)
    quiet(core)
    core.spreading.quiet_until = -inf
    return core


def test_a_record_of_a_former_member_is_probed_and_not_forwarded():
    core = newcomer()
    out = core.receive("a", wire.Spread((record("gone"),)), 1.0)
    assert facts(out) == [Announced("gone")]
    assert [peer for peer, _ in sent(out, wire.Probe)] == ["gone"]
    assert facts(core.receive("a", wire.Spread((record("gone", 2),)), 1.1)) == [Announced("gone")], "a later life of it"
    assert facts(all_until(core, 1.1 + 3 * TIMING.timeout_s + 2 * TIMING.suspicion_s)) == []
    assert core.member_list.members["gone"].status == "dead"


def test_peers_that_answer_directly_or_through_a_helper_join():
    core = newcomer()
    core.receive("b", wire.Hello(record("b"), b"", 0.0), 0.5)
    ((_, probe),) = sent(core.receive("a", wire.Spread((record("c"),)), 1.0), wire.Probe)
    assert facts(core.receive("c", wire.Acknowledge(probe.nonce, b"", 1.0), 1.1))[0] == Joined("c")
    ((_, probe),) = sent(core.receive("a", wire.Spread((record("far"),)), 2.0), wire.Probe)
    helper = sent(all_until(core, 2.6), wire.ProbeFor)[0][0]
    assert facts(core.receive(helper, wire.Acknowledge(probe.nonce, b"", 1.0, "far"), 2.6)) == [Joined("far")]
    assert Suspected("far") in facts(core.connection_lost("far", 3.0) + all_until(core, 6.0))


def test_a_dead_peer_is_alive_again_only_by_its_own_message():
    core = newcomer()
    core.receive("d", wire.Hello(record("d"), b"", 0.0), 0.5)
    core.connection_lost("d", 1.0)
    assert Died("d") in facts(all_until(core, 20.0))
    kept = record("d", version=7)  # recorded by `a` and by no other node
    assert facts(core.receive("a", wire.Spread((kept,)), 21.0)) == [Announced("d")]
    assert sent(core.tick(21.0), wire.Spread) == [], "nor is it told to others"
    assert facts(all_until(core, 40.0)) == []
    out = core.receive("d", wire.Hello(record("d", 2), b"", 0.0), 41.0)
    assert facts(out) == [Reborn("d"), Joined("d")]


def test_a_large_swarm_counts_members_before_all_have_met():
    """Its members probe a newcomer in their cycles, not all at once."""
    core = newcomer()
    out = core.receive("a", wire.Sync(tuple(record(peer) for peer in names(MEETERS + 10))), 1.0)
    assert {Announced, Joined} == {type(event) for event in facts(out)}
    assert facts(core.receive("a", wire.Spread((record("x"),)), 2.0)) == [Joined("x")]


def test_simultaneous_joiners_know_all_within_a_round_trip():
    swarm = DetectorSwarm(12, delay_s=0.02)
    swarm.run(0.5, swarm.agreed)
    met = swarm.run(swarm.now + 0.1)
    told = [peer for node in swarm.nodes.values() for peer in node.view.introductions.hearsay]
    assert not told, f"at {met} s some know others from hearsay"
