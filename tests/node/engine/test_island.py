"""Several processes that compute as one node."""

import os
import signal

import pytest
import torch
from msgspec import structs

from starling.node.config.schema import NumericsSection, PrivacySection
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from tests.harness.engines import (
    done,
    every,
    exchange,
    failing_rank,
    island,
    manifest,
    opened,
    opening,
    refused_as,
    run,
    x_of,
)

pytestmark = [pytest.mark.slow, pytest.mark.real]
STEPS = 20


def test_one_node_of_two_processes_walks_the_trajectory_of_one_until_a_process_dies():
    """One of four nodes, uneven parts, each meets each: within what float32 rounds. Then a process is killed."""
    agreed = manifest(params={"batch_size": 17})
    alone, ours = ({name: opened(agreed, node=name) for name in names} for names in ("abcd", "bcd"))
    with island(agreed) as together:
        ours["a"] = together
        done(alone["a"], calls.Train(0, 1))
        done(together, calls.Train(0, 1))
        one, two = x_of(alone["a"]), x_of(together)
        assert float((one - two).abs().max() / one.abs().max()) < 3e-8, "the reference has 4e-9"
        for turn, pairs in enumerate((("ab", "cd"), ("ac", "bd"), ("ad", "bc"))):
            for swarm in (alone, ours):
                every(swarm, calls.Train(turn, STEPS))
                for i, j in pairs:
                    exchange(swarm, i, j, seq=0, round=turn)
                every(swarm, calls.Mix(turn))
        losses = [done(swarm["a"], calls.Train(3, 1)).figures.loss for swarm in (alone, ours)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-3)
        for name in "abcd":
            moved = float((x_of(alone[name]) - x_of(opened(agreed))).norm())
            assert float((x_of(ours[name]) - x_of(alone[name])).norm()) < 1e-3 * moved
        assert not torch.equal(x_of(together), x_of(alone["a"])), "sums in another order round otherwise"
        (process,) = together.trainer.means.island._processes
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"[Cc]onnection"):
            run(together, calls.Train(4, 5))


@pytest.mark.acceptance
def test_statistics_of_layers_are_those_of_the_whole_batch_about():
    agreed = manifest(params={"batch_size": 64, "model": "cnn"})
    alone = opened(agreed)
    with island(agreed, ranks=3) as together:
        for engine in (alone, together):
            done(engine, calls.Train(0, 10))
        one, other = (engine.trainer.model.buffers for engine in (alone, together))
        for name in one:
            assert torch.allclose(one[name].double(), other[name].double(), rtol=0.2, atol=0.05), name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy": PrivacySection(noise=1.0)}, "ranks: not with privacy.noise"),
        ({"numerics": NumericsSection(noise_every=2)}, "ranks: not with numerics.noise_every"),
    ],
)
def test_what_processes_cannot_share_is_refused(changes, words):
    reply = Worker().handle(structs.replace(opening(manifest()), ranks=2, **changes))
    refused_as("config", reply, words)


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("raise ValueError('not in a second process')", "not in a second process"),
        pytest.param("os._exit(3)", "its process ended", marks=pytest.mark.acceptance),
    ],
)
def test_a_rank_that_does_not_start_says_why(tmp_path, monkeypatch, does, why):
    """The reason is the task's own, where it has one."""
    asked = failing_rank(tmp_path, monkeypatch, "model", does)
    refused_as("config", Worker().handle(asked), why)
