"""Which part of a model a rank of an island holds, computes and writes."""

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from torch import nn

from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.gossip.vector import layout
from starling.node.config.schema import NumericsSection, PrivacySection
from starling.node.engine.shards import Cut, blocks, passes, plan_of, reserve, vectors
from starling.node.engine.worker import Worker
from starling.node.tasks.api import Columns, Rows
from starling.node.tasks.text import Text
from tests.harness.engines import manifest, opening, refused_as
from tests.strategies import examples

RANKS = st.integers(1, 9)


@given(shape=st.lists(st.integers(1, 7), min_size=1, max_size=3), ranks=RANKS, parts=st.integers(1, 3), data=st.data())
@examples(100)
def test_ranks_write_every_coordinate_exactly_once(shape, ranks, parts, data):
    """Of any parameter cut along any axis, also where there are more ranks than lengths, and where the axis is of several stretches."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    shape[axis] *= parts
    whole, cut = torch.zeros(shape), Cut(axis, parts)
    for rank in range(ranks):
        piece = cut.piece(whole, rank, ranks)
        held = torch.ones(
            [n if at != axis else piece.numel() * n // max(1, whole.numel()) for at, n in enumerate(shape)]
        )
        piece += cut.split(held)
    assert torch.equal(whole, torch.ones(shape))


@given(length=st.integers(1, 40), ranks=RANKS)
@examples(100)
def test_a_parameter_is_cut_where_torch_cuts_it(length, ranks):
    """`fully_shard` stores the chunks of `torch.chunk`, and nothing where there is no more."""
    whole = torch.arange(length * 2).view(length, 2)
    chunks = [*torch.chunk(whole, ranks), *[whole[:0]] * ranks]
    assert all(torch.equal(Cut(0).piece(whole, rank, ranks), chunks[rank]) for rank in range(ranks))


def test_of_queries_keys_and_values_in_one_layer_a_rank_has_the_same_heads():
    whole = torch.arange(3 * 8)
    assert Cut(0, parts=3).piece(whole, 1, 4).flatten().tolist() == [2, 3, 10, 11, 18, 19]


@given(count=st.integers(1, 40), ranks=RANKS, micro=st.none() | st.integers(1, 9))
@examples(150)
def test_ranks_make_equally_many_passes_and_every_sample_counts_once(count, ranks, micro):
    """They gather each other's parameters in every pass: who made one less would leave the others waiting."""
    each = [passes(count, rank, ranks, micro) for rank in range(ranks)]
    assert len({len(one) for one in each}) == 1
    assert all(0 <= begin < end <= count for one in each for begin, end, _ in one)
    assert all(end - begin <= (micro or count) for one in each for begin, end, _ in one)
    counted = [sample for one in each for begin, end, share in one if share for sample in range(begin, end)]
    assert sorted(counted) == list(range(count))
    assert all(share == pytest.approx((end - begin) / count) for one in each for begin, end, share in one if share)


def test_what_is_stored_together_are_the_members_of_lists_that_share_nothing_with_the_rest():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(4, 4)
            self.inner = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Bilinear(4, 4, 4)])
            self.ends = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
            self.ends[1].weight = self.embed.weight

    model = Tied()
    assert blocks(model) == [model.inner[0][0], model.inner[1], model.ends[0]]
    again = nn.Linear(2, 2)
    assert blocks(nn.Sequential(again, nn.ReLU(), again)) == [again]


def test_all_who_map_the_memory_of_an_island_see_one_model_and_one_gradient():
    held = layout(nn.Linear(3, 5))
    file = reserve(held)
    (x, gradient), (other, _) = vectors(file, held), vectors(file, held)
    os.close(file)
    x.fill_(1.0)
    gradient.fill_(2.0)
    assert torch.equal(other, torch.ones(20))


def text(heads=4):
    return Text(path="x", context=4, width=24, layers=2, heads=heads)


def test_the_plan_of_the_built_in_transformer_has_its_large_layers():
    plan = plan_of(text(), text().model(generator(0)), 2)
    assert len(plan) == 2 * 4
    assert plan["blocks.1.attend"] == Columns(3, 4)
    assert plan["blocks.0.contract"] == Rows()


class Brought(nn.Module):
    """A model with a plan of its own, as those of `transformers` have it."""

    def __init__(self, how="rowwise", heads=4):
        super().__init__()
        self.config = type("Config", (), {"num_attention_heads": heads})()
        self.tp_plan = {"up.*": "colwise", "down": how, "head": "colwise_rep", "table": "embedding_rowwise"}
        self.up, self.down, self.head = nn.ModuleList([nn.Linear(4, 8)]), nn.Linear(8, 4), nn.Linear(4, 4)


def test_a_model_of_transformers_brings_its_plan_in_whatever_it_is_wrapped():
    assert plan_of(object(), nn.Sequential(nn.Identity(), Brought()), 2) == {"1.up.0": Columns(), "1.down": Rows()}


def test_the_plan_of_a_model_of_transformers_is_understood():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )  # fmt: skip
    plan = plan_of(object(), transformers.LlamaForCausalLM(config), 2)
    assert len(plan) == 2 * 7
    assert plan["model.layers.1.self_attn.q_proj"] == Columns()
    assert plan["model.layers.0.mlp.down_proj"] == Rows()


class Planned:
    def __init__(self, **plan):
        self.plan = plan

    def tensor_plan(self):
        return self.plan


@pytest.mark.parametrize(
    ("task", "model", "ranks", "words"),
    [
        (text(), text().model(generator(0)), 3, "ranks: must divide the 4 heads of blocks.0.attend"),
        (Planned(a=Rows()), nn.ModuleDict({"a": nn.Linear(9, 2)}), 2, "ranks: must divide the 9 rows of a"),
        (Planned(a=Columns()), nn.ModuleDict({"a": nn.Conv2d(2, 2, 1)}), 2, "cuts nn.Linear, a is a Conv2d"),
        (Planned(b=Rows()), nn.ModuleDict({"a": nn.Linear(2, 2)}), 2, "parallel: tensor needs a plan"),
        (object(), nn.Linear(2, 2), 2, "parallel: tensor needs a plan"),
        (object(), Brought(how="sequence_parallel"), 2, "does not know 'sequence_parallel'"),
        (object(), Brought(heads=3), 2, "num_attention_heads = 3"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_by_columns_and_rows_is_refused_with_what_can_be_done(task, model, ranks, words):
    with pytest.raises(ConfigError, match=words) as refused:
        plan_of(task, model, ranks)
    assert "parallel=fsdp" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ranks": 1, "parallel": "tensor"}, "parallel: tensor needs several processes, got ranks = 1"),
        ({"numerics": NumericsSection(compile=True)}, "numerics.compile: not with parallel=fsdp"),
        ({"privacy": PrivacySection(noise=1.0)}, "ranks: not with privacy.noise"),
        ({"numerics": NumericsSection(noise_every=2)}, "ranks: not with numerics.noise_every"),
        ({"ranks": 40}, "ranks: must be <= task.batch_size = 32 with parallel=fsdp, got 40"),
        ({"parallel": "tensor"}, "parallel: tensor needs a plan"),
    ],
)
def test_settings_that_an_island_that_shares_its_model_cannot_have_are_refused(changes, words):
    asked = {"ranks": 2, "parallel": "fsdp"} | changes
    reply = Worker().handle(structs.replace(opening(manifest(params={"batch_size": 32})), **asked))
    refused_as("config", reply, words)
