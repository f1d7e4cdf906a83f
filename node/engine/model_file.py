"""Files of models: exports, the best model, and the file of `task.start`.

Tensors that are one and the same (tied weights) are written once, under their first name. Of a model with a packed base
(`starling.node.engine.quantised`) only what is trained is written, with its buffers: the base is what `Task.model` makes. What
`get_extra_state` gives is never written nor read here: a module may unpickle it, and files come from others.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from starling.gossip.vector import finite, real
from starling.node.config.parts import shown
from starling.node.engine.quantised import quantised

EXTRA = "_extra_state"
_TRAINED: Mapping[str, str] = {"holds": "trained"}


def entries(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that a file of the model holds, by their names in its `state_dict`; not copied."""
    first = _first_names(model)
    kept = None if not quantised(model) else _trained(model)
    return {name: tensor for name, tensor in _plain(model).items() if first[name] == name and (kept is None or name in kept)}


def facts(model: nn.Module) -> Mapping[str, str]:
    """Return the facts for a file of a model without its base; empty if the file holds all."""
    return _TRAINED if quantised(model) else {}


def fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load a file into a model, by its own names or with a common prefix added or removed, tied tensors under any of their names.

    Raises ValueError, in a few words: names, shapes or dtypes are not those of `entries`, or numbers are not finite.
    """
    needed, given = entries(model), _named(model, tensors)
    if given.keys() != needed.keys():
        name = min(given.keys() ^ needed.keys())
        raise ValueError(f"{'lacks' if name in needed else 'has a foreign'} tensor {shown(name)}")
    for name, tensor in sorted(given.items()):
        if tensor.shape != needed[name].shape or tensor.dtype != needed[name].dtype:
            raise ValueError(f"has {name} as {_form(tensor)}, must be {_form(needed[name])}")
        if not finite(real(tensor)):
            raise ValueError(f"holds numbers that are not finite, in {name}")
    model.load_state_dict(given, strict=False)


def complete(model: nn.Module) -> dict[str, object]:
    """Return a copy of all that strict `load_state_dict` takes, with tied tensors and extra state; nothing of a packed base."""
    if quantised(model):
        return {name: tensor.clone() for name, tensor in entries(model).items()}
    first = _first_names(model)
    copies = {name: tensor.clone() for name, tensor in entries(model).items()}
    whole: dict[str, object] = {}
    for name, value in model.state_dict().items():
        whole[name] = copies[first[name]] if name in first else value
    return whole


def _plain(model: nn.Module) -> dict[str, Tensor]:
    """Return the entries of a `state_dict` that are tensors and no extra state."""
    named = model.state_dict().items()
    return {name: each for name, each in named if isinstance(each, Tensor) and name.rpartition(".")[2] != EXTRA}


def _trained(model: nn.Module) -> frozenset[str]:
    """Return names of trained parameters, under each of their names, and of buffers."""
    trained = {name for name, each in model.named_parameters(remove_duplicate=False) if each.requires_grad}
    return frozenset(trained | {name for name, _ in model.named_buffers(remove_duplicate=False)}) - quantised(model)


def _first_names(model: nn.Module) -> dict[str, str]:
    """Return for each name in the `state_dict` the first name of the same tensor."""
    seen: dict[object, str] = {}
    return {name: seen.setdefault(_identity(name, tensor), name) for name, tensor in _plain(model).items()}


def _identity(name: str, tensor: Tensor) -> object:
    """Return a key that is equal only for two names of one tensor."""
    if not tensor.numel() or tensor.is_meta or type(tensor) is not Tensor:
        return name
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _named(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under the first names that the model has for them. Raises ValueError: two for one tensor differ."""
    first, needed = _first_names(model), entries(model).keys()
    given = {name: tensor for name, tensor in tensors.items() if name.rpartition(".")[2] != EXTRA}
    named: dict[str, Tensor] = {}
    for name, tensor in _renamed(given, first, needed).items():
        at = first.get(name, name)
        if at in named and not torch.equal(named[at], tensor):
            raise ValueError(f"has other values in {shown(name)} than in {shown(at)}, which are one tensor of this model")
        named[at] = tensor
    return named


def _renamed(given: Mapping[str, Tensor], first: Mapping[str, str], needed: Iterable[str]) -> Mapping[str, Tensor]:
    """Return tensors with a prefix added or removed so that their names are the model's; unchanged if no prefix does that."""
    wanted = frozenset(needed)

    def fits(names: Iterable[str]) -> bool:
        return {first.get(name) for name in names} == wanted

    if not given or fits(given):
        return given
    one = min(given)
    for prefix in sorted({name.removesuffix(one) for name in first if name.endswith(f".{one}")}):
        if fits(prefix + name for name in given):
            return {prefix + name: tensor for name, tensor in given.items()}
    for prefix in sorted({one.removesuffix(name) for name in first if one.endswith(f".{name}")}):
        if all(name.startswith(prefix) for name in given) and fits(name.removeprefix(prefix) for name in given):
            return {name.removeprefix(prefix): tensor for name, tensor in given.items()}
    return given


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
