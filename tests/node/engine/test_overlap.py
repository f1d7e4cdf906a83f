"""Engines whose exchanges overlap the local steps of the next round."""

import pytest
import torch

from starling.gossip.errors import LocalProtocolError
from starling.node.config.schema import CompressSection, OptimizerSection
from starling.node.rpc import calls
from tests.harness.engines import done, every, exchange, manifest, opened, state_of, x_of

WHOLE = CompressSection(select="full", request="identity", response="identity")
ROUNDS, STEPS, THETA = 6, 3, 0.4


def pair(mix):
    """Return two nodes of a quadratic each, with an engine for each of `copies`."""
    agreed = manifest(
        "quadratic",
        2,
        mix=mix,
        compress=WHOLE,
        optimizer=OptimizerSection(lr=0.02, schedule="constant"),
        local_steps=STEPS,
        rounds=ROUNDS,
        overlap=True,
    )
    return agreed, {name: opened(agreed, shard, node=name) for shard, name in enumerate("ab")}


def overlapped(engines, rounds):
    """Run rounds whose local steps overlap the exchange of the round before; return the models after each Mix."""
    models = []
    every(engines, calls.Train(0, STEPS))
    for turn in range(rounds):
        for engine in engines.values():
            assert engine.handle(calls.Train(turn + 1, STEPS, ahead=True)) is None
            engine.step()  # the exchange comes between two local steps
        exchange(engines, "a", "b", seq=turn + 1, round=turn, theta=THETA)
        for engine in engines.values():
            while engine.step() is None:
                pass
        every(engines, calls.Mix(turn))
        models.append({name: x_of(engine).clone() for name, engine in engines.items()})
    return models


def test_overlapped_rounds_mix_the_frozen_vectors_and_add_local_steps():
    """s' = W s + (local steps from s) − s, where s is what was frozen."""
    _, engines = pair("dsgd")
    _, alone = pair("dsgd")
    every(alone, calls.Train(0, STEPS))
    frozen = {name: x_of(engine).clone() for name, engine in alone.items()}
    for turn, models in enumerate(overlapped(engines, ROUNDS)):
        other = {"a": frozen["b"], "b": frozen["a"]}
        mixed = {name: s + THETA * (other[name] - s) for name, s in frozen.items()}
        every(alone, calls.Train(turn + 1, STEPS))
        stepped = {name: x_of(engine).clone() for name, engine in alone.items()}
        frozen = {name: mixed[name] + stepped[name] - frozen[name] for name in frozen}
        for name, engine in alone.items():
            assert torch.allclose(models[name], frozen[name], rtol=0, atol=1e-12)
            engine.replica.x.copy_(frozen[name])


def test_overlapped_flows_cancel_and_apply_two_rounds_later():
    _, engines = pair("pet")
    overlapped(engines, ROUNDS)
    flows = {name: state_of(engine).flows[other] for (name, engine), other in zip(engines.items(), "ba", strict=True)}
    assert torch.equal(flows["a"], -flows["b"])
    assert float(flows["a"].norm()) > 0.0


def test_a_frozen_vector_does_not_change_until_its_mix():
    _, engines = pair("dsgd")
    engine = engines["a"]
    done(engine, calls.Train(0, STEPS))
    before = engine.session.rounds.vectors.vector("b").clone()
    done(engine, calls.Train(1, STEPS, ahead=True))
    assert torch.equal(engine.session.rounds.vectors.vector("b"), before)
    assert not torch.equal(x_of(engine), before)
    done(engine, calls.Mix(0))
    assert torch.equal(engine.session.rounds.vectors.vector("b"), x_of(engine)), "that of the next round"


def test_mix_is_refused_while_local_steps_remain():
    _, engines = pair("dsgd")
    engine = engines["a"]
    done(engine, calls.Train(0, STEPS))
    engine.handle(calls.Train(1, STEPS, ahead=True))
    with pytest.raises(LocalProtocolError, match="left to do"):
        engine.session.handle(calls.Mix(0))


def test_without_a_frozen_vector_there_is_no_overlap():
    """After a restart of the engine, for example, the steps belong to an ordinary round."""
    _, engines = pair("dsgd")
    engine = engines["a"]
    done(engine, calls.Train(3, STEPS, ahead=True))
    assert torch.equal(engine.session.rounds.vectors.vector("b"), x_of(engine))
