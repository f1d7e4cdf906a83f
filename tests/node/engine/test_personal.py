"""Personal parts of models on nodes: which parts are exchanged, what a joiner takes over, and which settings are refused."""

import pytest
import torch

from starling.gossip.errors import ConfigError
from starling.node.config import manifest as manifests
from starling.node.config import presets
from starling.node.config.schema import Manifest, MixSection, PartitionSection
from starling.node.engine import tensor_file
from starling.node.rpc import calls
from starling.node.simulate.api import simulate
from starling.node.tasks.api import Source
from starling.node.tasks.digits import Digits
from starling.node.tasks.reserved import data_of
from tests.harness.engines import done, manifest, opened, x_of
from tests.harness.texts import keys


def agreed(**mix):
    return manifest("digits", params={"hidden": 4}, mix=MixSection(**mix))


def test_a_joiner_takes_over_what_is_shared_and_keeps_its_own_head():
    """Heads never leave their node, not even for a joiner."""
    engines = [opened(agreed(personal=["2.*"]), shard, peer) for shard, peer in enumerate("ab")]
    first, late = engines
    done(first, calls.Train(0, 5))
    before = x_of(late).clone()
    held = done(first, calls.Snapshot())
    state = done(first, calls.ReadChunk(held.snapshot, 0, held.size)).data
    head = slice(64 * 4 + 4, None)
    assert tensor_file.unpack(state)[0]["x"].shape == (head.start,)
    done(late, calls.Consider("a", held.round, state, 1))
    done(late, calls.Agree())
    assert torch.equal(x_of(late)[: head.start], x_of(first)[: head.start])
    assert torch.equal(x_of(late)[head], before[head])
    assert not torch.equal(x_of(first)[head], before[head])


def test_held_out_samples_are_never_trained_on():
    data = data_of(Digits(), Source(None, PartitionSection(kind="iid", shards=8), 3, 5), "cpu", 0.25)
    aside = {tuple(row) for row in data.aside[0].tolist()}
    seen = data.batch(4096, torch.Generator().manual_seed(0))[0]
    assert len(data.aside[0]) == pytest.approx(0.25 * (data.samples + len(data.aside[0])), abs=1)
    assert not aside & {tuple(row) for row in seen.tolist()}


def test_evaluation_samples_have_the_node_s_shares_of_labels():
    data = Digits().data(Source(None, PartitionSection(kind="dirichlet", shards=8), 1, 0), "cpu")
    like = torch.cat([y for _, y in data.like_own(64)])
    assert set(like.tolist()) <= set(data.y.tolist())
    ours, theirs = (torch.bincount(y, minlength=10) / len(y) for y in (data.y, like))
    assert float((ours - theirs).abs().max()) < 0.05


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["mix.kind=gather", "overlay=pull", "compress.select=full", 'mix.personal=["2.*"]'], "mix.personal: gather sends whole models"),
        (["mix.own=0.2"], "mix.own: ends that take shares of their own choice do not keep the mean of models, which pet counts on"),
        (["mix.kind=dsgd", "mix.order=awc", "mix.own=0.2"], "mix.own: ends"),
        (["mix.kind=dsgd", "mix.own=0.2", "overlay.average_every=4", "overlay=ring"], "overlay.average_every: no average is exact"),
        (["mix.kind=dsgd", "mix.own=0.2", "pace.overlap=true"], "pace.overlap: a share is chosen"),
        (["mix.own=0.6"], "mix.own: must be"),
    ],
)
def test_settings_that_cannot_work_are_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        manifests.check(presets.load(Manifest, assignments=keys))


REGRESSION = keys(
    "task.batch_size=12 pace.local_steps=5 pace.evaluate_every=80 optimizer.lr=0.02 optimizer.schedule=constant mix.clip_norm=0.0",
    "mix.own=0.5 compress.select=full compress.request=identity compress.response=identity simulate.sample=0 partition.kind=iid",
)


@pytest.mark.acceptance
@pytest.mark.parametrize("apart", [0.7, 1.5])
def test_chosen_shares_remove_four_fifths_of_the_error_with_twelve_samples_each(apart):
    """32 nodes in four clusters: .69 alone and .13 with exchanges, shares chosen by held-out samples; mean of three seeds."""
    error = {}
    for overlay in ("alone", "random_matching"):
        runs = simulate(
            task="tests.harness.clusters:Clusters",
            mix="dsgd",
            nodes=32,
            rounds=80,
            seeds=(0, 1, 2),
            set=REGRESSION | {"task.apart": apart, "overlay.kind": overlay},
        )
        error[overlay] = sum(run.outcome.rows[-1].mean for run in runs.finished) / 3
    assert error["alone"] == pytest.approx(0.69, abs=0.03)
    assert error["random_matching"] <= 0.13
