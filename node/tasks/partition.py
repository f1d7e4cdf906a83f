"""Cut samples into shards: pure functions from labels or keys to one array of sample numbers per shard.

Each sample lies in exactly one shard. No shard is empty, and none of a Dirichlet cut has fewer than `floor(n, s)` samples: surplus is
moved out of the largest shards, never copied. Equal arguments give equal cuts on every machine. More shards than samples: ValueError.

Shapes: n samples, s shards.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from starling.gossip.errors import ConfigError
from starling.gossip.seeds import derive
from starling.node.config.schema import PartitionSection

Indices = NDArray[np.int64]

FEW = 32  # smallest size of a shard of a Dirichlet partition if there are enough samples: one default batch


def floor(samples: int, shards: int) -> int:
    """Least samples of a shard of a Dirichlet cut: `FEW`, or an equal share where there are too few for that."""
    return min(FEW, samples // shards)


def iid(samples: int, shards: int, seed: int) -> list[Indices]:
    """Shuffle and cut evenly: every shard looks like the whole."""
    _check(samples, shards)
    return _level(np.array_split(_chance(seed, "iid").permutation(samples), shards), 1)


def dirichlet(labels: Sequence[int] | Indices, shards: int, alpha: float, seed: int) -> list[Indices]:
    """Cut each label's samples by proportions drawn from Dirichlet(alpha), alpha > 0: small is different, large is iid.

    Source: Hsu, Qi and Brown 2019 (arXiv:1909.06335); as in most later work, proportions are drawn per label over shards.
    """
    _check(len(labels), shards)
    chance = _chance(seed, "dirichlet")
    parts: list[list[Indices]] = [[] for _ in range(shards)]
    for group in _groups(labels):
        ids = chance.permutation(group)
        ends = np.cumsum(chance.dirichlet([alpha] * shards)) * len(ids)
        for part, piece in zip(parts, np.split(ids, ends.astype(np.int64)[:-1]), strict=True):
            part.append(piece)
    return _level([np.concatenate(part) for part in parts], floor(len(labels), shards))


def by_label(labels: Sequence[int] | Indices, shards: int, seed: int) -> list[Indices]:
    """Return the most different cut: label number l goes whole to shard l mod s; with more shards than labels, labels are split."""
    _check(len(labels), shards)
    chance = _chance(seed, "by_label")
    return _level(_deal([chance.permutation(group) for group in _groups(labels)], shards), 1)


def by_file(files: Sequence[int] | Indices, shards: int) -> list[Indices]:
    """File number f of `files` (n,) goes whole to shard f mod s; with more shards than files, a file is split into contiguous ranges."""
    _check(len(files), shards)
    return _level(_deal(_groups(files), shards), 1)


def by_key(keys: Sequence[int | str] | NDArray[np.generic], shards: int, seed: int) -> list[Indices]:
    """Samples of one key (a speaker, an author, a device) stay together, and shards are as even as keys allow.

    The largest key goes first, each to the shard that has least. With more shards than keys, the largest keys are halved.
    `keys` (n,) are all numbers or all strings; the seed decides which shard gets which.
    """
    _check(len(keys), shards)
    groups = _groups(keys)
    while len(groups) < shards:
        largest = max(range(len(groups)), key=lambda i: len(groups[i]))
        groups[largest : largest + 1] = np.array_split(groups[largest], 2)
    groups.sort(key=len, reverse=True)
    parts: list[list[Indices]] = [[] for _ in range(shards)]
    for group in groups:
        min(parts, key=lambda part: sum(map(len, part))).append(group)
    order = _chance(seed, "by_key").permutation(shards)
    return _level([np.concatenate(parts[i]) for i in order], 1)


def cut(
    section: PartitionSection,
    samples: int,
    seed: int,
    *,
    labels: Indices | None = None,
    files: Indices | None = None,
    keys: NDArray[np.generic] | None = None,
) -> list[Indices]:
    """Partition samples as the manifest says. Raises ConfigError if the data lack something, or there are more shards than samples.

    Labels, files and keys are (n,), given if the data have labels, come as files, or samples have owners.
    """
    shards = section.shards
    if shards == 1 <= samples:
        return [np.arange(samples)]  # each kind of cut gives one shard with all samples
    cuts: dict[str, Callable[[], list[Indices]]] = {"iid": lambda: iid(samples, shards, seed)}
    if labels is not None:
        cuts["dirichlet"] = lambda: dirichlet(labels, shards, section.alpha, seed)
        cuts["by_label"] = lambda: by_label(labels, shards, seed)
    if files is not None:
        cuts["by_file"] = lambda: by_file(files, shards)
    if keys is not None:
        cuts["by_key"] = lambda: by_key(keys, shards, seed)
    if section.kind not in cuts:
        raise ConfigError(
            f"partition.kind: these data cannot be cut {section.kind}, choose {', '.join(sorted(cuts))}; try `--set partition=iid`"
        )
    try:
        return cuts[section.kind]()
    except ValueError as error:
        raise ConfigError(f"partition.shards: {error}") from error


def take(parts: list[Indices], shard: int) -> Indices:
    """Return one of the parts; raises ConfigError if there is no such shard."""
    if not 0 <= shard < len(parts):
        raise ConfigError(f"shard: must be in [0, {len(parts)}), the manifest's partition.shards, got {shard}")
    return parts[shard]


def _check(samples: int, shards: int) -> None:
    if not 1 <= shards <= samples:
        raise ValueError(f"cannot cut {samples} samples into {shards} shards, each needs one")


def _chance(seed: int, kind: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derive(seed, "partition", kind)))


def _groups(keys: Sequence[int | str] | NDArray[np.generic]) -> list[Indices]:
    """Sample numbers of each distinct key, keys in sorted order, samples in their own."""
    array = np.asarray(keys)
    order = np.argsort(array, kind="stable").astype(np.int64)
    borders = np.flatnonzero(array[order][1:] != array[order][:-1]) + 1
    return list(np.split(order, borders))


def _deal(groups: list[Indices], shards: int) -> list[Indices]:
    """Group g to shard g mod s; if there are fewer groups than shards, group g is split among the shards congruent to g."""
    if len(groups) >= shards:
        return [np.concatenate(groups[shard::shards]) for shard in range(shards)]
    parts = [np.empty(0, np.int64)] * shards
    for number, group in enumerate(groups):
        takers = range(number, shards, len(groups))
        for shard, piece in zip(takers, np.array_split(group, len(takers)), strict=True):
            parts[shard] = piece
    return parts


def _level(parts: list[Indices], least: int) -> list[Indices]:
    """Move the last samples of the largest shards to those that have fewer than `least`; sorted, so that ranges stay ranges.

    Ends, because `least` is at most the mean: while one shard is below it, the largest is above.
    """
    parts = list(parts)
    for shard in range(len(parts)):
        while (missing := least - len(parts[shard])) > 0:
            donor = max(range(len(parts)), key=lambda i: len(parts[i]))
            moved = min(missing, len(parts[donor]) - least)
            parts[shard] = np.concatenate([parts[shard], parts[donor][-moved:]])
            parts[donor] = parts[donor][:-moved]
    return [np.sort(part) for part in parts]
