"""Batches of any form: tensors in tuples, named tuples, lists, dicts and dataclasses, nested at will, and objects that are left whole."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def children(tree: Any) -> list[Any] | None:
    """Return the members of a tuple, list, dict or dataclass; None: a leaf, also a tuple with a method `to`, as a PackedSequence."""
    if isinstance(tree, Mapping):
        return list(tree.values())
    if isinstance(tree, tuple | list):
        return None if hasattr(tree, "to") else list(tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        return [getattr(tree, field.name) for field in fields(tree)]
    return None


def rebuilt(tree: Any, members: list[Any]) -> Any:
    """Return a nest of the same type with these instead of its `children`; itself if they are the same objects."""
    if all(new is old for new, old in zip(members, children(tree) or (), strict=True)):
        return tree
    if isinstance(tree, Mapping):
        named = dict(zip(tree, members, strict=True))
        if type(tree) is dict:
            return named
        made: Any = copy.copy(tree)
        try:
            for name, each in named.items():
                made[name] = each
        except TypeError:  # an immutable mapping becomes a dict
            return named
        return made
    if isinstance(tree, tuple | list):
        return type(tree)(*members) if hasattr(tree, "_fields") else type(tree)(members)
    made = copy.copy(tree)
    for field, each in zip(fields(tree), members, strict=True):
        object.__setattr__(made, field.name, each)
    return made


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return the nest with `change` applied to its leaves."""
    members = children(tree)
    return change(tree) if members is None else rebuilt(tree, [mapped(change, each) for each in members])


def leaves(tree: Any) -> Iterator[Any]:
    """Yield every leaf of a nest, in order."""
    members = children(tree)
    if members is None:
        yield tree
    else:
        for each in members:
            yield from leaves(each)


def tensors(tree: Any) -> Iterator[Tensor]:
    """Yield every leaf that is a tensor."""
    return (leaf for leaf in leaves(tree) if isinstance(leaf, Tensor))


def moved(tree: Any, device: str) -> Any:
    """Return the nest on a device: what has a method `to` moves itself, nests are moved leaf by leaf, and all else stays."""
    if callable(to := getattr(tree, "to", None)):
        result = to(device)
        return tree if result is None else result
    members = children(tree)
    return tree if members is None else rebuilt(tree, [moved(each, device) for each in members])
