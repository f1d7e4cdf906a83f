"""Broadcast messages give one mean at every node, bit for bit, and defined results where one is missing.

Shapes: n nodes, d parameters.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.api import Phase, Swapped
from starling.gossip.compress.catalogue import quantizer
from starling.gossip.compress.select.coordinates import RandomK
from starling.gossip.mix import common_draw, edge_ledger
from starling.gossip.mix.all_gather import Psgd
from starling.gossip.mix.common_draw import RoundMessages
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.robust.clip import clip

DIM = 7
ORIGIN = torch.zeros(DIM)
PEERS = ("a", "b", "c", "d", "e")
seeds = st.integers(0, 2**32 - 1)


def updates(seed):
    drawn = torch.randn(len(PEERS), DIM, generator=torch.Generator().manual_seed(seed))
    return dict(zip(PEERS, drawn, strict=True))


def swaps(node, of, missing=()):
    """Return what `node` has swapped with all others."""
    weight = 1.0 / len(PEERS)
    others = [peer for peer in PEERS if peer not in {node, *missing}]
    return [Swapped(peer, of[node], of[peer], of[node], weight, weight, node) for peer in others]


@given(seeds, st.sampled_from(["none", "ef", "ef21", "ef21_sgdm", "econtrol", "dgc", "demo"]))
def test_all_nodes_have_bitwise_equal_means_for_any_order_of_swaps(seed, feedback):
    edge, of = Psgd(feedback).edge, updates(seed)
    mixed = [edge_ledger.swap_common(edge, {}, of[node], ORIGIN, swaps(node, of)[::-1])[0] for node in PEERS]
    assert all(torch.equal(mean, mixed[0]) for mean in mixed)
    torch.testing.assert_close(mixed[0], torch.stack(list(of.values())).mean(0))


@given(seeds)
def test_the_own_update_replaces_a_missing_peer_s(seed):
    edge, of = Psgd("none").edge, updates(seed)
    mixed, _ = edge_ledger.swap_common(edge, {}, of["b"], ORIGIN, swaps("b", of, missing="e"))
    expected = (of["a"] + of["c"] + of["d"] + 2.0 * of["b"]) / 5.0
    assert torch.allclose(mixed, expected, atol=1e-6)


@given(seeds)
def test_late_commits_are_added_to_the_mean(seed):
    """In the last round the own update replaced the peer's; now the peer's counts."""
    edge, old, of = Psgd("none").edge, updates(seed), updates(seed + 1)
    late = [each for each in swaps("b", old) if each.peer == "e"]
    mixed, _ = edge_ledger.swap_common(edge, {}, of["b"], ORIGIN, [*late, *swaps("b", of)])
    mean, _ = edge_ledger.swap_common(edge, {}, of["b"], ORIGIN, swaps("b", of))
    assert torch.allclose(mixed, mean + (old["e"] - old["b"]) / 5.0, atol=1e-6)


def test_demo_signs_of_zero_and_missing_messages_are_zero():
    edge, of = Psgd("demo").edge, dict.fromkeys(PEERS, torch.zeros(DIM))
    of["b"] = torch.ones(DIM)
    done = [Swapped(each.peer, torch.zeros(DIM), each.received, each.local, each.give, each.take, "b") for each in swaps("b", of, "e")]
    assert not edge_ledger.swap_common(edge, {}, of["b"], ORIGIN, done)[0].any()


def test_a_sender_draws_anew_each_round_and_never_for_a_peer():
    codec = ExchangeCodec(quantizer("int4", torch.float32), quantizer("int4", torch.float32), 0.0, clip)
    message, other = torch.linspace(-1.0, 1.0, 200), torch.linspace(1.0, 2.0, 200)

    def payload(sender, round, *before):
        messages = RoundMessages(codec, RandomK(0.1), 5, sender, round)
        for each in before:
            messages.encode(each)
        return messages.encode(message)

    assert payload("a", 3) == payload("a", 3, message) == payload("a", 3, other)
    assert len({payload("a", 3), payload("a", 4), payload("b", 3)}) == 3
    assert common_draw.mask_seed(5, "a") != common_draw.mask_seed(6, "a")


@pytest.mark.parametrize("control", [False, True])
def test_concurrent_local_steps_stay_outside_the_common_model(control):
    mixer = Psgd("ef21", control_variate=control)
    phase = Phase(0, 1.0, 0.1)
    x = torch.zeros(DIM)
    state = mixer.start(x)
    x, state = mixer.publish(state, x - 1.0, phase)
    ahead, mean = x - 0.25, torch.full((DIM,), 0.5)
    mixed, state = mixer.absorb(state, ahead, mean, phase)
    assert torch.equal(mixer.edge.settled(state), -mean)
    assert torch.equal(mixed, -mean - 0.25)
    assert torch.equal(mixer.absorb(mixer.publish(mixer.start(ORIGIN), x, phase)[1], x, mean, phase)[0], -mean)


@given(seeds)
def test_edges_with_different_messages_count_by_their_share(seed):
    """After a missed link an edge has a larger residual than the others; the mean over nodes still moves by what was sent."""
    edge, of = Psgd("none").edge, updates(seed)
    first, *others = swaps("b", of)
    mixed, _ = edge_ledger.swap_common(edge, {}, of["b"], ORIGIN, [replace(first, sent=3.0 * of["b"]), *others])
    expected = (of["a"] + of["c"] + of["d"] + of["e"] + 1.5 * of["b"]) / 5.0
    assert torch.allclose(mixed, expected, atol=1e-5)


@given(seeds)
def test_exchanging_twice_with_one_peer_does_not_give_the_mean_of_all(seed):
    edge, of = Psgd("none").edge, updates(seed)
    done = swaps("b", of, missing="e")
    mixed, _ = edge_ledger.swap_common(edge, {}, of["b"], ORIGIN, [*done, done[0]])
    assert torch.allclose(mixed, (2.0 * of["a"] + of["c"] + of["d"] + of["b"]) / 5.0, atol=1e-5)
