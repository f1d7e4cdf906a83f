"""Partitions into shards: no sample is lost or duplicated, and the result is deterministic."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.errors import ConfigError
from starling.node.config.schema import PartitionSection
from starling.node.tasks.partition import FEW, by_file, by_key, by_label, cut, dirichlet, floor, iid
from tests.harness.sections import taken
from tests.strategies import examples

CUTS = {
    "iid": lambda labels, shards, seed: iid(len(labels), shards, seed),
    "dirichlet": lambda labels, shards, seed: dirichlet(labels, shards, 0.1, seed),
    "by_label": by_label,
    "by_file": lambda labels, shards, seed: by_file(labels, shards),
    "by_key": by_key,
}


@st.composite
def cases(draw):
    labels = draw(st.lists(st.integers(0, 9), min_size=1, max_size=300))
    return labels, draw(st.integers(1, min(len(labels), 40))), draw(st.integers(0, 2**62))


@pytest.mark.parametrize("kind", CUTS)
@examples(40)
@given(case=cases())
def test_every_sample_is_in_exactly_one_shard_and_no_shard_is_empty(kind, case):
    """Duplicates would leak between nodes; an empty shard has nothing to train on."""
    labels, shards, seed = case
    parts = CUTS[kind](labels, shards, seed)
    assert len(parts) == shards
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(map(len, parts)) >= (floor(len(labels), shards) if kind == "dirichlet" else 1)


@pytest.mark.parametrize("kind", CUTS)
def test_a_partition_is_deterministic(kind):
    """Every node computes the partition and takes one shard, without communication."""
    labels = np.arange(500) % 7
    parts = [part.tolist() for part in CUTS[kind](labels, 5, 3)]
    section = taken(PartitionSection, kind=kind, shards=5, alpha=0.1)
    assert [part.tolist() for part in cut(section, 500, 3, labels=labels, files=labels, keys=labels)] == parts
    assert (labels == np.arange(500) % 7).all()


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "by_label"])
def test_another_seed_gives_another_partition(kind):
    labels = np.arange(3000) % 3
    parts, others = CUTS[kind](labels, 8, 1), CUTS[kind](labels, 8, 2)
    assert any(one.tolist() != two.tolist() for one, two in zip(parts, others, strict=True))


def test_a_partition_does_not_depend_on_the_machine():
    """Golden values: versions with different partitions would train on each other's samples."""
    assert [part.tolist() for part in iid(7, 3, 0)] == [[2, 3, 5], [4, 6], [0, 1]]
    assert sorted(len(part) for part in iid(1437, 8, 0)) == [179] * 3 + [180] * 5


def test_by_label_gives_whole_labels_or_even_shares_when_shards_outnumber_them():
    labels = np.repeat(np.arange(10), 100)
    for shard, part in enumerate(by_label(labels, 8, 0)):
        assert set(labels[part]) == {label for label in range(10) if label % 8 == shard}
    labels = np.repeat(np.arange(3), 160)
    parts = by_label(labels, 12, 0)
    assert [set(labels[part]) for part in parts] == [{shard % 3} for shard in range(12)]
    assert {len(part) for part in parts} == {40}


def test_by_file_splits_a_lone_file_into_contiguous_ranges():
    """A shard of one text file is a contiguous, readable part of it."""
    parts = by_file(np.zeros(1000, np.int64), 4)
    assert [part.tolist() for part in parts] == [list(range(start, start + 250)) for start in range(0, 1000, 250)]


def test_by_key_keeps_a_key_together_and_balances():
    keys = np.array([f"speaker{i}" for i in np.repeat(np.arange(6), [400, 300, 200, 200, 100, 50])])
    parts = by_key(keys, 3, 0)
    owners = [set(keys[part]) for part in parts]
    assert sum(map(len, owners)) == 6
    assert max(map(len, parts)) - min(map(len, parts)) <= 100


def test_a_smaller_alpha_makes_shards_more_different():
    labels = np.repeat(np.arange(10), 200)

    def skew(alpha: float) -> float:
        shares = [np.bincount(labels[part], minlength=10) / len(part) for part in dirichlet(labels, 8, alpha, 0)]
        return float(np.abs(np.array(shares) - 0.1).mean())

    assert skew(0.1) > 1.5 * skew(1.0) > 3 * skew(100.0)


@pytest.mark.parametrize("alpha", [1e-12, 1e-3, 0.01, 1e6])
def test_extreme_concentrations_leave_no_empty_shard(alpha):
    """Surplus moves from the largest shard: empty ones are filled to one batch without touching small ones."""
    parts = dirichlet(np.zeros(1000, np.int64), 8, alpha, 0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))
    assert min(map(len, parts)) == FEW or alpha == 1e6


@pytest.mark.parametrize("kind", CUTS)
def test_too_few_samples_and_kinds_that_the_data_cannot_serve_are_refused(kind):
    few = np.zeros(3, np.int64)
    with pytest.raises(ConfigError, match=r"partition\.shards: cannot cut 3 samples into 4 shards"):
        cut(PartitionSection(kind=kind, shards=4), 3, 0, labels=few, files=few, keys=few)
    if kind != "iid":
        with pytest.raises(ConfigError, match=rf"partition\.kind: these data cannot be cut {kind}, choose iid"):
            cut(PartitionSection(kind=kind), 100, 0)
