"""A Byzantine engine: its messages to peers, the vectors it learns from, and what an exchange does to its own model."""

import msgspec
import pytest
import torch

from starling.gossip.compress import codec
from starling.gossip.compress.catalogue import quantizer
from starling.gossip.exchange.attestation import digest
from starling.node.config.schema import CompressSection, MixSection, OptimizerSection, PrivacySection
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from tests.harness.attack_scenes import targeting
from tests.harness.engines import done, every, exchange, manifest, open_request, opened, refused_as, run

EXACT = CompressSection(select="full", request="identity", response="identity")
BOTH_ENDS = pytest.mark.parametrize(("me", "other"), [("a", "b"), ("c", "b")], ids=["initiator", "responder"])
DIM = 4810


def agreed(mix="dsgd", clip=0.0, **given):
    return manifest(mix=MixSection(kind=mix, clip_norm=clip, defended=False), compress=EXACT, **given)


def reply_to(swarm, attack, node="a", shard=0, privacy=PrivacySection(), **params):  # noqa: B008
    engine = Worker(clock=lambda: 0.0)
    call = msgspec.structs.replace(open_request(swarm, shard, node), attack=attack, attack_params=params, privacy=privacy)
    return engine, engine.handle(call)


def liar(swarm, attack, node="a", shard=0, **params):
    engine, reply = reply_to(swarm, attack, node, shard, **params)
    assert isinstance(reply, calls.Opened), reply
    return engine


def trained(engine, swarm, turn=0):
    done(engine, calls.Train(turn, swarm.pace.local_steps))
    return engine.vector


def offered(engine, peer, seq=0):
    return done(engine, calls.Offer(peer, 0, seq, 0, 0.5, 0))


def read(payload, dim=DIM):
    return codec.decode(payload, dim, torch.float32, (quantizer("identity", torch.float32),))[1]


def sent(engine, dim=DIM):
    return read(offered(engine, "b").payload, dim)


def mixed(engines, one, other):
    exchange(engines, one, other, seq=0)
    every(engines, calls.Mix(0))


def test_an_attacker_that_knows_no_other_vector_forges_from_its_own():
    """It sends −μ, with itself as the only honest node it knows; its own model does not change."""
    swarm = agreed()
    engine = liar(swarm, "sign_flip")
    truth = trained(engine, swarm)
    assert torch.equal(sent(engine), -truth)
    assert torch.equal(engine.vector, truth)


@pytest.mark.parametrize(
    ("attack", "lie"),
    [
        ("sign_flip", lambda own, theirs: -(own + theirs) / 2),
        ("dissensus", lambda own, theirs: theirs + 3.0 * (theirs - (own + theirs) / 2)),
    ],
)
def test_an_answer_is_forged_when_the_offer_is_known(attack, lie):
    """μ is then the mean of the two, and dissensus knows its receiver's vector."""
    swarm = agreed()
    honest, engine = opened(swarm, 1, "b"), liar(swarm, attack, node="c")
    theirs, own = trained(honest, swarm), trained(engine, swarm)
    mixed({"b": honest, "c": engine}, "b", "c")
    assert torch.allclose(honest.vector, (theirs + lie(own, theirs)) / 2, atol=1e-5)


def test_attackers_ignore_each_other_s_vectors():
    """Otherwise forged vectors would feed on each other, and −10 μ grow tenfold per round."""
    swarm = agreed()
    fellow, engine = liar(swarm, "foe", node="b", crew="b,c"), liar(swarm, "foe", node="c", crew="b,c")
    trained(fellow, swarm)
    own = trained(engine, swarm)
    offer = offered(fellow, "c")
    done(engine, calls.Answer("b", 0, 0, 0, 0.5, offer.gain, offer.payload))
    assert torch.allclose(sent(engine), -10.0 * own)


def test_forged_numbers_can_always_be_encoded():
    """An error would stop the attacker's own node."""
    swarm = agreed()
    engine = liar(swarm, "ipm", epsilon=1e30)
    trained(engine, swarm)
    assert float(sent(engine).abs().max()) == pytest.approx(6e4)


def test_in_clock_pace_the_live_vector_is_forged():
    engine = liar(agreed(mix="pet", pace="clock"), "sign_flip")
    done(engine, calls.Free(on=True, round=0))
    for _ in range(3):
        engine.step()
    assert torch.equal(sent(engine), -engine.vector)


@pytest.mark.parametrize(
    ("mix", "attack", "signs", "claims"),
    [
        ("gradient_tracking", "tracker_neg", (1, -1), []),
        ("gradient_tracking", "sign_flip", (-1, 1), []),
        ("defended_tracking", "tracker_neg", (1, -1), [6e4, 6e4]),
    ],
)
def test_an_attack_forges_either_the_model_or_the_tracker(mix, attack, signs, claims):
    """Where norms are claimed, these do not bound the forged part."""
    swarm = agreed(mix=mix)
    engine, honest = liar(swarm, attack), opened(swarm, 0, "a")
    x = trained(engine, swarm)
    trained(honest, swarm)
    forged, truth = (sent(each, 2 * DIM + len(claims)) for each in (engine, honest))
    assert torch.equal(truth[:DIM], x)
    assert torch.equal(forged[:DIM], signs[0] * x)
    assert torch.equal(forged[DIM : 2 * DIM], signs[1] * truth[DIM : 2 * DIM])
    assert forged[2 * DIM :].tolist() == claims


def mixed_with_a_liar(swarm, attack, me, other):
    engines = {me: liar(swarm, attack, node=me), other: opened(swarm, 1, other)}
    before = [trained(engines[peer], swarm) for peer in (me, other)]
    mixed(engines, me, other)
    return *before, engines[me].vector, engines[other].vector


@BOTH_ENDS
def test_an_attacker_s_own_model_mixes_honestly(me, other):
    own, theirs, mine, victim = mixed_with_a_liar(agreed(), "sign_flip", me, other)
    lie = -own if me < other else -(own + theirs) / 2
    assert torch.allclose(mine, (own + theirs) / 2, atol=1e-5)
    assert torch.allclose(victim, (theirs + lie) / 2, atol=1e-5)


@BOTH_ENDS
@pytest.mark.parametrize("mix", ["pet", "moments"])
def test_a_forged_memory_affects_only_the_peer_and_is_bounded(mix, me, other):
    """The attacker's own model mixes honestly."""
    swarm = manifest(mix=mix, compress=EXACT, optimizer=OptimizerSection(kind="adamw", lr=0.01))
    engines = {me: liar(swarm, "memory_reversed", node=me, scale=100.0), other: opened(swarm, 1, other)}
    own, theirs = (trained(engines[peer], swarm) for peer in (me, other))
    before = engines[other].replica.remembered.memory.read()[0].clone()
    mixed(engines, me, other)
    after = engines[other].replica.remembered.memory.read()[0]
    assert torch.allclose(engines[me].vector, (own + theirs) / 2, atol=1e-5)
    assert torch.allclose(engines[other].vector, (own + theirs) / 2, atol=1e-5)
    assert 0.5 * float(before.norm()) < float((after - before).norm()) < 3.0 * float(before.norm())


@BOTH_ENDS
def test_forged_swapped_messages_affect_only_the_peer(me, other):
    mix = MixSection(kind="defended_tracking", tracker_clip=0.0, tracker_leak=0.0, tracker_cap=0.0, step_clip=0.0)
    own, theirs, mine, victim = mixed_with_a_liar(manifest(mix=mix, compress=EXACT), "sign_flip", me, other)
    assert torch.allclose(mine, (own + theirs) / 2, atol=1e-5)
    assert torch.allclose(victim, (theirs - own) / 2, atol=1e-5)


@BOTH_ENDS
def test_a_clipped_forged_difference_does_not_move_the_attacker(me, other):
    """It knows the peer's values only if it answered; otherwise the exchange leaves its model unchanged."""
    own, theirs, mine, victim = mixed_with_a_liar(agreed(clip=0.1), "foe", me, other)
    assert torch.allclose(mine, own if me < other else (own + theirs) / 2, atol=1e-5)
    assert 0.03 < float((victim - theirs).norm()) <= 0.05 + 1e-6


def test_an_attack_with_random_numbers_replays():
    swarm, payloads = agreed(), set()
    for _ in range(2):
        engine = liar(swarm, "gaussian")
        trained(engine, swarm)
        payloads.add(offered(engine, "b").payload)
    assert len(payloads) == 1


@pytest.mark.parametrize("name", sorted(set(targeting("wire")) - {"huge"}))
def test_hostile_payloads_are_refused_by_an_honest_engine_and_change_nothing(name):
    """They count as a fault of the peer, in offers and in answers."""
    swarm = agreed(clip=10.0)
    engine, honest = liar(swarm, name), opened(swarm, 1, "b")
    trained(engine, swarm)
    before = trained(honest, swarm)
    offer, asked = offered(engine, "b"), offered(honest, "a", seq=1)
    answered = done(engine, calls.Answer("b", 0, 1, 0, 0.5, asked.gain, asked.payload))
    for call in (calls.Answer("a", 0, 0, 0, 0.5, offer.gain, offer.payload), calls.Apply("a", 0, 1, answered.payload)):
        refused_as("peer", run(honest, call))
    done(honest, calls.Mix(0))
    assert torch.equal(honest.vector, before)


def test_an_attacker_trains_on_flipped_labels_and_evaluates_on_honest_ones():
    swarm = agreed()
    engine, honest = liar(swarm, "label_flip"), opened(swarm, 0, "a")
    for turn in range(15):
        assert torch.equal(trained(engine, swarm, turn), sent(engine))
        trained(honest, swarm, turn)
        done(engine, calls.Mix(turn))
        done(honest, calls.Mix(turn))
    poisoned, clean = (run(each, calls.Evaluate()) for each in (engine, honest))
    assert poisoned.samples == clean.samples
    assert poisoned.value < clean.value - 0.2


@pytest.mark.parametrize(
    ("attack", "params", "given", "words"),
    [
        ("alie", {"zz": 1}, {}, "attack_params.zz: alie has no such key"),
        ("stale", {"lag": 99}, {}, "lag must be >= 0 and < 16"),
        ("tracker_neg", {}, {}, "sends none; it needs one of beer, defended_tracking, gradient_tracking, k_gt"),
        ("drift_const", {}, {}, "drift_const"),
        ("memory_reversed", {}, {}, "needs mix.kind = moments or pet"),
        ("label_flip", {}, {"kind": "quadratic"}, "needs samples with labels"),
        ("label_flip", {"privacy": PrivacySection(noise=1.0)}, {}, "privacy.noise=0"),
        ("backdoor", {"target": 10}, {}, "class 10 must be < 10"),
        ("sleeper", {}, {"rounds": 0}, "pace.rounds = 0 is endless"),
    ],
)
def test_an_impossible_attack_is_refused_in_one_line_when_the_engine_opens(attack, params, given, words):
    _, reply = reply_to(agreed(**given), attack, **params)
    refused_as("config", reply, words)


def test_a_published_hostile_payload_is_signed_as_it_is_sent():
    """So it is recognised as hostile, not as forged by somebody else."""
    swarm = agreed(mix="gather")
    engine, honest = liar(swarm, "nan"), opened(swarm, 1, "b")
    trained(engine, swarm)
    trained(honest, swarm)
    published = done(engine, calls.Publish(0))
    assert published.digest == digest(published.payload)
    assert run(honest, calls.VerifyUpdate("a", published.digest, published.payload)) == calls.Refused("peer", "not_finite")


def test_an_attacker_that_pulls_forges_from_what_it_received_in_the_round_before():
    swarm = agreed(mix="gather")
    engine, honest = liar(swarm, "sign_flip"), opened(swarm, 1, "b")
    trained(engine, swarm)
    theirs = trained(honest, swarm)
    published = done(honest, calls.Publish(0))
    done(engine, calls.VerifyUpdate("b", published.digest, published.payload))
    done(engine, calls.Mix(0, ("b", "c")))
    own = trained(engine, swarm, 1)
    forged = read(done(engine, calls.Publish(1)).payload)
    assert torch.allclose(forged, -(own + theirs) / 2, atol=1e-6)
