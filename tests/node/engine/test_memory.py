"""Bytes per parameter of an engine between rounds, counted from live tensors: the table of docs/memory.md."""

import gc

import pytest
import torch
from msgspec import structs

from starling.gossip import vector
from starling.kernels import memory
from starling.node.config import large
from starling.node.config.schema import NumericsSection
from starling.node.engine.local import local_model
from starling.node.rpc import calls
from starling.robust import progress
from tests.harness.engines import Inside, open_request

D = 150_000
DEGREE = 3
MOST = {"default": 20.0, "leanest+mask": 24.0, "flows+whole": 32.0}
HELD = {"default": 12.0, "whole": 12.0, "lean+mask": 8.0, "leanest+mask": 6.0, "flows": 18.0, "flows+whole": 24.0}


def alive():
    """Return the memory of all live tensors, by address."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    return {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}


@pytest.mark.parametrize("name", HELD)
def test_an_engine_s_memory_is_that_of_the_table(name, tmp_path, monkeypatch):
    """Model, moments or flows of three edges and their sum, and nothing that only one phase of a round needs."""
    monkeypatch.setattr(local_model, "LARGE", 1000)
    for module in (vector, progress):  # the defence of pairs holds as many coordinates, next to nothing of a large model
        monkeypatch.setattr(module, "SAMPLED", 1000)
    if name == "flows":  # in the other cases flows are in float32 unless stated
        monkeypatch.setattr(large, "LARGE", 1000)
    before = alive()  # retained, since memory freed by other tests would otherwise change the count
    agreed = memory.manifest(name, D, tmp_path)
    ends = [
        Inside(structs.replace(open_request(agreed, shard, label), numerics=NumericsSection(**memory.SETTINGS[name][2])))
        for shard, label in enumerate(("hub", "peer"))
    ]
    for turn in range(memory.rounds(name)):
        for end in ends:
            end.done(calls.Train(turn, memory.STEPS))
        for number in range(DEGREE):
            memory.exchange(*ends, f"p{number}", turn, leads=number % 2 == 0)
        for end in ends:
            end.done(calls.Mix(turn))
    totals = [end.engine.replica.form for end in ends]  # zeros in place of absent flows take no memory, as nothing is written to them
    unwritten = {each.untyped_storage().data_ptr() for each in totals if not each.any()}
    assert bool(unwritten) != name.startswith("flows")
    ours = sum(storage.nbytes() for at, storage in alive().items() if at not in {*before, *unwritten})
    held = ours / sum(end.parameters for end in ends)
    assert HELD[name] - 0.1 <= held <= HELD[name] + 0.7


@pytest.mark.acceptance
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", MOST)
def test_no_phase_of_a_large_model_exceeds_the_documented_peak(name):
    """Peak of an engine process, counted by the kernel: rounds, evaluation, checkpoints, serving, resuming and joining."""
    found = memory.measure(name, 30_000_000, DEGREE)
    assert found.peak <= MOST[name], found
