"""An engine that lies: what peers are told and sent, what it learns from, and what it does to itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from starling.gossip.compress import codec
from starling.gossip.compress.catalogue import quantizer
from starling.gossip.exchange.attestation import digest
from starling.node.config.schema import CompressSection, Manifest, MixSection, PrivacySection
from starling.node.engine.byzantine import MAX_RECEIVED, Adversary, ByzantineSession
from starling.node.engine.engine import Engine
from starling.node.engine.session import Session
from starling.node.rpc import calls
from starling.robust.attacks.catalogue import targeting
from tests.harness.engines import done, exchange, manifest, opened, opening, run

WIRE = targeting("wire")

EXACT = CompressSection(select="full", request="identity", response="identity")


def agreed(mix: str = "dsgd", clip: float = 0.0, **given: Any) -> Manifest:
    """A swarm whose vectors cross the wire as they are."""
    return manifest(mix=MixSection(kind=mix, clip_norm=clip), compress=EXACT, **given)


def opening_of_liar(swarm: Manifest, attack: str, node: str = "a", shard: int = 0, **params: Any) -> calls.Open:
    """The first call to a liar."""
    return msgspec.structs.replace(opening(swarm, shard, node), attack=attack, attack_params=params)


def liar(swarm: Manifest, attack: str, node: str = "a", shard: int = 0, **params: Any) -> Engine:
    """A liar, opened."""
    engine = Engine(clock=lambda: 0.0)
    reply = engine.handle(opening_of_liar(swarm, attack, node, shard, **params))
    assert isinstance(reply, calls.Opened), reply
    return engine


def memory(engine: Engine) -> Adversary:
    """What the liar remembers."""
    session: object = engine.session
    assert isinstance(session, ByzantineSession)
    return session.adversary


def trained(engine: Engine, swarm: Manifest, turn: int = 0) -> Tensor:
    """After a round's local steps: the truth."""
    done(engine, calls.Train(turn, swarm.pace.local_steps))
    return engine.vector


def offered(engine: Engine, peer: str, seq: int = 0) -> calls.Offered:
    """What it offers."""
    return done(engine, calls.Offer(peer, 0, seq, 0, 0.5, 0))


def read(payload: bytes, dim: int) -> Tensor:
    """A whole vector, as told."""
    return codec.decode(payload, dim, torch.float32, (quantizer("identity", torch.float32),))[1]


# --- what it says -------------------------------------------------------------------------------------------------


def test_a_liar_that_knows_nobody_makes_its_lie_of_its_own_vector() -> None:
    """−μ, with itself as the only honest node it knows; its own model is untouched by having lied."""
    swarm = agreed()
    engine = liar(swarm, "sign_flip")
    truth = trained(engine, swarm)
    assert torch.equal(read(offered(engine, "b").payload, truth.numel()), -truth)
    assert torch.equal(engine.vector, truth)


def test_a_liar_answers_when_it_has_read_the_offer() -> None:
    """μ is then the mean of the two: what it answers is the difference between −μ and the offer, to the last float."""
    swarm = agreed()
    honest, engine = opened(swarm, 1, "b"), liar(swarm, "sign_flip", node="c")
    theirs, own = trained(honest, swarm), trained(engine, swarm)
    offer = offered(honest, "c")
    answered = done(engine, calls.Answer("b", 0, 0, 0, 0.5, offer.gain, offer.payload))
    done(honest, calls.Apply("c", 0, 0, answered.payload))
    done(honest, calls.Mix(0))
    lie = -(own + theirs) / 2
    assert torch.allclose(honest.vector, (theirs + lie) / 2, atol=1e-5)


def test_dissensus_knows_its_receiver() -> None:
    """x_i + 3(x_i − μ) with μ the mean of the two: each receiver gets its own lie."""
    swarm = agreed()
    honest, engine = opened(swarm, 1, "b"), liar(swarm, "dissensus", node="c")
    theirs, own = trained(honest, swarm), trained(engine, swarm)
    offer = offered(honest, "c")
    answered = done(engine, calls.Answer("b", 0, 0, 0, 0.5, offer.gain, offer.payload))
    done(honest, calls.Apply("c", 0, 0, answered.payload))
    done(honest, calls.Mix(0))
    lie = theirs + 3.0 * (theirs - (own + theirs) / 2)
    assert torch.allclose(honest.vector, (theirs + lie) / 2, atol=1e-5)


def test_attackers_do_not_believe_each_other() -> None:
    """Or their lies would feed on each other, and −10 μ grow tenfold a round."""
    swarm = agreed()
    fellow, engine = liar(swarm, "foe", node="b", crew="b,c"), liar(swarm, "foe", node="c", crew="b,c")
    trained(fellow, swarm)
    own = trained(engine, swarm)
    offer = offered(fellow, "c")
    done(engine, calls.Answer("b", 0, 0, 0, 0.5, offer.gain, offer.payload))
    assert torch.allclose(read(offered(engine, "a").payload, own.numel()), -10.0 * own)


def test_what_is_told_can_always_be_sent() -> None:
    """A lie too large for its codec would stop the liar's own node."""
    swarm = agreed()
    engine = liar(swarm, "ipm", epsilon=1e30)
    truth = trained(engine, swarm)
    told = read(offered(engine, "b").payload, truth.numel())
    assert float(told.abs().max()) == pytest.approx(6e4)


def test_in_clock_pace_lies_are_about_the_live_vector() -> None:
    """There is no frozen one."""
    swarm = agreed(mix="pet", pace="clock")
    engine = liar(swarm, "sign_flip")
    done(engine, calls.Free(on=True, round=0))
    for _ in range(3):
        engine.step()
    truth = engine.vector
    assert torch.equal(read(offered(engine, "b").payload, truth.numel()), -truth)


def test_a_lie_about_the_tracker_leaves_the_model_honest() -> None:
    """The second half of what gradient tracking tells; −ȳ with itself as the only one it knows."""
    swarm = agreed(mix="gradient_tracking")
    engine = liar(swarm, "tracker_neg")
    x = trained(engine, swarm)
    told = read(offered(engine, "b").payload, 2 * x.numel())
    honest = opened(swarm, 0, "a")
    trained(honest, swarm)
    truth = read(offered(honest, "b").payload, 2 * x.numel())
    assert torch.equal(told[: x.numel()], x)
    assert torch.equal(told[x.numel() :], -truth[x.numel() :])


def test_a_lie_about_the_model_leaves_the_tracker_honest() -> None:
    """Attacks of vectors are about models."""
    swarm = agreed(mix="gradient_tracking")
    engine, honest = liar(swarm, "sign_flip"), opened(swarm, 0, "a")
    x = trained(engine, swarm)
    trained(honest, swarm)
    told, truth = (read(offered(each, "b").payload, 2 * x.numel()) for each in (engine, honest))
    assert torch.equal(told[: x.numel()], -x)
    assert torch.equal(told[x.numel() :], truth[x.numel() :])


def test_who_lies_about_its_tracker_claims_norms_that_bound_nothing() -> None:
    """What a peer claims must not be all that bounds it; the model is honest still."""
    swarm = agreed(mix="defended_tracking")
    engine = liar(swarm, "tracker_neg")
    x = trained(engine, swarm)
    told = read(offered(engine, "b").payload, 2 * x.numel() + 2)
    assert torch.equal(told[: x.numel()], x)
    assert told[2 * x.numel() :].tolist() == [6e4, 6e4]


# --- what it does to itself ---------------------------------------------------------------------------------------


def mixed_with_a_liar(swarm: Manifest, me: str, other: str) -> tuple[Tensor, Tensor, Tensor]:
    """`me` flips signs and mixes itself with `other` as if it had not -> what both had, and what came of `other`."""
    engines = {me: liar(swarm, "sign_flip", node=me), other: opened(swarm, 1, other)}
    own, theirs = (trained(engines[peer], swarm) for peer in (me, other))
    exchange(engines, me, other, seq=0)
    for engine in engines.values():
        done(engine, calls.Mix(0))
    assert torch.allclose(engines[me].vector, (own + theirs) / 2, atol=1e-5)
    return own, theirs, engines[other].vector


@pytest.mark.parametrize(("me", "other"), [("a", "b"), ("c", "b")])
def test_its_own_model_mixes_as_if_it_had_told_the_truth(me: str, other: str) -> None:
    """As initiator (the lesser id) and as responder; the victim is pulled to the lie, the liar to the victim."""
    swarm = agreed()
    own, theirs, told = mixed_with_a_liar(swarm, me, other)
    lie = -own if me < other else -(own + theirs) / 2
    assert torch.allclose(told, (theirs + lie) / 2, atol=1e-5)


@pytest.mark.parametrize(("me", "other"), [("a", "b"), ("c", "b")])
def test_who_swaps_lies_moves_from_where_it_is(me: str, other: str) -> None:
    """Messages that are swapped are lies for the other end alone."""
    mix = MixSection(kind="defended_tracking", tracker_clip=0.0, tracker_leak=0.0, tracker_cap=0.0, step_clip=0.0)
    swarm = manifest(mix=mix, compress=EXACT)
    own, theirs, told = mixed_with_a_liar(swarm, me, other)
    assert torch.allclose(told, (theirs - own) / 2, atol=1e-5)


@pytest.mark.parametrize(("me", "other"), [("a", "b"), ("c", "b")])
def test_a_lie_so_large_that_it_is_clipped_does_not_drag_the_liar_along(me: str, other: str) -> None:
    """It then knows what the peer has only if it answered; otherwise the exchange does nothing to it."""
    swarm = agreed(clip=0.1)
    engines = {me: liar(swarm, "foe", node=me), other: opened(swarm, 1, other)}
    own, theirs = (trained(engines[peer], swarm) for peer in (me, other))
    exchange(engines, me, other, seq=0)
    for engine in engines.values():
        done(engine, calls.Mix(0))
    expected = own if me < other else (own + theirs) / 2
    assert torch.allclose(engines[me].vector, expected, atol=1e-5)
    assert 0.03 < float((engines[other].vector - theirs).norm()) <= 0.05 + 1e-6


def test_a_liar_remembers_a_bounded_number_of_vectors() -> None:
    """The newest; peers come and go."""
    swarm = agreed()
    engine, honest = liar(swarm, "alie", node="zz"), opened(swarm, 1, "b")
    trained(engine, swarm)
    trained(honest, swarm)
    payload = offered(honest, "zz").payload
    for number in range(3 * MAX_RECEIVED):
        done(engine, calls.Answer(f"peer-{number:02}", 0, 0, 0, 0.5, 0.0, payload))
    held = memory(engine)
    assert list(held._received) == [f"peer-{n:02}" for n in range(2 * MAX_RECEIVED, 3 * MAX_RECEIVED)]
    assert len(held._forged) <= MAX_RECEIVED


def test_a_liar_replays() -> None:
    """Its chance is derived like all other chance."""
    swarm = agreed()
    told = []
    for _ in range(2):
        engine = liar(swarm, "gaussian")
        trained(engine, swarm)
        told.append(offered(engine, "b").payload)
    assert told[0] == told[1]


# --- bytes, data --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(WIRE) - {"huge"}))
def test_hostile_payloads_are_refused_by_an_honest_engine_and_change_nothing(name: str) -> None:
    """As a fault of the peer, in offers and in answers."""
    swarm = agreed(clip=10.0)
    engine, honest = liar(swarm, name), opened(swarm, 1, "b")
    trained(engine, swarm)
    before = trained(honest, swarm)
    offer = offered(engine, "b")
    refused = run(honest, calls.Answer("a", 0, 0, 0, 0.5, offer.gain, offer.payload))
    assert isinstance(refused, calls.Refused)
    assert refused.kind == "peer"
    asked = offered(honest, "a", seq=1)
    answered = done(engine, calls.Answer("b", 0, 1, 0, 0.5, asked.gain, asked.payload))
    refused = run(honest, calls.Apply("a", 0, 1, answered.payload))
    assert isinstance(refused, calls.Refused)
    assert refused.kind == "peer"
    done(honest, calls.Mix(0))
    assert torch.equal(honest.vector, before)


def test_a_liar_learns_from_flipped_labels_and_is_measured_on_honest_ones() -> None:
    """Its protocol is honest: what it tells is what it has learned."""
    swarm = agreed()
    engine, honest = liar(swarm, "label_flip"), opened(swarm, 0, "a")
    for turn in range(15):
        truth = trained(engine, swarm, turn)
        told = read(offered(engine, "b").payload, truth.numel())
        trained(honest, swarm, turn)
        done(engine, calls.Mix(turn))
        done(honest, calls.Mix(turn))
    assert torch.equal(told, truth)
    measured = [run(each, calls.Evaluate()) for each in (engine, honest)]
    assert measured[0].samples == measured[1].samples
    assert measured[0].value < measured[1].value - 0.2


@pytest.mark.parametrize(
    ("attack", "params", "given", "words"),
    [
        ("alie", {"zz": 1}, {}, "attack_params.zz: alie has no such key"),
        ("stale", {"lag": 99}, {}, "lag must be in"),
        ("tracker_neg", {}, {}, "tells none; it needs one of beer, defended_tracking, gradient_tracking, k_gt"),
        ("label_flip", {}, {"kind": "quadratic"}, "needs samples with labels"),
        ("backdoor", {"target": 10}, {}, "class 10 must be < 10"),
        ("sleeper", {}, {"rounds": 0}, "pace.rounds = 0 is endless"),
    ],
)
def test_an_attack_that_cannot_be_is_refused_when_the_engine_opens(
    attack: str, params: dict[str, Any], given: dict[str, Any], words: str
) -> None:
    """In one line for a person."""
    reply = Engine(clock=lambda: 0.0).handle(opening_of_liar(agreed(**given), attack, **params))
    assert isinstance(reply, calls.Refused)
    assert reply.kind == "config"
    assert words in reply.reason
    assert "\n" not in reply.reason


def test_poisoned_data_and_noised_steps_do_not_go_together() -> None:
    """The noised step would take the honest samples."""
    asked = msgspec.structs.replace(opening_of_liar(agreed(), "label_flip"), privacy=PrivacySection(noise=1.0))
    reply = Engine(clock=lambda: 0.0).handle(asked)
    assert isinstance(reply, calls.Refused)
    assert "privacy.noise=0" in reply.reason


# --- pulled vectors -----------------------------------------------------------------------------------------------


def test_a_published_lie_is_signed_as_it_is_sent() -> None:
    """The digest is of the hostile bytes, so that they are found hostile and not forged."""
    swarm = agreed(mix="gather")
    engine = liar(swarm, "nan")
    trained(engine, swarm)
    published = done(engine, calls.Publish(0))
    assert published.digest == digest(published.payload)
    honest = opened(swarm, 1, "b")
    trained(honest, swarm)
    refused = run(honest, calls.VerifyUpdate("a", published.digest, published.payload))
    assert isinstance(refused, calls.Refused)
    assert refused.reason == "not_finite"


def test_a_liar_that_gathers_lies_about_what_it_was_told_in_the_round_before() -> None:
    """μ of itself and the peers it asked; what it combines for itself is the truth."""
    swarm = agreed(mix="gather")
    engine, honest = liar(swarm, "sign_flip"), opened(swarm, 1, "b")
    trained(engine, swarm)
    theirs = trained(honest, swarm)
    published = done(honest, calls.Publish(0))
    done(engine, calls.VerifyUpdate("b", published.digest, published.payload))
    done(engine, calls.Mix(0, ("b", "c")))
    own = trained(engine, swarm, 1)
    told = read(done(engine, calls.Publish(1)).payload, own.numel())
    assert torch.allclose(told, -(own + theirs) / 2, atol=1e-6)


def test_only_a_node_that_was_asked_to_attack_has_an_adversary() -> None:
    """It is chosen once, when the session opens; an honest session has no place for one."""
    swarm = agreed()
    assert type(opened(swarm).session) is Session
    assert type(liar(swarm, "sign_flip").session) is ByzantineSession
