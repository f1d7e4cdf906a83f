"""The estimate of a node's peak memory, and the refusal of a node that lacks it before a model is downloaded."""

from pathlib import Path

import pytest
from msgspec import structs

from starling.gossip.errors import ConfigError
from starling.node.config import memory_estimate
from starling.node.config.schema import Manifest, NodeConfig, NumericsSection
from starling.node.config.toml import apply_set

MB = 10**6
LARGE = ("task.kind=text", "task.path=x", "task.width=512", "task.layers=9", "optimizer=adamw", "pace.quorum=4")
PLAIN = NumericsSection()


def agreed(*keys):
    return apply_set(Manifest(), (*LARGE, *keys))


@pytest.mark.parametrize(
    ("keys", "numerics", "measured"), [((), {}, 18.3), (("optimizer=sgd", "mix.flows=bfloat16", "compress.select=full"), {}, 30.1)]
)
def test_the_memory_estimate_is_near_the_measured_peak(keys, numerics, measured):
    """docs/memory.md, 30 million parameters and three neighbours; 64 is 52 measured without flows plus 12 for flows."""
    expected = memory_estimate.bytes_per_parameter(agreed(*keys), NumericsSection(**numerics), 29_716_480)
    assert 0.85 * measured <= expected <= 1.1 * measured


def test_every_allocation_counts_in_the_memory_estimate():
    def of(*keys, **numerics):
        return memory_estimate.bytes_per_parameter(agreed(*keys), NumericsSection(**numerics), 10**7)

    assert of("mix=dsgd", "optimizer=sgd", "optimizer.momentum=0") == memory_estimate.MODEL + memory_estimate.GRADIENT
    assert of("mix=dsgd", "optimizer=sgd") == of("mix=dsgd", "optimizer=sgd", "optimizer.momentum=0") + 4
    assert of("mix=dsgd") - of("mix=dsgd", moments="int8") == 6
    assert of("optimizer=sgd", "pace.quorum=7") - of("optimizer=sgd", "pace.quorum=2") == 5 * 4
    assert of("optimizer=sgd", "pace.quorum=700") == of("optimizer=sgd", "pace.quorum=7")
    assert of("pace.quorum=7") == of("pace.quorum=2") == of("mix=dsgd")
    assert of("compress.select=full") > of("compress.select=fragment", "compress.parts=4")


def test_too_little_free_memory_gives_one_line_with_a_remedy():
    manifest = agreed("task.batch_size=1")
    why = memory_estimate.objection(manifest, PLAIN, 500 * MB)
    assert why.startswith("memory: this swarm's task is expected to take 7")
    assert "500 MB are free" in why
    assert "numerics.moments=int8" in why
    assert "`--anyway`" in why
    assert "\n" not in why
    assert memory_estimate.objection(manifest, PLAIN, 3000 * MB) == ""
    assert "numerics.moments" not in memory_estimate.objection(manifest, NumericsSection(moments="int8"), 500 * MB)


def test_batches_count_and_smaller_ones_are_a_remedy():
    manifest = agreed("task.batch_size=4096")
    assert "numerics.micro_batch=1" in memory_estimate.objection(manifest, PLAIN, 3000 * MB)
    assert memory_estimate.objection(manifest, NumericsSection(micro_batch=1), 3000 * MB) == ""


def test_an_unknown_tasks_memory_is_estimated_only_from_its_fingerprint():
    own = apply_set(Manifest(), ("task.kind=mine:Task",))
    assert memory_estimate.objection(own, PLAIN, 1) == ""
    known = structs.replace(own, task=structs.replace(own.task, fingerprint=("model 50000000 x y",)))
    assert memory_estimate.parameters(known) == 50_000_000
    assert "50,000,000 parameters" in memory_estimate.objection(known, PLAIN, 500 * MB)
    assert memory_estimate.objection(agreed("crew.stages=3", "optimizer=sgd"), PLAIN, 1) == ""


def test_the_owner_may_override_the_refusal():
    with pytest.raises(ConfigError, match="memory: "):
        memory_estimate.check(agreed(), NodeConfig(), 500 * MB)
    memory_estimate.check(agreed(), NodeConfig(memory_check=False), 500 * MB)


def test_a_machine_that_trains_on_a_gpu_is_not_refused_for_its_host_memory():
    absent, there = Path("/nowhere"), Path("/")
    assert memory_estimate.here(NodeConfig(device="cuda"), absent) is None
    assert memory_estimate.here(NodeConfig(), there) is None
    assert memory_estimate.here(NodeConfig(device="cpu"), there) > 0
    assert memory_estimate.here(NodeConfig(), absent) > 0
