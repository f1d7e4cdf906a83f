"""A script that does a task's local steps ends with the same bits as the task."""

import pytest
import torch
from msgspec import structs

from starling.gossip.vector import flatten, layout
from starling.node.config.schema import CompressSection, OptimizerSection, OverlaySection, RobustSection
from starling.node.engine.pieces import hidden_matrices
from starling.node.rpc import calls
from tests.harness.engines import done, every, exchange, manifest, opened, x_of
from tests.harness.scripts import Scripted, replayed, running

ROUNDS, STEPS = 6, 4


def sgd(model, lr):
    return [torch.optim.SGD(model.parameters(), lr, momentum=0.9)]


def adamw(model, lr):
    return [torch.optim.AdamW(model.parameters(), lr, weight_decay=0.0)]


def muon(model, lr):
    names = hidden_matrices(model)
    hidden, others = ([each for name, each in model.named_parameters() if (name in names) is is_it] for is_it in (True, False))
    return [
        torch.optim.Muon(hidden, lr, momentum=0.95, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr, weight_decay=0.0),
    ]


OPTIMIZERS = {"sgd": sgd, "adamw": adamw, "muon": muon}


def pairwise(engines, number):
    """Do the exchange of a round, and the Mix."""
    exchange(engines, "a", "b", seq=number + 1, round=number)
    every(engines, calls.Mix(number))


def pulled(engines, number):
    """Exchange vectors or messages between both nodes."""
    published = {name: done(engine, calls.Publish(number)) for name, engine in engines.items()}
    for name, other in ("ab", "ba"):
        vector = published[other]
        done(engines[name], calls.VerifyUpdate(other, vector.digest, vector.payload))
        done(engines[name], calls.Mix(number, (other,)))


def mixed(engines, exchanged=pairwise, last=True):
    """Run rounds of two engines that exchange; return the first one's models after each."""
    models = []
    for number in range(ROUNDS):
        for engine in engines.values():
            done(engine, calls.Train(number, STEPS, first=True, last=last, turn=number))
        exchanged(engines, number)
        models.append(x_of(engines["a"]).clone())
    return models


def both(agreed, folder, optimizers, exchanged):
    """Assert that a script in place of a task's local steps gives the same bits after each round, also in its own parameters."""
    of_task = mixed({name: opened(agreed, shard, node=name) for shard, name in enumerate("ab")}, exchanged)
    engines = {"a": Scripted(agreed, folder), "b": opened(agreed, 1, node="b")}
    with running(replayed, agreed, folder, optimizers) as script:
        of_script = mixed(engines, exchanged)
        done(engines["a"], calls.Save(final=True))
        done(engines["a"], calls.Stop())
    for number, (one, other) in enumerate(zip(of_task, of_script, strict=True)):
        assert torch.equal(one, other), f"round {number}: {float((one - other).abs().max()):g} apart"
    assert torch.equal(flatten(script.value, layout(script.value)), of_task[-1])


def agreement(kind, mix, **changes):
    return manifest("digits", 2, mix=mix, local_steps=STEPS, rounds=ROUNDS, optimizer=OptimizerSection(kind=kind, lr=0.01), **changes)


@pytest.mark.parametrize("mix", ["pet", "dsgd"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_scripts_equal_tasks_in_pairwise_exchanges(tmp_path, kind, mix):
    """Flows of sgd, memories of adamw and muon, and neither: corrections and memories pass through the script."""
    both(agreement(kind, mix), tmp_path, OPTIMIZERS[kind], pairwise)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_scripts_equal_tasks_with_a_robust_rule(tmp_path, kind):
    agreed = structs.replace(
        agreement(kind, "gather", compress=CompressSection(select="full")),
        overlay=OverlaySection(kind="pull"),
        robust=RobustSection(rule="median"),
    )
    both(agreed, tmp_path, OPTIMIZERS[kind], pulled)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_scripts_equal_tasks_with_outer_steps(tmp_path, kind):
    agreed = structs.replace(
        agreement(kind, "outer", compress=CompressSection(select="full")), overlay=OverlaySection(kind="one_peer_exponential")
    )
    both(agreed, tmp_path, OPTIMIZERS[kind], pairwise)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_scripts_equal_tasks_with_sparse_outer_steps(tmp_path, kind):
    agreed = structs.replace(
        agreement(kind, "sparse_outer", compress=CompressSection(select="chunk_top_k", response="int2_nearest")),
        overlay=OverlaySection(kind="complete"),
    )
    both(agreed, tmp_path, OPTIMIZERS[kind], pulled)
