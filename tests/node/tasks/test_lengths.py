"""Batches of similar lengths waste little, and all samples are equally likely."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import starling
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.node.tasks.lengths import like_length
from tests.harness.tasks import built_in

DOCUMENTS = torch.from_numpy(np.random.Generator(np.random.PCG64(3)).lognormal(np.log(52), 0.8, 4000).astype(np.int64).clip(1, 256))


def wasted(draw):
    """Return the share of padding in 200 batches of 16."""
    batches = [DOCUMENTS[draw(generator(turn, "batch"))] for turn in range(200)]
    held = sum(len(batch) * int(batch.max()) for batch in batches)
    return 1 - sum(int(batch.sum()) for batch in batches) / held


def test_at_most_a_tenth_is_padding_where_random_batches_are_half_padding():
    """Token counts as in documents: median 52, cut at 256."""
    assert wasted(lambda chance: like_length(DOCUMENTS, 16, chance)) <= 0.10
    assert wasted(lambda chance: torch.randint(len(DOCUMENTS), (16,), generator=chance)) >= 0.45


def held_and_real(rows, draw):
    """Return (places, tokens) of 200 batches each of three seeds' 512 lengths: lognormal, median 52, cut at 256, as in the reference."""
    held, real = 0, 0
    for seed in range(3):
        drawn = np.random.default_rng(seed).normal(4.0, 0.8, 512)
        lengths = torch.from_numpy(np.clip(np.exp(drawn), 8, 256).astype(np.int64))
        for turn in range(200):
            at, longest = draw(lengths, rows, generator(turn, "batch"))
            held += rows * longest
            real += int(lengths[at].sum())
    return held, real


def like(lengths, rows, chance):
    at = like_length(lengths, rows, chance)
    return at, int(lengths[at].max())


def at_random(lengths, rows, chance):
    at = torch.randint(len(lengths), (rows,), generator=chance)
    return at, int(lengths[at].max())


def to_the_context(lengths, rows, chance):
    return at_random(lengths, rows, chance)[0], 256


@pytest.mark.parametrize(("rows", "draw", "share"), [(24, like, 0.070), (11, at_random, 0.597), (8, to_the_context, 0.723)])
def test_batches_of_two_thousand_tokens_have_the_reference_s_padding(rows, draw, share):
    """Its batches have at most 2,048 tokens with padding; here as many rows as make about 1,900."""
    held, real = held_and_real(rows, draw)
    assert 1800 <= held / 600 <= 2048
    assert 1.0 - real / held == pytest.approx(share, abs=0.02)


def test_batches_by_length_contain_two_to_three_times_the_tokens():
    """In the reference a processor trains 37.7 thousand tokens per second, compared with 19.0 and 12.0."""
    useful = [real / held for held, real in (held_and_real(*it) for it in ((24, like), (11, at_random), (8, to_the_context)))]
    assert useful[0] / useful[1] >= 37.7 / 19.0
    assert useful[0] / useful[2] >= 37.7 / 12.0


def test_every_sample_is_equally_likely():
    lengths = torch.arange(1, 21)
    counts = torch.zeros(20)
    for turn in range(1500):
        counts += torch.bincount(like_length(lengths, 4, generator(turn, "batch")), minlength=20)
    assert counts.sum() == 6000
    assert float((counts - 300).abs().max()) < 5 * 300**0.5 * 1.5


def test_an_equal_generator_draws_an_equal_batch():
    one, again, other = (like_length(DOCUMENTS, 8, generator(seed, "batch")) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_a_task_with_lengths_draws_batches_of_similar_lengths():
    samples = [torch.full((int(length),), number) for number, length in enumerate(DOCUMENTS[:600])]

    def padded(found):
        return pad_sequence(found, batch_first=True, padding_value=-1)

    class Documents(torch.utils.data.Dataset):
        def __len__(self):
            return len(samples)

        def __getitem__(self, number):
            return samples[number]

    def made(lengths):
        loader = DataLoader(Documents(), collate_fn=padded)
        return starling.task(model=nn.Identity, train=loader, lengths=lengths)

    data = made(DOCUMENTS[:600]).data(built_in(shards=2), "cpu")
    batches = [data.batch(16, generator(turn, "batch")) for turn in range(30)]
    assert sum(int((batch < 0).sum()) for batch in batches) / sum(batch.numel() for batch in batches) < 0.1
    other = made(None).data(built_in(shards=2), "cpu").batch(16, generator(1, "batch"))
    assert float((other < 0).float().mean()) > 0.2
    with pytest.raises(ConfigError, match=r"lengths: must be 600 whole numbers > 0, one a sample, got int64 of shape \(3,\)"):
        made([1, 2, 3])
    with pytest.raises(ConfigError, match="lengths: sample 2 has 0"):
        made([1, 2, 0] + [1] * 597)
