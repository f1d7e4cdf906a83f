"""Engines that average their optimisers' memories: torch's own state, under its names, in every storage format."""

import pytest
import torch
from msgspec import structs

from starling.node.config.schema import CompressSection, MixSection, NumericsSection, OptimizerSection, PrivacySection
from starling.node.engine.memory_pieces import pieces_of
from starling.node.rpc import calls
from tests.harness.engines import done, exchange, manifest, open_request, opened, run
from tests.harness.sections import taken

FINE = MixSection(kind="moments", memory="int8", clip_norm=0.0, defended=False)
KNOWN = ("adamw", "adam", "radam", "muon", "sgd")
UNKNOWN = ("nadam", "adamax", "adagrad", "adadelta", "rmsprop", "adafactor")


def agreed(kind="adamw", mix=FINE, **changes):
    optimizer = taken(OptimizerSection, kind=kind, lr=0.002, momentum=0.9)
    exact = CompressSection(select="full", request="identity", response="identity")
    return manifest(mix=mix, optimizer=optimizer, **{"compress": exact} | changes)


def pair(given, steps=(5, 5), **options):
    """Return two engines after the given number of local steps each, on different data."""
    engines = {}
    for shard, (peer, count) in enumerate(zip("ab", steps, strict=True)):
        engine = opened(given, shard, peer)
        for _ in range(count // 5):
            done(engine, calls.Train(0, 5))
        if not count:
            done(engine, calls.Train(0, 0))
        engines[peer] = engine
    return engines


def memory(engine):
    """Return m, v and age, as exchanges see them."""
    found = engine.replica.remembered.memory
    return (*(each.clone() for each in found.read()), found.age)


def round_of(engines, seq=1):
    exchange(engines, "a", "b", seq=seq)
    for engine in engines.values():
        done(engine, calls.Mix(0))


@pytest.mark.parametrize("kind", KNOWN)
def test_both_ends_have_the_mean_of_both_memories(kind):
    """Within the codec's error: one scale for 32 numbers of m, a factor of 4 for one of v. Nothing changes before Mix."""
    engines = pair(agreed(kind))
    before = [memory(each) for each in engines.values()]
    exchange(engines, "a", "b", seq=1)
    assert all(torch.equal(memory(each)[0], was[0]) for each, was in zip(engines.values(), before, strict=True))
    for engine in engines.values():
        done(engine, calls.Mix(0))
    after = [memory(each) for each in engines.values()]
    mean, square = (sum(each[part] for each in before) / 2 for part in range(2))
    assert [each[2] for each in after] == [5, 5]
    for m, v, _ in after:
        assert float((m - mean).norm()) < 0.02 * float(mean.norm())
        assert float(v.sum()) >= 0.4 * float(square.sum())
    assert torch.allclose(after[0][0] + after[1][0], before[0][0] + before[1][0], atol=1e-5)
    state = engines["a"].trainer.means.descent.optimizer.state_dict()
    assert all(torch.isfinite(each).all() for each in state.values())
    for engine in engines.values():
        done(engine, calls.Train(1, 5))
        assert memory(engine)[2] == 10


@pytest.mark.parametrize("kind", UNKNOWN)
def test_unknown_optimisers_average_models_only_with_one_warning(kind):
    engine = opened(agreed(kind))
    (note,) = [each for turn in range(2) for each in done(engine, calls.Train(turn, 1)).notes if "moments" in each]
    assert kind in note
    assert "\n" not in note
    engines = pair(agreed(kind))
    before = [state_of(each) for each in engines.values()]
    round_of(engines)
    assert torch.allclose(engines["a"].vector, engines["b"].vector)
    for engine, was in zip(engines.values(), before, strict=True):
        assert all(torch.equal(state_of(engine)[name], each) for name, each in was.items())


def state_of(engine):
    return {name: each.clone() for name, each in engine.trainer.means.descent.optimizer.state_dict().items()}


def test_a_node_with_fewer_steps_takes_the_greater_age_for_bias_correction():
    engines = pair(agreed(), (5, 20))
    round_of(engines)
    for engine in engines.values():
        assert memory(engine)[2] == 20
        assert float(state_of(engine)["step"]) == 20.0
    ours, theirs = (memory(each)[0] for each in engines.values())
    assert float((ours - theirs).norm()) < 0.02 * float(ours.norm())


def test_a_node_without_a_memory_learns_none_from_a_single_peer():
    for steps in ((0, 10), (10, 0)):
        engines = pair(agreed(), steps)
        before = [memory(each) for each in engines.values()]
        round_of(engines)
        for engine, (mean, _, age) in zip(engines.values(), before, strict=True):
            assert memory(engine)[2] == age
            assert torch.equal(memory(engine)[0], mean)
        assert torch.allclose(engines["a"].vector, engines["b"].vector)


@pytest.mark.parametrize("moments", ["bfloat16", "int8"])
def test_memories_in_low_precision_are_averaged_too(moments):
    """Each node's owner chooses its storage format."""
    given = agreed()
    engines = pair(given)
    engine = type(engines["a"])(clock=lambda: 0.0)
    call = structs.replace(open_request(given, 0, "a"), numerics=NumericsSection(moments=moments))
    assert isinstance(engine.handle(call), calls.Opened)
    done(engine, calls.Train(0, 5))
    engines["a"] = engine
    before = [memory(each)[0] for each in engines.values()]
    round_of(engines)
    for each in engines.values():
        assert float((memory(each)[0] - sum(before) / 2).norm()) < 0.05 * float(sum(before).norm())


@pytest.mark.parametrize("changes", [{"personal": ["2.*"]}], ids=["personal"])
def test_a_partly_shared_models_memory_is_partly_shared(changes):
    engines = pair(agreed(mix=MixSection(kind="moments", memory="int8", clip_norm=0.0, **changes)))
    before = {peer: state_of(each) for peer, each in engines.items()}
    round_of(engines)
    shared = engines["a"].replica.form.numel()
    own = [state_of(each)["exp_avg"] for each in engines.values()]
    assert torch.allclose(own[0][:shared], own[1][:shared], atol=1e-3)
    for peer, mean in zip("ab", own, strict=True):
        assert torch.equal(mean[shared:], before[peer]["exp_avg"][shared:])


def test_every_parameter_has_a_part_of_the_memory():
    for kind in KNOWN:
        engine = opened(agreed(kind))
        pieces = pieces_of(engine.trainer.means.descent.optimizer)
        assert [piece.where.start for piece in pieces] == [0, *(piece.where.stop for piece in pieces[:-1])]
        assert pieces[-1].where.stop == len(engine.vector)
        assert all((piece.square is None) == (kind == "sgd" or piece.mean.endswith("buffer")) for piece in pieces)


def test_a_checkpoint_keeps_the_memory_and_its_age(tmp_path):
    given = agreed()
    engine = opened(given, checkpoint=tmp_path / "state")
    done(engine, calls.Train(0, 5))
    done(engine, calls.Mix(0))
    done(engine, calls.Save())
    before = memory(engine)
    after = memory(opened(given, checkpoint=tmp_path / "state"))
    assert before[2] == after[2] == 5
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


def test_a_node_that_noises_its_vectors_shares_no_memory():
    given = agreed()
    engine = opened(given, 1, "b")
    noisy = type(engine)(clock=lambda: 0.0)
    call = structs.replace(open_request(given, 0, "a"), privacy=PrivacySection(exchange_noise=0.01))
    assert isinstance(noisy.handle(call), calls.Opened)
    engines = {"a": noisy, "b": engine}
    notes = []
    for each in engines.values():
        notes += done(each, calls.Train(0, 5)).notes
    assert sum("stays at home" in each for each in notes) == 1
    before = [memory(each)[0] for each in engines.values()]
    round_of(engines)
    assert all(torch.equal(memory(each)[0], was) for each, was in zip(engines.values(), before, strict=True))


def test_hostile_memories_are_the_peers_fault_and_change_nothing():
    engines = pair(agreed())
    before = memory(engines["b"])
    offered = done(engines["a"], calls.Offer("b", 0, 1, 0, 0.5, 0))
    for payload in (offered.payload[:-1], offered.payload[:-12], offered.payload + b"\0", b"\xff" * len(offered.payload)):
        reply = run(engines["b"], calls.Answer("a", 0, 1, 0, 0.5, offered.gain, payload))
        assert isinstance(reply, calls.Refused)
        assert reply.kind == "peer"
    done(engines["b"], calls.Mix(0))
    assert torch.equal(memory(engines["b"])[0], before[0])
