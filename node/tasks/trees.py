"""Batches of any form: tensors in tuples, named tuples, lists, dicts and dataclasses, nested at will, and objects that are left whole."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def children(tree: Any) -> list[Any] | None:
    """What a tuple, list, dict or dataclass holds; None: this is a leaf, also a tuple that moves itself, as a PackedSequence."""
    if isinstance(tree, Mapping):
        return list(tree.values())
    if isinstance(tree, tuple | list):
        return None if hasattr(tree, "to") else list(tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        return [getattr(tree, field.name) for field in fields(tree)]
    return None


def rebuilt(tree: Any, held: list[Any]) -> Any:
    """A nest of the same type that holds these instead of its `children`; itself if they are the same objects."""
    if all(new is old for new, old in zip(held, children(tree) or (), strict=True)):
        return tree
    if isinstance(tree, Mapping):
        named = dict(zip(tree, held, strict=True))
        if type(tree) is dict:
            return named
        made: Any = copy.copy(tree)
        try:
            for name, each in named.items():
                made[name] = each
        except TypeError:  # it cannot be changed, and becomes a dict
            return named
        return made
    if isinstance(tree, tuple | list):
        return type(tree)(*held) if hasattr(tree, "_fields") else type(tree)(held)
    made = copy.copy(tree)
    for field, each in zip(fields(tree), held, strict=True):
        object.__setattr__(made, field.name, each)
    return made


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same nest with `change` applied to its leaves."""
    held = children(tree)
    return change(tree) if held is None else rebuilt(tree, [mapped(change, each) for each in held])


def leaves(tree: Any) -> Iterator[Any]:
    """Every leaf of a nest, in order."""
    held = children(tree)
    if held is None:
        yield tree
    else:
        for each in held:
            yield from leaves(each)


def tensors(tree: Any) -> Iterator[Tensor]:
    """Every leaf that is a tensor."""
    return (leaf for leaf in leaves(tree) if isinstance(leaf, Tensor))


def moved(tree: Any, device: str) -> Any:
    """The same on a device: what has a method `to` moves itself, nests are moved leaf by leaf, and all else stays."""
    if callable(to := getattr(tree, "to", None)):
        found = to(device)
        return tree if found is None else found
    held = children(tree)
    return tree if held is None else rebuilt(tree, [moved(each, device) for each in held])
