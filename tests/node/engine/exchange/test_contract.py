"""The contract of every kind of exchange: what a round changes, and that nothing else changes anything."""

from collections import Counter

import pytest
import torch
from msgspec import structs

from starling.gossip.compress import codec
from starling.gossip.compress.budget import Effort
from starling.gossip.compress.catalogue import quantizer
from starling.gossip.compress.support import Full
from starling.gossip.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from starling.gossip.exchange.attestation import digest
from starling.gossip.mix.broadcast_codec import anchor_digest
from starling.gossip.mix.encoded_effects import decoded
from starling.gossip.mix.kinds import PULLED, EdgeKind
from starling.gossip.mix.memories import MemoryExchange
from starling.gossip.mix.moments import averages_memories
from starling.gossip.rng import generator
from starling.node.config.schema import CompressSection, MixSection, PrivacySection, RobustSection
from starling.node.engine.exchange.api import Machine, Site
from starling.node.engine.exchange.byzantine import Byzantine
from starling.node.engine.exchange.catalogue import exchange_of
from starling.node.engine.privacy.csprng import Csprng
from starling.node.rpc import calls
from tests.harness.engines import manifest, open_request
from tests.harness.memory_ends import CODEC, drawn
from tests.harness.replicas import DIM, requested, send, talk, transact
from tests.harness.replicas import Node as Plain
from tests.harness.sections import taken

EXACT = CompressSection(select="full", request="identity", response="identity")
MEMORIES = "memories"
"""Differences of models, and beside them what optimisers remember."""
MIXES = {
    EdgeKind.DIFFERENCES: MixSection(kind="pet", clip_norm=0.0),
    MEMORIES: MixSection(kind="moments", clip_norm=0.0),
    EdgeKind.SWAPS: MixSection(kind="choco"),
    EdgeKind.COMMON: MixSection(kind="psgd"),
    EdgeKind.CONTROLS: taken(MixSection, kind="psgd", feedback="ef21", control_variate=True),
    EdgeKind.GATHERS: MixSection(kind="gather"),
    EdgeKind.BROADCASTS: MixSection(kind="sparse_outer"),
}
AVERAGES = (EdgeKind.DIFFERENCES, MEMORIES)
of_kinds = pytest.mark.parametrize("kind", MIXES, ids=str)
of_pairs = pytest.mark.parametrize("kind", sorted(set(MIXES) - PULLED, key=str), ids=str)
of_averages = pytest.mark.parametrize("kind", AVERAGES, ids=str)
of_pulls = pytest.mark.parametrize("kind", sorted(PULLED, key=str), ids=str)


def agreed(kind, **changes):
    given = manifest(mix=MIXES[kind], **{"compress": EXACT} | changes)
    return structs.replace(given, robust=taken(RobustSection, rule="mean"))


class Node(Plain):
    """A node; where memories are averaged its optimiser has one, with the gradients of its last steps."""

    def __init__(self, given, name, shard=0, dim=DIM, **more):
        super().__init__(given, name, shard, dim, **more)
        if averages_memories(given):
            memory = drawn(dim, 3, generator(7, "memory", name))
            self.replica.remembered = MemoryExchange(memory, CODEC)
            changed = structs.replace(open_request(given, shard, name), **more)
            site = Site(changed, self.vectors, self, None, self.distances, Machine(self.work, Csprng(bytes).uniform))
            self.exchange = exchange_of(self.replica, site)
            self._handlers = self.exchange.handlers()


def trained(given, names="ab", **more):
    """Return nodes after the local steps of round 0, by name."""
    nodes = {name: Node(given, name, shard, **more) for shard, name in enumerate(names)}
    for node in nodes.values():
        node.train()
    return nodes


def remembered(node):
    """Return the optimiser's memory."""
    return [] if node.replica.remembered is None else [part.clone() for part in node.replica.remembered.memory.read()]


def mixed(nodes):
    """Return the models after Mix, and the state of the mixing algorithm."""
    for name, node in nodes.items():
        node.mix(sorted(set(nodes) - {name}))
    known = [part for node in nodes.values() for part in (node.replica.form.clone(), *remembered(node))]
    return [node.replica.x.clone() for node in nodes.values()], known


def equal(one, other):
    return all(torch.equal(a, b) for pair in zip(one, other, strict=True) for a, b in zip(*pair, strict=True))


@of_kinds
def test_each_kind_answers_its_own_calls(kind):
    node = Node(agreed(kind), "a")
    assert node.replica.kind is (EdgeKind.DIFFERENCES if kind is MEMORIES else kind)
    broadcast = {calls.VerifyEarlier, calls.ConsiderOuter, calls.ReplaceOuter}
    pulled = {calls.Publish, calls.VerifyUpdate} | (broadcast if kind is EdgeKind.BROADCASTS else set())
    pairwise = {calls.Offer, calls.Answer, calls.Apply, calls.Commit, calls.Drop}
    assert set(node.exchange.handlers()) == (pulled if kind in PULLED else pairwise)


@of_kinds
def test_a_round_changes_the_models_of_participants_only(kind):
    nodes, alone = trained(agreed(kind)), trained(agreed(kind))
    talk(nodes, kind in PULLED)
    before = [node.replica.x.clone() for node in nodes.values()]
    assert equal(([node.replica.x for node in alone.values()],), (before,)), "nothing moves before Mix"
    assert not equal(mixed(nodes), mixed(alone))


@of_kinds
def test_a_refused_payload_changes_nothing(kind):
    """Of a request or of a response: afterwards all state is as before."""
    nodes, spared = trained(agreed(kind)), trained(agreed(kind))
    if kind in PULLED:
        for hostile in (b"", b"\0" * 40):
            with pytest.raises(RemoteProtocolError):
                nodes["a"].call(calls.VerifyUpdate("b", digest(hostile), hostile))
        with pytest.raises(RemoteProtocolError, match="wrong_digest"):
            nodes["a"].call(calls.VerifyUpdate("b", b"", b""))
    else:
        offered = nodes["a"].call(calls.Offer("b", 0, 0, 0, 0.5))
        for theta, gain, payload in ((0.5, offered.gain, b"\0" * 40), (1.0, offered.gain, offered.payload), (0.5, 1e9, offered.payload)):
            with pytest.raises(RemoteProtocolError):
                nodes["b"].call(calls.Answer("a", 0, 0, 0, theta, gain, payload))
        with pytest.raises(RemoteProtocolError):
            nodes["a"].call(calls.Apply("b", 0, 0, b"\0" * 40))
        with pytest.raises(LocalProtocolError, match="nothing is pending with a in transaction 0"):
            nodes["b"].call(calls.Commit("a", 0, 0))
        assert not nodes["a"].vectors.committed
    assert nodes["a"].distances.figure() is None
    for both in (nodes, spared):
        talk(both, kind in PULLED)
    assert equal(mixed(nodes), mixed(spared))


@of_averages
@pytest.mark.parametrize("compress", [EXACT, CompressSection(select="full")], ids=["identity", "rounded"])
def test_both_ends_apply_one_difference_with_opposite_signs(kind, compress):
    """Bit for bit, after a codec too, and for the difference of memories."""
    nodes = trained(agreed(kind, compress=compress))
    transact(nodes)
    (ours,), (theirs,) = ([decoded(done) for done in node.vectors.committed] for node in nodes.values())
    assert torch.equal(ours.value, -theirs.value)
    assert (ours.theta, ours.gain, ours.peer, theirs.peer) == (theirs.theta, theirs.gain, "b", "a")
    assert ours.keeps == theirs.keeps
    assert (ours.memory is None) == (theirs.memory is None) == (kind is EdgeKind.DIFFERENCES)
    if kind is MEMORIES:
        assert ours.memory.difference == theirs.memory.difference
        assert (ours.memory.sign, ours.gain) == (-theirs.memory.sign, 0.0)


def test_memories_meet_in_the_mean_and_are_never_apart_for_longer_than_before():
    """The difference has eight bits, and second moments are averaged by their logarithm."""
    nodes = trained(agreed(MEMORIES))
    before = [remembered(node)[0] for node in nodes.values()]
    transact(nodes)
    assert all(map(torch.equal, before, [remembered(node)[0] for node in nodes.values()])), "nothing moves before Mix"
    mixed(nodes)
    mean, apart = sum(before) / 2, before[0] - before[1]
    for node in nodes.values():
        assert float((remembered(node)[0] - mean).norm()) < 0.02 * float(apart.norm())


def test_the_sums_of_models_and_flows_are_preserved():
    nodes = trained(agreed(EdgeKind.DIFFERENCES), "abc")
    before = sum(node.replica.x.double() for node in nodes.values())
    for seq, (one, other) in enumerate((("a", "b"), ("b", "c"), ("a", "c"))):
        transact(nodes, one, other, seq)
    models, flows = mixed(nodes)
    assert torch.allclose(sum(x.double() for x in models), before, atol=1e-5)
    assert any(flow.any() for flow in flows)
    assert torch.allclose(sum(flows), torch.zeros(DIM), atol=1e-6)


@pytest.mark.parametrize("claims", [(0.5, 1.0), (1.0, 0.5), (0.0, 1.0), (0.3, 0.7)], ids=str)
def test_both_ends_scale_a_flow_by_the_smaller_confirmed_share(claims):
    """Both compute it from the same numbers, so flows stay opposite bit for bit."""
    nodes = trained(agreed(EdgeKind.DIFFERENCES))
    for node, claim in zip(nodes.values(), claims, strict=True):
        node.replica.state.known[-1] = claim
    ours, theirs = walked(nodes)
    full, _ = walked(trained(agreed(EdgeKind.DIFFERENCES)))
    assert (ours.gain, ours.keeps) == (theirs.gain, theirs.keeps)
    assert ours.gain == pytest.approx(min(claims) * full.gain)
    assert ours.keeps == pytest.approx(1.0 - 0.5 * (1.0 - min(claims)))
    assert (full.keeps, full.gain > 0.0) == (1.0, True)


def walked(nodes):
    """Return the effects of a transaction at both ends, each given the other's confirmed share."""
    offered = nodes["a"].call(calls.Offer("b", 0, 0, 0, 0.5))
    answer = calls.Answer("a", 0, 0, 0, 0.5, offered.gain, offered.payload, borne=offered.borne)
    answered = nodes["b"].call(answer)
    nodes["a"].call(calls.Apply("b", 0, 0, answered.payload, answered.borne))
    nodes["b"].call(calls.Commit("a", 0, 0))
    return [decoded(done) for node in nodes.values() for done in node.vectors.committed]


@of_averages
@pytest.mark.parametrize("claim", [-1e-9, 1.0 + 1e-9, float("nan"), float("inf")])
def test_a_confirmed_share_outside_0_to_1_is_the_peer_s_fault_and_changes_nothing(kind, claim):
    nodes, spared = trained(agreed(kind)), trained(agreed(kind))
    offered = nodes["a"].call(calls.Offer("b", 0, 0, 0, 0.5))
    answer = calls.Answer("a", 0, 0, 0, 0.5, offered.gain, offered.payload, borne=claim)
    with pytest.raises(RemoteProtocolError, match="borne_out_of_bounds"):
        nodes["b"].call(answer)
    answered = nodes["b"].call(structs.replace(answer, borne=1.0))
    with pytest.raises(RemoteProtocolError, match="borne_out_of_bounds"):
        nodes["a"].call(calls.Apply("b", 0, 0, answered.payload, claim))
    assert not any(node.vectors.committed for node in nodes.values())
    for both in (nodes, spared):
        talk(both, False)
    assert equal(mixed(nodes), mixed(spared))


def own_rates(one, other):
    """Return two nodes with flows and a learning rate each."""

    class Slow(Node):
        rate = one

    class Fast(Node):
        rate = other

    nodes = {
        "a": Slow(manifest(mix=MixSection(kind="pet"), compress=EXACT), "a"),
        "b": Fast(manifest(mix=MixSection(kind="pet"), compress=EXACT), "b", 1),
    }
    for node in nodes.values():
        node.train()
    return nodes


@pytest.mark.parametrize(("one", "other"), [(0.02, 0.02), (0.01, 0.05), (0.05, 0.01)])
def test_nodes_with_different_rates_both_use_the_gain_of_the_longer_steps(one, other):
    """Whichever node initiates. So flows stay opposite, and neither moves faster than its own steps justify."""
    nodes, longest = own_rates(one, other), own_rates(max(one, other), max(one, other))
    for both in (nodes, longest):
        transact_in_full(both)
    of_both, of_longest = ([done.gain for done in committed(each)] for each in (nodes, longest))
    assert of_both[0] == of_both[1]
    assert of_both == pytest.approx(of_longest, rel=1e-6)


def test_claimed_short_steps_do_not_speed_up_flows_and_long_ones_slow_them():
    nodes = own_rates(0.02, 0.02)
    offered = nodes["a"].call(calls.Offer("b", 0, 0, 0, 0.5))
    answer = calls.Answer("a", 0, 0, 0, 0.5, 1e6 * offered.gain, offered.payload, borne=offered.borne)
    answered = nodes["b"].call(answer)
    assert answered.share == pytest.approx(1e-6)
    nodes["b"].call(calls.Commit("a", 0, 0))
    (done,) = committed({"b": nodes["b"]})
    assert done.gain == pytest.approx(offered.gain * offered.borne, rel=1e-6)


def test_a_peer_s_confirmed_share_scales_the_flow_only():
    nodes = trained(manifest(mix=MixSection(kind="pet"), compress=EXACT))
    offered = nodes["a"].call(calls.Offer("b", 0, 0, 0, 0.5))
    answered = nodes["b"].call(calls.Answer("a", 0, 0, 0, 0.5, offered.gain, offered.payload, borne=offered.borne))
    assert answered.share == 1.0
    nodes["a"].call(calls.Apply("b", 0, 0, answered.payload, answered.borne, 0.5))
    (done,) = committed({"a": nodes["a"]})
    assert (done.theta, done.gain) == (0.5, 0.5 * offered.gain)


def transact_in_full(nodes):
    offered = nodes["a"].call(calls.Offer("b", 0, 0, 0, 0.5))
    answered = nodes["b"].call(calls.Answer("a", 0, 0, 0, 0.5, offered.gain, offered.payload, borne=offered.borne))
    nodes["a"].call(calls.Apply("b", 0, 0, answered.payload, answered.borne, answered.share))
    nodes["b"].call(calls.Commit("a", 0, 0))


def committed(nodes):
    return [decoded(done) for node in nodes.values() for done in node.vectors.committed]


def test_without_flows_the_confirmed_share_must_be_one():
    for mix in (MixSection(kind="dsgd"), MIXES[MEMORIES]):
        nodes = trained(manifest(mix=mix, compress=EXACT))
        offered = nodes["a"].call(calls.Offer("b", 0, 0, 0, 0.5))
        assert offered.borne == 1.0
        with pytest.raises(RemoteProtocolError, match="borne_out_of_bounds"):
            nodes["b"].call(calls.Answer("a", 0, 0, 0, 0.5, offered.gain, offered.payload, borne=0.5))


@of_pairs
def test_a_dropped_transaction_is_not_applied_and_others_remain(kind):
    nodes = trained(agreed(kind))
    _, answered = requested(nodes, seq=3)
    apply, commit = calls.Apply("b", 0, 3, answered.payload), calls.Commit("a", 0, 3)
    for name, peer in ("ab", "ba"):
        assert nodes[name].call(calls.Drop(peer, 0, 2)) == calls.Done()
        assert nodes[name].call(calls.Drop(peer, 1, 3)) == calls.Done()
    kept = [nodes["a"].call(apply), nodes["b"].call(commit)]
    assert all(isinstance(reply, calls.Done) for reply in kept)
    _, answered = requested(nodes, seq=4)
    for name, peer in ("ab", "ba"):
        nodes[name].call(calls.Drop(peer, 0, 4))
    with pytest.raises(LocalProtocolError, match="nothing was offered to b in transaction 4"):
        nodes["a"].call(calls.Apply("b", 0, 4, answered.payload))
    with pytest.raises(LocalProtocolError, match="nothing is pending with a in transaction 4"):
        nodes["b"].call(calls.Commit("a", 0, 4))


@of_kinds
@pytest.mark.parametrize("everybody", [False, True], ids=["one", "all"])
def test_forgetting_a_peer_drops_its_transactions(kind, everybody):
    nodes, alone = trained(agreed(kind)), trained(agreed(kind))
    if kind in PULLED:
        send(nodes, "b", "a")
    else:
        requested(nodes)
    for node, peer in (nodes["a"], "b"), (nodes["b"], "a"):
        node.exchange.forget("z")
        node.exchange.forget_all() if everybody else node.exchange.forget(peer)
    if kind in PULLED:
        assert torch.equal(mixed({"a": nodes["a"]})[0][0], mixed({"a": alone["a"]})[0][0])
    else:
        with pytest.raises(LocalProtocolError):
            nodes["b"].call(calls.Commit("a", 0, 0))
        with pytest.raises(LocalProtocolError):
            nodes["a"].call(calls.Apply("b", 0, 0, b""))


@of_kinds
def test_exchanges_need_a_frozen_vector(kind):
    node = Node(agreed(kind), "a")
    words = "there is no frozen vector between Mix and the end of the next Train"
    first = calls.Publish(0) if kind in PULLED else calls.Offer("b", 0, 0, 0, 0.5)
    with pytest.raises(LocalProtocolError, match=words):
        node.call(first)
    with pytest.raises(LocalProtocolError, match="between the end of Train and Mix" if kind in PULLED else words):
        node.call(calls.VerifyUpdate("b", b"", b"") if kind in PULLED else calls.Answer("b", 0, 0, 0, 2.0, 0.0, b""))


@of_kinds
def test_the_calls_of_transactions_are_timed_if_they_succeed(kind, monkeypatch):
    """Pulled exchanges are not timed, and a refused call says nothing about an exchange."""
    spent = Counter()
    monkeypatch.setattr(Effort, "exchanged", lambda self, seconds: spent.update({id(self): seconds}))
    nodes = trained(agreed(kind))
    talk(nodes, kind in PULLED)
    assert nodes["a"].seconds == (0.0 if kind in PULLED else 4.0)
    if kind not in PULLED:
        assert spent[id(nodes["a"].exchange.effort)] == 2.0
        with pytest.raises(RemoteProtocolError):
            nodes["a"].call(calls.Answer("b", 0, 9, 0, 2.0, 0.0, b""))
        nodes["a"].call(calls.Drop("b", 0, 9))
        assert spent[id(nodes["a"].exchange.effort)] == 2.0


@of_kinds
def test_an_exchange_reports_the_distance_of_models(kind):
    nodes = trained(agreed(kind))
    apart = float((nodes["a"].replica.x - nodes["b"].replica.x).norm()) / DIM**0.5
    talk(nodes, kind in PULLED)
    mixed(nodes)
    found = {name: node.distances.figure() for name, node in nodes.items()}
    if kind is EdgeKind.BROADCASTS:
        assert set(found.values()) == {None}
    elif kind in AVERAGES or kind is EdgeKind.GATHERS:
        assert list(found.values()) == pytest.approx([apart, apart], rel=1e-5)


@of_kinds
def test_noise_is_refused_where_messages_add_up(kind):
    privacy = PrivacySection(exchange_noise=0.1)
    if kind in (*AVERAGES, EdgeKind.GATHERS):
        Node(agreed(kind), "a", privacy=privacy)
    else:
        named = f"mix.kind = '{MIXES[kind].kind}'"
        with pytest.raises(ConfigError, match=f"^privacy.exchange_noise: must be 0 with {named}, whose messages add up, got 0.1;"):
            Node(agreed(kind), "a", privacy=privacy)


@of_kinds
def test_an_attacker_exchanges_normally_and_its_own_model_stays_honest(kind):
    """It sends forged messages; its own model is what an honest exchange would give, as far as it can know that."""
    nodes, honest = trained(agreed(kind)), trained(agreed(kind))
    nodes["a"] = Node(agreed(kind), "a", attack="sign_flip")
    nodes["a"].train()
    assert isinstance(nodes["a"].exchange, Byzantine)
    assert not isinstance(nodes["b"].exchange, Byzantine)
    for both in (nodes, honest):
        talk(both, kind in PULLED)
    (ours, theirs), _ = mixed(nodes)
    (true_ours, true_theirs), _ = mixed(honest)
    if kind in AVERAGES or kind is EdgeKind.GATHERS:  # the other kinds keep a copy of what the node sent, as honest nodes do
        assert torch.allclose(ours, true_ours, atol=1e-5)
    assert not torch.allclose(theirs, true_theirs, atol=1e-3)


def test_an_attacker_reports_clipping_of_its_honest_effect():
    """The daemon counts clipping of the node's own model."""
    given = manifest(mix=MixSection(kind="dsgd", clip_norm=0.5), compress=EXACT)
    nodes = trained(given)
    nodes["a"] = Node(given, "a", attack="foe")
    nodes["a"].train()
    ours, theirs = transact(nodes)
    assert theirs == calls.Done(True, clip=None)
    assert ours == calls.Done(False, clip=1.0)


@of_pulls
def test_hostile_bytes_are_signed_as_they_are_sent(kind):
    nodes = trained(agreed(kind))
    nodes["a"] = Node(agreed(kind), "a", attack="nan")
    nodes["a"].train()
    published = nodes["a"].call(calls.Publish(0))
    assert published.digest == digest(published.payload)
    with pytest.raises(RemoteProtocolError):
        nodes["b"].call(calls.VerifyUpdate("a", published.digest, published.payload))


def test_a_node_that_slept_takes_over_its_peers_model():
    """The first peer's vector replaces its own, and the optimiser's memory of the old model is cleared."""
    nodes = trained(agreed(EdgeKind.GATHERS), "abc")
    for peer in "bc":
        send(nodes, peer, "a")
    others = [nodes[peer].replica.x.clone() for peer in "bc"]
    assert nodes["a"].mix(("c", "b"), own=False).replaced
    assert torch.allclose(nodes["a"].replica.x, torch.stack(others).mean(0), atol=1e-6)
    nodes["a"].train(1)
    assert not nodes["a"].mix((), own=False).replaced, "nobody was asked"
    nodes["a"].train(2)
    assert not nodes["a"].mix(("b",)).replaced


@pytest.mark.parametrize("gone", ["", "bc"])
def test_a_node_with_diverged_outer_parameters_gets_peers_of_the_majority(gone):
    nodes = trained(agreed(EdgeKind.BROADCASTS), "abc")
    nodes["a"].replica.install(torch.ones(DIM))
    nodes["a"].train()
    for name, peers in {"a": "bc", "b": "ac", "c": "ab"}.items():
        for peer in peers:
            send(nodes, peer, name)
    for peer in gone:
        nodes["a"].exchange.forget(peer)
    diverged = nodes["a"].mix(("b", "c")).diverged
    assert [peers for _, peers in diverged.outer] == [("b", "c")] if not gone else diverged is None
    assert nodes["b"].mix(("a", "c")).diverged is None


def test_outer_parameters_of_a_refused_message_do_not_count():
    """Otherwise two liars could make an honest node discard its own outer parameters."""
    node = Node(agreed(EdgeKind.BROADCASTS), "a")
    node.train()
    fp32 = quantizer("identity", torch.float32)
    body = codec.encode_from(torch.full((DIM,), 1e13), Full(), fp32, torch.Generator())
    message = anchor_digest(torch.ones(DIM)) + body
    for peer in "bc":
        with pytest.raises(RemoteProtocolError, match="too_large"):
            node.call(calls.VerifyUpdate(peer, digest(message), message))
    assert node.mix(("b", "c")).diverged is None


@pytest.mark.parametrize("select", ["random_k", "cocktail", "budget"])
def test_every_peer_receives_the_same_bytes(select):
    """For every peer and transaction of a round; another sender or another round draws other bytes."""
    compress = CompressSection(select=select, response="int4")
    nodes = trained(agreed(EdgeKind.COMMON, compress=compress), "abc")
    offered = [nodes["b"].call(calls.Offer("c", 0, seq, 5, 1 / 3, budget)).payload for seq, budget in ((0, 40), (7, 900))]
    answer = calls.Answer("a", 0, 3, 5, 1 / 3, 0.0, nodes["a"].call(calls.Offer("b", 0, 3, 5, 1 / 3)).payload)
    assert offered[0] == offered[1] == nodes["b"].call(answer).payload
    assert nodes["b"].call(calls.Offer("c", 0, 8, 6, 1 / 3)).payload != offered[0]


def test_an_overlapping_node_saves_and_offers_the_common_model():
    """A checkpoint, or the state for a late joiner, contains no local steps that were not exchanged yet."""
    nodes = trained(agreed(EdgeKind.COMMON))
    transact(nodes)
    for step, node in enumerate(nodes.values()):
        node.replica.x -= 0.1 + step  # beside the exchange
    (one, other), _ = mixed(nodes)
    assert not torch.equal(one, other)
    saved = [node.replica.settled for node in nodes.values()]
    assert torch.equal(*saved)
    assert torch.allclose(one, saved[0] - 0.1)
