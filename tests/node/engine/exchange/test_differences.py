"""Which coordinates a difference contains, and what it takes into account of other exchanges."""

import math

import pytest
import torch

from starling.gossip.compress import codec
from starling.gossip.compress.catalogue import quantizer
from starling.gossip.mix.encoded_effects import decoded
from starling.node.config.schema import CompressSection, MixSection
from starling.node.rpc import calls
from tests.harness.engines import manifest
from tests.harness.replicas import Node, requested, trained, transact

DIM = 4810
WISHING = CompressSection(select="drift_top_k", ratio=0.1, request="identity", response="identity")
IDENTITY = (quantizer("identity", torch.float32),)


def offered(node, peer, seq):
    """Return the coordinates of the node's next offer."""
    payload = node.call(calls.Offer(peer, 0, seq, 0, 0.5)).payload
    return codec.decode(payload, DIM, torch.float32, IDENTITY)[0]


def test_coordinates_requested_by_the_responder_are_in_the_next_exchange():
    """Half of the coordinates are chosen by the initiator and half by the responder, in its last answer."""
    nodes = trained(manifest(mix="dsgd", compress=WISHING), dim=DIM)
    for seq in (1, 2):
        transact(nodes, seq=seq)
        nodes["b"].vectors.frozen.vector[:200] += 1.0  # b drifts in coordinates where a does not
    support = offered(nodes["a"], "b", 3)
    assert int((support.indices < 200).sum()) >= 100
    assert support.size(DIM) <= 481


def test_drift_chosen_coordinates_count_as_sent_once_they_were_exchanged():
    """Both ends count the exchanged values as known: coordinates that were averaged differ no more."""
    agreed = manifest(mix=MixSection(kind="dsgd", clip_norm=0.0), compress=WISHING)
    nodes = {name: Node(agreed, name, dim=DIM) for name in "ab"}
    for sign, node in zip((1.0, -0.5), nodes.values(), strict=True):
        node.replica.x.fill_(0.51)
        node.replica.x[:200] = 100.0 * sign
        node.train(steps=0)
    transact(nodes)
    for node in nodes.values():
        node.mix()
        node.train(1, steps=0)
        assert torch.allclose(node.replica.x[:200], torch.tensor(25.0))
    answer, answered = requested(nodes, "b", "a", seq=1, round=1)
    chosen = codec.decode(answer.payload, DIM, torch.float32, IDENTITY)[0]
    wish = codec.decode_values(answered.payload, chosen, DIM, torch.float32, IDENTITY, 481)[1]
    assert not (chosen.indices < 200).any()
    assert not (wish.indices < 200).any()


@pytest.mark.parametrize(("mix", "share"), [("dsgd", 0.05), ("choco", 0.1)])
def test_half_of_the_coordinates_follow_the_responder_s_requests(mix, share):
    node = trained(manifest(mix=mix, compress=WISHING), "a", dim=DIM)["a"]
    assert offered(node, "b", 1).size(DIM) == math.ceil(share * DIM)


def test_the_estimate_of_an_unmet_peer_is_the_common_initial_vector():
    agreed = manifest(mix="dsgd", compress=CompressSection(select="top_k", ratio=0.01, request="identity"))
    node = Node(agreed, "a", dim=DIM)
    node.replica.x[100:140] += 1e-3
    node.train(steps=0)
    support = offered(node, "b", 1)
    assert set(range(100, 140)) <= set(support.indices.tolist())
    assert support.size(DIM) == 49


@pytest.mark.parametrize("share", [None, 0.6], ids=["full", "mask"])
def test_a_second_concurrent_answer_accounts_for_the_first(share):
    """Otherwise two concurrent answers in clock pace would overshoot."""
    chosen = {"select": "full"} if share is None else {"select": "mask", "ratio": share}
    agreed = manifest(
        mix=MixSection(clip_norm=0.0), pace="clock", compress=CompressSection(request="identity", response="identity", **chosen)
    )
    nodes = trained(agreed, "abc", dim=642)
    x_b, x_c = (nodes[peer].replica.x.clone() for peer in "bc")
    for peer in "ab":
        requested(nodes, peer, "c")
    committed = []
    nodes["c"].vectors.take = committed.append
    for peer in "ab":
        nodes["c"].call(calls.Commit(peer, 0, 0))
    first, second = map(decoded, committed)
    moved = first.support.add(torch.zeros_like(x_c), first.theta * first.value)
    assert second.support.take(moved).any()
    torch.testing.assert_close(-second.value, second.support.take(x_c + moved - x_b))
