"""Pairs in which one end is far from the other's peers: how much of the difference each end applies, and what it reports.

"a" has exchanged with "b", "c" and "d"; "f" is far from all, and has exchanged with nobody.
"""

import pytest
import torch
from msgspec import structs

from starling.gossip.mix.encoded_effects import decoded
from starling.node.config.schema import CompressSection, MixSection
from starling.node.engine.exchange.api import Frozen
from starling.node.rpc import calls
from starling.robust.distances import OWN, REFUSED, UNTRUSTED
from tests.harness.engines import manifest, opened
from tests.harness.replicas import DIM, requested, trained, transact

EXACT = CompressSection(select="full", request="identity", response="identity")
BOTH_WAYS = pytest.mark.parametrize(("one", "other"), [("a", "f"), ("f", "a")])
FAR = 1000.0


def acquainted(mix="pet", compress=EXACT, **keys):
    nodes = trained(manifest(mix=MixSection(kind=mix, **{"clip_norm": 0.0, "defended": True} | keys), compress=compress), "abcdf")
    for peer in "bcd":
        transact(nodes, "a", peer)
    far = nodes["f"].vectors
    far.frozen = Frozen(far.frozen.vector + FAR, far.frozen.phase)
    return nodes


def effects(nodes, one, other):
    """Return what a transaction does to each end."""
    return [
        next(done for done in map(decoded, nodes[me].vectors.committed) if done.peer == peer) for me, peer in ((one, other), (other, one))
    ]


@BOTH_WAYS
@pytest.mark.parametrize("mix", ["pet", "dsgd", "moments"])
def test_each_end_clips_a_long_difference_by_its_own_peers_and_flows_stay_opposite(mix, one, other):
    nodes = acquainted(mix)
    reference = nodes["a"].call(calls.Offer("e", 0, 0, 0, 0.5)).reference
    transact(nodes, one, other)
    first, second = effects(nodes, one, other)
    assert torch.equal(first.value, -second.value)
    assert first.gain == second.gain
    near, far = (first, second) if one == "a" else (second, first)
    assert near.theta * float(near.value.norm()) == pytest.approx(0.5 * reference)
    assert far.theta == 0.5, "who knows nobody follows"
    unbounded = acquainted(mix, defended=False)
    transact(unbounded, one, other)
    share = near.theta / 0.5
    assert near.gain == pytest.approx(share * effects(unbounded, one, other)[0].gain)


@BOTH_WAYS
def test_a_difference_within_the_limit_is_applied_exactly(one, other):
    nodes, unbounded = acquainted(), acquainted(defended=False)
    for each in (nodes, unbounded):
        each["f"].vectors.frozen.vector.sub_(FAR)
        transact(each, one, other)
    for done, free in zip(effects(nodes, one, other), effects(unbounded, one, other), strict=True):
        assert (done.theta, done.gain, done.keeps) == (free.theta, free.gain, free.keeps)
        assert torch.equal(done.value, free.value)


@BOTH_WAYS
def test_a_peer_that_is_far_twice_is_refused_and_itself_blames_nobody(one, other):
    nodes, me = acquainted(), ("a", "f").index(one)
    first = transact(nodes, one, other)
    transact(nodes, "a", "b", seq=1)
    again = transact(nodes, one, other, seq=2)
    assert first[me].far.refused == 0
    assert again[me].far.refused == REFUSED
    assert again[me].far.distance == pytest.approx(FAR * nodes["a"].replica.x.numel() ** 0.5, rel=0.1)
    assert first[1 - me].far is again[1 - me].far is None


@BOTH_WAYS
@pytest.mark.parametrize("mix", ["pet", "dsgd", "moments"])
def test_nothing_is_taken_of_a_refused_peer_which_takes_its_own_part(mix, one, other):
    """Who is refused in error comes nearer so."""
    nodes = acquainted(mix)
    transact(nodes, one, other)
    transact(nodes, "a", "b", seq=1)
    transact(nodes, one, other, seq=2)
    for name in "af":
        nodes[name].vectors.committed.clear()
    assert all(end.far is None for end in transact(nodes, one, other, seq=3))
    near, far = effects(nodes, "a", "f")
    moved = [float((done.theta * done.value).norm()) for done in (near, far)]
    assert moved == [pytest.approx(0.0, abs=1e-9), pytest.approx(0.5 * FAR * DIM**0.5, rel=0.1)]
    assert near.gain == far.gain == pytest.approx(0.0, abs=1e-9)


STARTED = {"full": EXACT, "mask": CompressSection(select="mask", ratio=0.5, request="identity", response="identity")}


def on_the_way(compress=EXACT, peers="bcdf", **keys):
    """Return nodes that have gone the same way from their start, and steps of their own; "a" has exchanged with all but "f"."""
    agreed = manifest(mix=MixSection(kind="pet", **{"clip_norm": 0.0, "defended": True} | keys), compress=compress)
    nodes = trained(agreed, f"a{peers}")
    for each in nodes.values():
        each.vectors.frozen = Frozen(each.vectors.frozen.vector + 1.0, each.vectors.frozen.phase)
    for peer in "bcd":
        transact(nodes, "a", peer)
    return nodes


def back_at_the_start(nodes, name="f"):
    """Let a node show the model that all began with."""
    stale = nodes[name].vectors
    stale.frozen = Frozen(nodes[name].replica.origin.clone(), stale.frozen.phase)


@BOTH_WAYS
@pytest.mark.parametrize("compress", STARTED.values(), ids=STARTED)
@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_a_peer_at_the_common_start_is_refused_though_it_is_not_far(one, other, compress, clip_norm):
    nodes, me = on_the_way(compress, clip_norm=clip_norm), ("a", "f").index(one)
    back_at_the_start(nodes)
    scores = []
    for seq in range(1, 4):
        told = transact(nodes, one, other, seq=seq)
        assert told[1 - me].far is None or not told[1 - me].far.refused
        far = told[me].far
        scores.append(far.score)
        transact(nodes, "a", "b", seq=seq)
    assert scores == [1.0, 2.0, 3.0]
    assert far.refused == REFUSED
    assert far.progress == pytest.approx(0.0, abs=0.15)
    assert 0.5 < far.least < 1.0


@BOTH_WAYS
@pytest.mark.parametrize("compress", STARTED.values(), ids=STARTED)
def test_a_peer_at_the_common_start_pulls_nobody_back_to_it(one, other, compress):
    """Before it is refused, too: among five nodes three meetings that halve a model's way are most of a run's beginning."""
    nodes = on_the_way(compress)
    back_at_the_start(nodes)
    transact(nodes, one, other, seq=1)
    first, second = effects(nodes, one, other)
    assert first.gain == second.gain, "flows stay opposite"
    near, stale = (first, second) if one == "a" else (second, first)
    assert near.theta <= 0.2
    assert stale.theta == 0.5, "who knows nobody follows"
    free = on_the_way(compress, defended=False)
    back_at_the_start(free)
    transact(free, one, other, seq=1)
    left = effects(free, one, other)[0].gain * near.theta / 0.5
    if one == "a":
        assert near.gain > left, "an initiator cannot tell the responder, whose flow would differ"
    else:
        assert near.gain == pytest.approx(left)


@BOTH_WAYS
@pytest.mark.parametrize("compress", STARTED.values(), ids=STARTED)
def test_who_went_along_is_not_behind(one, other, compress):
    nodes = on_the_way(compress)
    assert [done.far for done in transact(nodes, one, other, seq=1)] == [None, None]


def test_a_node_whose_model_was_replaced_measures_progress_from_the_new_one():
    nodes = on_the_way()
    back_at_the_start(nodes)
    nodes["a"].replica.install(nodes["a"].vectors.frozen.vector)
    nodes["a"].exchange.forget_all()
    for peer in "bcd":
        transact(nodes, "a", peer, seq=1)
    assert transact(nodes, "a", "f", seq=1)[0].far.least == 0.0, "it is far, but we have not moved since"


def first_number(models):
    """Return a loss that is about the first coordinate of a whole model."""
    assert models.shape[-1] == DIM
    return 1.0 + (models[..., 0] - 0.5).abs()


def differing(pace="steps", compress=EXACT, losses=first_number, **keys):
    """Return nodes of which "f" is a little farther than others, in what the loss is about."""
    agreed = manifest(pace=pace, mix=MixSection(kind="dsgd", **{"clip_norm": 0.0, "defended": True} | keys), compress=compress)
    nodes = trained(agreed, "abcdf", losses=losses)
    for each in nodes.values():
        each.shown = each.replica.shared().clone()
    for peer in "bcd":
        transact(nodes, "a", peer)
    usual = nodes["a"].call(calls.Offer("e", 0, 0, 0, 0.5)).reference / UNTRUSTED
    nodes["f"].shown = nodes["a"].shown.clone()
    nodes["f"].shown[0] += 1.6 * usual
    return nodes


def another_round(nodes, number, one, other):
    """Let all show what they did before; "a" exchanges with three and with "f" -> what both ends say of the last."""
    for each in nodes.values():
        each.vectors.round = number
        if each.vectors.exclusive:
            each.replica.x.copy_(each.shown)
        else:
            each.vectors.frozen = Frozen(each.shown, each.phase(number, 1.0))
    for peer in "bcd":
        transact(nodes, "a", peer, seq=number, round=number)
        if nodes["a"].vectors.exclusive:
            nodes["a"].replica.x.copy_(nodes["a"].shown)
    told = transact(nodes, one, other, seq=number, round=number)
    if not nodes["a"].vectors.exclusive:
        nodes["a"].vectors.thawed()
    return told


@BOTH_WAYS
@pytest.mark.parametrize("compress", STARTED.values(), ids=STARTED)
@pytest.mark.parametrize("pace", ["steps", "clock"])
def test_a_peer_whose_models_do_worse_on_our_data_is_refused_though_it_is_near(one, other, pace, compress):
    nodes, me = differing(pace, compress), ("a", "f").index(one)
    told = [another_round(nodes, number, one, other)[me].far for number in range(1, 16)]
    struck = [far for far in told if far is not None]
    assert told[0] is None, "losses are computed after the first exchange"
    assert struck[2].refused == REFUSED
    assert struck[2].ratio > 1.25 * struck[2].largest
    assert struck[2].distance < 2.5 * struck[2].reference


@pytest.mark.parametrize(
    "keys", [{"losses": None}, {"losses": lambda models: torch.ones(models.shape[:-1])}, {"defended": False}, {"personal": ("bias",)}]
)
def test_without_losses_or_where_they_are_equal_or_undefended_a_near_peer_is_never_struck(keys):
    nodes = differing(**keys)
    assert [another_round(nodes, number, "a", "f")[0].far for number in range(1, 8)] == [None] * 7


def test_where_the_coordinates_that_differ_most_are_exchanged_progress_is_not_judged():
    nodes = on_the_way(CompressSection(select="top_k", ratio=0.5, request="identity", response="identity"))
    back_at_the_start(nodes)
    told = [transact(nodes, one, other, seq=seq)[0].far for seq, (one, other) in enumerate((("a", "f"), ("f", "a")), 1)]
    assert all(far is None or far.least == 0.0 for far in told)


@BOTH_WAYS
def test_without_the_defence_differences_are_applied_whole_and_nobody_is_judged(one, other):
    nodes = acquainted(defended=False)
    answer, _ = requested(nodes, one, other)
    assert answer.reference == 0.0
    for seq in (1, 2):
        assert [done.far for done in transact(nodes, one, other, seq=seq)] == [None, None]
    assert [done.theta for done in effects(nodes, one, other)] == [0.5, 0.5]


def test_a_forged_reference_slows_only_the_flow_of_its_own_edge():
    """As initiator it sends a reference; as responder it sends the share."""
    for told in (1e-9, 1e300):
        nodes = acquainted()
        answer, _ = requested(nodes, "f", "a")
        answered = nodes["a"].call(structs.replace(answer, seq=1, reference=told))
        nodes["a"].call(calls.Commit("f", 0, 1))
        (done,) = (done for done in map(decoded, nodes["a"].vectors.committed) if done.peer == "f")
        assert answered.share <= done.theta / 0.5 < 1.0
        assert done.gain == pytest.approx(answer.gain * answered.share)
    for told in (1e-9, 1.0):
        nodes = acquainted()
        answer, answered = requested(nodes, "a", "f")
        nodes["a"].call(calls.Apply("f", 0, 0, answered.payload, answered.borne, told, 1.0))
        (done,) = (done for done in map(decoded, nodes["a"].vectors.committed) if done.peer == "f")
        assert done.gain <= answer.gain * min(told, done.theta / 0.5) * (1.0 + 1e-5)


def test_an_initiator_judges_by_the_unclipped_length_and_at_least_by_what_arrived():
    nodes = acquainted(clip_norm=2.0)
    _, answered = requested(nodes, "a", "f")
    assert answered.clip < 0.01
    told = nodes["a"].call(calls.Apply("f", 0, 0, answered.payload, answered.borne, answered.share, answered.clip))
    assert told.far.distance == pytest.approx(FAR * nodes["a"].replica.x.numel() ** 0.5, rel=0.15)
    nodes = acquainted(clip_norm=2.0)
    _, answered = requested(nodes, "a", "f")
    assert nodes["a"].call(calls.Apply("f", 0, 0, answered.payload, answered.borne, answered.share, 1.0)).far is None


def test_distances_over_some_coordinates_estimate_those_over_all():
    whole = acquainted()["a"].call(calls.Offer("e", 0, 0, 0, 0.5)).reference
    part = CompressSection(select="mask", ratio=0.5, request="identity", response="identity")
    estimate = acquainted(compress=part)["a"].call(calls.Offer("e", 0, 0, 0, 0.5)).reference
    assert estimate == pytest.approx(whole, rel=0.35)


@pytest.mark.parametrize("pace", ["steps", "clock"])
def test_a_nodes_own_steps_bound_its_first_exchange(pace):
    """All nodes begin with one model, so a peer cannot be much farther away than the node's own steps."""
    engine = opened(manifest(pace=pace, mix=MixSection(defended=True)))
    engine.handle(calls.Train(0, 5) if pace == "steps" else calls.Free(True, 0))
    for _ in range(5):
        engine.step()
    before = opened(manifest(pace=pace, mix=MixSection(defended=True))).trainer.replica.x
    went = float((engine.trainer.replica.x - before).norm())
    reference = engine.handle(calls.Offer("b", 0, 1, 0, 0.5)).reference
    assert reference == pytest.approx(UNTRUSTED * OWN * went, rel=1e-4)
