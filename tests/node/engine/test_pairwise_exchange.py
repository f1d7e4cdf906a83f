"""Exchanges between engines: the effects at both ends, and that invalid bytes change nothing."""

import msgspec
import pytest
import torch

from starling.gossip.compress.catalogue import SELECTORS, quantizer
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.flows import chosen_kappa
from starling.gossip.rng import generator
from starling.node.config.schema import CompressSection, MixSection, OptimizerSection
from starling.node.rpc import calls
from starling.robust.clip import clip
from tests.harness.engines import done, every, exchange, manifest, opened, play, state_of, x_of
from tests.harness.sections import taken


def pair(agreed=None, *, train=True):
    agreed = agreed or manifest()
    engines = {peer: opened(agreed, shard, peer) for shard, peer in enumerate("ab")}
    for engine in engines.values() if train else ():
        if agreed.pace.kind == "steps":
            done(engine, calls.Train(0, 5))
        else:
            done(engine, calls.Free(on=True, round=0))
            for _ in range(5):
                engine.step()
    return engines


def offer(engines, seq=1, budget=0):
    offered = done(engines["a"], calls.Offer("b", 0, seq, 0, 0.5, budget))
    return calls.Answer("a", 0, seq, 0, 0.5, offered.gain, offered.payload)


@pytest.mark.slow
@pytest.mark.parametrize(("mix", "exact"), [("pet", True), ("gradient_tracking", True), ("dsgd", False)])
def test_fifty_rounds_by_hand_reach_the_common_optimum_only_with_tracking(mix, exact):
    lossless = CompressSection(select="full", request="identity", response="identity")
    agreed = manifest(
        "quadratic",
        nodes=2,
        mix=taken(MixSection, kind=mix, kappa=0.25, clip_norm=0.0, flow_limit=1e6),
        compress=lossless,
        optimizer=OptimizerSection(lr=0.1, momentum=0.0, schedule="constant"),
        params={"condition": 2.0},
    )
    engines = {peer: opened(agreed, shard, peer) for shard, peer in enumerate("ab")}
    play(engines, agreed, lambda _: [("a", "b", 0.5)])
    errors = [done(engine, calls.Evaluate()).value for engine in engines.values()]
    assert (max(errors) < 1e-6) == exact
    assert exact or min(errors) > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("select", ["budget", "full", "mask", "top_k", "drift_top_k"])
@pytest.mark.parametrize("pace", ["steps", "clock"])
def test_both_ends_apply_one_difference_with_opposite_signs(select, pace):
    engines = pair(manifest(pace=pace, compress=CompressSection(select=select)))
    mean = (x_of(engines["a"]) + x_of(engines["b"])) / 2
    for seq in range(1, 13):
        exchange(engines, "a", "b", seq=seq, budget=4000)
    if pace == "steps":
        every(engines, calls.Mix(0))
    ours, theirs = state_of(engines["a"]).flows["b"], state_of(engines["b"]).flows["a"]
    assert ours.any()
    assert torch.equal(ours, -theirs)
    torch.testing.assert_close((x_of(engines["a"]) + x_of(engines["b"])) / 2, mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("mix", "optimizer"), [("pet", "sgd"), ("pet", "adamw"), ("moments", "sgd")])
def test_a_byte_budget_is_respected(mix, optimizer):
    engines = pair(manifest(mix=mix, optimizer=OptimizerSection(kind=optimizer)))
    for budget in (600, 2000, 8000):
        call = offer(engines, seq=budget, budget=budget)
        reply = done(engines["b"], call)
        assert len(call.payload) + len(reply.payload) <= budget
    assert len(offer(engines, seq=1).payload) > 4810 * 2


COMPARING = [name for name in SELECTORS.built_in if SELECTORS.facts(name).compares]


@pytest.mark.slow
@pytest.mark.parametrize("theta", [0.5, 0.2])
@pytest.mark.parametrize("select", COMPARING)
def test_nodes_without_local_steps_reach_consensus_on_every_coordinate(select, theta):
    """For every selector, coordinates that were sent are no longer large, so all others follow. A selector of large coordinates of its own
    vector would choose the same ones in every exchange. At a weight below a half, part of each difference remains for the next one.
    """
    agreed = manifest(
        mix=MixSection(kind="dsgd", clip_norm=0.0), compress=CompressSection(select=select, request="identity", response="identity")
    )
    engines = pair(agreed, train=False)
    for name in "ab" if theta == 0.5 else "a":
        x = engines[name].replica.x
        x += torch.randn(x.shape, generator=generator(0, name))
    before = x_of(engines["a"]) - x_of(engines["b"])
    for turn in range(60):
        every(engines, calls.Train(turn, 0))
        exchange(engines, "a", "b", seq=turn + 1, round=turn, theta=theta)
        every(engines, calls.Mix(turn))
    apart = x_of(engines["a"]) - x_of(engines["b"])
    assert float(apart.abs().max()) < (1e-4 if theta == 0.5 else 0.2) * float(before.abs().max())


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.5])
def test_layers_without_a_budget_take_the_bytes_of_top_k(ratio):
    sizes = []
    for select in ("top_k", "layered"):
        engine = pair(manifest(compress=CompressSection(select=select, ratio=ratio)))["a"]
        sizes.append(len(done(engine, calls.Offer("b", 0, 1, 0, 0.5, 0)).payload))
    assert 0.9 * sizes[0] <= sizes[1] <= 1.1 * sizes[0]


def test_exchanges_of_a_round_read_the_frozen_vector_and_move_nothing_before_mix():
    engines = pair(train=False)
    assert engines["a"].handle(calls.Offer("b", 0, 1, 0, 0.5, 0)).kind == "state"
    assert engines["b"].handle(calls.Answer("a", 0, 1, 0, 0.5, 0.0, b"")).kind == "state"
    engines, again = pair(), pair()
    before = {peer: x_of(engine) for peer, engine in engines.items()}
    exchange(engines, "a", "b", seq=1)
    first = done(engines["b"], offer(engines, seq=2)).payload
    assert all(torch.equal(x_of(engine), before[peer]) for peer, engine in engines.items())
    assert done(again["b"], offer(again, seq=2)).payload == first


def test_the_order_of_answers_does_not_change_a_bit():
    """Peers are added in order of their ids, so a run replays whatever the network's order within a round."""
    results = []
    for order in (("b", "c"), ("c", "b")):
        engines = {peer: opened(manifest(), shard, peer) for shard, peer in enumerate("abc")}
        every(engines, calls.Train(0, 5))
        for peer in order:
            exchange(engines, "a", peer, seq=1, theta=1 / 3)
        done(engines["a"], calls.Mix(0))
        results.append((x_of(engines["a"]), state_of(engines["a"]).total))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("last", [False, True])
def test_an_answer_whose_ack_was_late_is_added_once_at_the_next_mix(last):
    """Also after the last round, which no Train follows: the other end has applied its half."""
    engines = pair()
    done(engines["a"], calls.Apply("b", 0, 1, done(engines["b"], offer(engines)).payload))
    every(engines, calls.Mix(0))
    if not last:
        done(engines["b"], calls.Train(1, 5))
    done(engines["b"], calls.Commit("a", 0, 1))
    before = x_of(engines["b"])
    done(engines["b"], calls.Mix(1))
    after = x_of(engines["b"])
    assert not torch.equal(after, before)
    assert torch.equal(state_of(engines["b"]).flows["a"], -state_of(engines["a"]).flows["b"])
    assert engines["b"].handle(calls.Offer("a", 0, 2, 1, 0.5, 0)).kind == "state", "it is thawed again"
    done(engines["b"], calls.Mix(2))
    assert torch.equal(x_of(engines["b"]), after)


def test_a_transaction_is_committed_once_by_its_own_number_and_not_after_it_was_dropped():
    engines = pair()
    response = done(engines["b"], offer(engines)).payload
    assert engines["a"].handle(calls.Apply("b", 0, 2, response)).kind == "state"
    assert engines["b"].handle(calls.Commit("a", 1, 1)).kind == "state"
    done(engines["a"], calls.Apply("b", 0, 1, response))
    done(engines["b"], calls.Commit("a", 0, 1))
    done(engines["b"], offer(engines, seq=2))
    done(engines["a"], calls.Drop("b", 0, 2))
    done(engines["b"], calls.Drop("a", 0, 2))
    for seq in (1, 2):
        assert engines["a"].handle(calls.Apply("b", 0, seq, response)).kind == "state"
        assert engines["b"].handle(calls.Commit("a", 0, seq)).kind == "state"
    again = pair()
    done(again["b"], offer(again))
    done(again["b"], calls.Drop("a", 0, 1))
    before = x_of(again["b"])
    done(again["b"], calls.Mix(0))
    assert torch.equal(x_of(again["b"]), before)


def test_in_clock_pace_effects_are_added_at_once():
    engines = pair(manifest(pace="clock"))
    before = x_of(engines["a"])
    exchange(engines, "a", "b", seq=1)
    assert not torch.equal(x_of(engines["a"]), before)


def test_two_concurrent_answers_do_not_overshoot():
    """A responder counts the effects it has promised: otherwise two concurrent initiators would make it overshoot."""
    agreed = manifest(pace="clock", mix=MixSection(clip_norm=0.0), compress=CompressSection(request="identity", response="identity"))
    engines = {peer: opened(agreed, shard, peer) for shard, peer in enumerate("abc")}
    done(engines["c"], calls.Free(on=True, round=0))
    for _ in range(20):
        engines["c"].step()
    target = x_of(engines["a"])  # a and b still have the initial model
    apart = float((x_of(engines["c"]) - target).norm())
    for peer in "ab":
        offered = done(engines[peer], calls.Offer("c", 0, 1, 0, 0.5, 0))
        done(engines["c"], calls.Answer(peer, 0, 1, 0, 0.5, offered.gain, offered.payload))
    for peer in "ab":
        done(engines["c"], calls.Commit(peer, 0, 1))
    assert float((x_of(engines["c"]) - target).norm()) == pytest.approx(apart / 4, rel=1e-3)


def test_the_gain_shrinks_with_the_members_that_exchange():
    """Flows of many edges overlap before they are compared again."""
    engines = pair(manifest(local_steps=4))
    few, many = (done(engines["a"], calls.Offer("b", 0, seq, 0, 0.5, 0, members=members)).gain for seq, members in ((1, 2), (2, 1 << 12)))
    assert many == pytest.approx(few * chosen_kappa(1 << 12) / chosen_kappa(2))
    assert many < few


def test_the_gain_shrinks_with_the_local_steps_that_fit_between_exchanges():
    """G divides by K; otherwise a node that meets others rarely would correct too much."""
    agreed = manifest(pace="clock", local_steps=4, optimizer=OptimizerSection(schedule="constant"))
    engines = pair(agreed)
    gains = []
    for seq in range(1, 40):
        done(engines["a"], calls.Free(on=True, round=0))
        for _ in range(8):
            engines["a"].step()
        exchange(engines, "a", "b", seq=seq)
        gains.append(done(engines["a"], calls.Offer("b", 0, 100 + seq, 0, 0.5, 0)).gain)
    eta = 0.02 / (1 - 0.9)
    assert gains[-1] == pytest.approx(2 * chosen_kappa() * 0.5 / (16 * eta), rel=0.05)
    for _ in range(100):
        engines["a"].step()
    assert done(engines["a"], calls.Offer("b", 0, 200, 0, 0.5, 0)).gain == pytest.approx(2 * chosen_kappa() * 0.5 / (100 * eta))


EXCHANGED = pair()
REQUEST = offer(EXCHANGED)


def facts(engine):
    state = state_of(engine)
    return [x_of(engine), state.total, *state.flows.values()]


def refused_without_a_trace(engine, call):
    before = facts(engine)
    reply = engine.handle(call)
    assert all(torch.equal(one, other) for one, other in zip(before, facts(engine), strict=True))
    return reply


def test_a_response_longer_than_the_agreed_clip_is_refused():
    """A responder clips; the initiator checks that it did."""
    agreed = manifest(mix=MixSection(clip_norm=0.01))
    engines = pair(agreed)
    call = offer(engines)
    honest = done(engines["b"], call).payload
    codec = ExchangeCodec(quantizer("fp16", torch.float32), quantizer("int4", torch.float32), 0.0, clip)
    _, theirs = codec.decode_request(call.payload, 4810, torch.float32)
    unclipped, _ = codec.encode_difference(x_of(engines["b"]) - theirs, 4810, generator(0, "liar"))
    refused = refused_without_a_trace(engines["a"], calls.Apply("b", 0, 1, unclipped))
    assert refused == calls.Refused("peer", "clip_norm_exceeded")
    done(engines["a"], calls.Apply("b", 0, 1, honest))


@pytest.mark.parametrize(
    ("theta", "gain", "reason"),
    [
        *((theta, 0.0, "theta_out_of_bounds") for theta in (0.0, 1.0, float("nan"))),
        *((0.5, gain, "gain_out_of_bounds") for gain in (-1e-9, float("nan"), 1e9)),
    ],
)
def test_an_initiator_s_weight_and_gain_must_follow_the_manifest(theta, gain, reason):
    call = calls.Answer("a", 0, 9, 0, theta, gain, REQUEST.payload)
    assert refused_without_a_trace(EXCHANGED["b"], call) == calls.Refused("peer", reason)


@pytest.mark.parametrize("kappa", [0.1, None])
@pytest.mark.parametrize(("factor", "accepted"), [(0.0, True), (1.0, True), (1.001, False), (50.0, False)])
def test_a_gain_up_to_the_manifest_s_is_accepted_and_no_larger_one(factor, accepted, kappa):
    """A larger gain would let a peer push the correction past its stability limit."""
    engines = pair(manifest(mix=MixSection(kappa=kappa), optimizer=OptimizerSection(warmup=0.5)))
    call = offer(engines)
    assert call.gain > 0.0
    reply = engines["b"].handle(calls.Answer("a", 0, 1, 0, 0.5, factor * call.gain, call.payload))
    if accepted:
        assert isinstance(reply, calls.Answered)
    else:
        assert reply == calls.Refused("peer", "gain_out_of_bounds")


@pytest.mark.parametrize("pace", ["steps", "clock"])
def test_the_gain_of_an_exchange_is_that_of_its_round_at_both_ends(pace):
    """It grows as lr decays. A node that is a few rounds away accepts exactly that gain and no larger one."""
    agreed = manifest(pace=pace, local_steps=1, optimizer=OptimizerSection(warmup=0.2, floor=0.3, momentum=0.0), mix=MixSection(kappa=0.2))
    engines, gains = pair(agreed), []
    done(engines["b"], calls.Train(22, 0) if pace == "steps" else calls.Free(on=True, round=22))
    for turn in (20, 25, 28):  # with K = 20, as here; 0 in steps pace, which the daemon would refuse
        offered = done(engines["a"], calls.Offer("b", 0, turn + 1, turn, 0.5, 0))
        call = calls.Answer("a", 0, turn + 1, turn, 0.5, offered.gain, offered.payload)
        done(engines["b"], call)
        done(engines["b"], calls.Drop("a", 0, turn + 1))
        if pace == "steps":
            over = msgspec.structs.replace(call, gain=offered.gain * 1.001)
            assert refused_without_a_trace(engines["b"], over) == calls.Refused("peer", "gain_out_of_bounds")
        gains.append(offered.gain)
    assert gains == sorted(gains)
    assert gains[-1] > 1.1 * gains[0]


def test_an_initiator_cannot_gain_by_naming_a_far_round():
    """In clock pace a request's round is not checked: late rounds have the largest gain, as does warm-up."""
    agreed = manifest(local_steps=5, optimizer=OptimizerSection(warmup=0.2, floor=0.3), mix=MixSection(kappa=0.1))
    engines = pair(agreed)
    done(engines["b"], calls.Train(12, 0))
    for turn, accepted in ((12, True), (20, True), (21, False), (49, False), (0, False)):
        offered = done(engines["a"], calls.Offer("b", 0, turn + 1, turn, 0.5, 0))
        reply = engines["b"].handle(calls.Answer("a", 0, turn + 1, turn, 0.5, offered.gain, offered.payload))
        assert isinstance(reply, calls.Answered) == accepted, turn
        done(engines["b"], calls.Drop("a", 0, turn + 1))


@pytest.mark.parametrize(
    ("clip_norm", "response", "clipped"),
    [(0.01, "int4", True), (0.01, "fp16", True), (0.01, "int8", True), (1e3, "int4", False), (0.0, "int4", False)],
)
def test_both_ends_report_whether_their_difference_was_clipped(clip_norm, response, clipped):
    engines = pair(manifest(mix=MixSection(clip_norm=clip_norm), compress=CompressSection(response=response)))
    call = offer(engines)
    answered = done(engines["b"], call)
    assert done(engines["a"], calls.Apply("b", 0, 1, answered.payload)).clipped == clipped
    assert done(engines["b"], calls.Commit("a", 0, 1)).clipped == clipped


@pytest.mark.parametrize(("call", "stays"), [(calls.Revoke("b"), False), (calls.Settle("b"), True)], ids=["revoked", "settled"])
def test_committed_effects_are_revoked_and_closed_with_the_peers_flow(call, stays):
    exact = CompressSection(select="full", request="identity", response="identity")
    engines = pair(manifest("quadratic", nodes=2, mix=MixSection(clip_norm=0.0), compress=exact))
    exchange(engines, "a", "b", seq=1)
    done(engines["a"], call)
    assert bool(state_of(engines["a"]).total.any()) == stays
    done(engines["a"], calls.Mix(0))
    assert bool(state_of(engines["a"]).total.any()) == stays
    done(engines["a"], calls.Revoke("b"))
    assert not state_of(engines["a"]).total.any()
