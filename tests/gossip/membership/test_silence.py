"""Peers about to be waited for are probed: those that do not answer count as silent."""

from starling.gossip.wire import schema as wire
from tests.harness.detectors import TIMING, knowing, no_probes, sent


def probed(outputs):
    return [peer for peer, _ in sent(outputs, wire.Probe)]


def test_a_peer_that_leaves_a_probe_unanswered_is_silent_until_a_frame_of_it_comes():
    core = knowing("a", "b", "c")
    assert probed(core.probe_now(["a"], 5.0, late=False)) == ["a"]
    assert not core.silent("a")
    core.tick(5.0 + TIMING.timeout_s)
    assert core.silent("a")
    assert not core.silent("b")
    core.frame_seen("a", 6.0)
    assert not core.silent("a")


def test_a_peer_that_answers_is_not_silent():
    core = knowing("a", "b")
    ((_, probe),) = sent(core.probe_now(["a"], 5.0, late=False), wire.Probe)
    core.receive("a", wire.Acknowledge(probe.nonce, core.member_list.digest, 0.0), 5.1)
    core.tick(5.0 + TIMING.timeout_s)
    assert not core.silent("a")


def test_an_indirect_probe_may_reveal_a_silent_helper():
    core = knowing("a", "b")
    core.receive("b", wire.ProbeFor(7, "a"), 5.0)
    core.tick(5.0 + TIMING.timeout_s)
    assert core.silent("a")


def test_no_peer_is_searched_twice_at_once_or_just_after_its_message():
    core = knowing("a", "b")
    assert probed(core.probe_now(["a", "b", "stranger"], 5.0, late=True)) == ["a", "b"]
    assert probed(core.probe_now(["a", "b"], 5.1, late=True)) == []
    core.frame_seen("a", 5.2)
    no_probes(core)
    assert probed(core.probe_now(["a", "b"], 5.3, late=True)) == ["b"]


def test_without_lateness_probes_of_awaited_peers_are_rare():
    core = knowing("a", "b", "c", "d", "e")
    assert probed(core.probe_now(["b", "a"], 5.0, late=False)) == ["a"]
    assert probed(core.probe_now(["b"], 5.0 + 0.9 * TIMING.probe_s, late=False)) == []
    assert probed(core.probe_now(["b"], 5.0 + TIMING.probe_s, late=False)) == ["b"]
    assert probed(core.probe_now(["a", "b", "c", "d", "e"], 50.0, late=False)) == []


def test_after_goodbye_no_peer_is_searched():
    core = knowing("a")
    core.leave(1.0)
    assert core.probe_now(["a"], 5.0, late=True) == []
