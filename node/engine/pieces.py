"""Structure of a model's flat vector that optimisers need: its matrices, and which parameters decay."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from torch import nn

from starling.gossip.errors import ConfigError
from starling.gossip.vector import Layout, layout
from starling.node.config.schema import OptimizerSection


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of the flat vector that an optimiser treats as one parameter with a shape."""

    start: int
    end: int
    shape: tuple[int, ...]
    hidden: bool = False  # whether it is a hidden matrix, for Muon
    decays: bool = True


def hidden_matrices(model: nn.Module) -> frozenset[str]:
    """Return the names of the parameters that Muon is for: weights of layers, of two or more dimensions.

    Neither embeddings, nor what is tied to them, nor the output layer: the last layer with a weight, unless it is part of an
    nn.ModuleList, as blocks are; nor what does not end in "weight".
    """
    embeddings = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)}
    blocks = [f"{name}." for name, each in model.named_modules() if isinstance(each, nn.ModuleList)]
    layers = [
        (name, weight)
        for name, weight in model.named_parameters(remove_duplicate=False)
        if name.endswith("weight") and weight.ndim > 1 and weight.requires_grad
    ]
    if layers and not layers[-1][0].startswith(tuple(blocks)):
        embeddings.add(id(layers[-1][1]))
    return frozenset(name for name, weight in layers if id(weight) not in embeddings and min(len(weight), weight[0].numel()) > 1)


def pieces(section: OptimizerSection, model: nn.Module | None) -> tuple[Piece, ...]:
    """Return the pieces of a model's flat vector that the section's optimiser needs; none if the vector alone is enough.

    Raises ConfigError: muon, and there is no hidden matrix, or there must be a model.
    """
    if not needs_shapes(section):
        return ()
    if model is None:
        raise ConfigError(f"optimizer.{_NEEDS.get(section.kind, 'decay: matrices')} needs the shapes of a model")
    about, sparing = layout(model), getattr(section, "decay", "all") == "matrices"
    hidden = _HIDDEN.get(section.kind, _no_matrices)(model, about)
    cut: list[Piece] = []
    for name, shape, start, end in zip(about.names, about.shapes, about.offsets, about.offsets[1:], strict=False):
        decays = not sparing or len(shape) > 1
        if name in hidden:
            cut.append(Piece(start, end, (shape[0], (end - start) // shape[0]), hidden=True, decays=decays))
        elif cut and not cut[-1].hidden and cut[-1].decays == decays:
            cut[-1] = replace(cut[-1], end=end, shape=(end - cut[-1].start,))
        else:
            cut.append(Piece(start, end, (end - start,), decays=decays))
    return tuple(cut)


def _for_muon(model: nn.Module, about: Layout) -> frozenset[str]:
    hidden = hidden_matrices(model)
    if not hidden.intersection(about.names):
        raise ConfigError(
            "optimizer.kind: muon makes steps of hidden matrices orthogonal, and this model has none besides embeddings and its output "
            "layer; try `--set optimizer.kind=adamw`"
        )
    return hidden


def _no_matrices(_model: nn.Module, _about: Layout) -> frozenset[str]:
    return frozenset()


_HIDDEN: Mapping[str, Callable[[nn.Module, Layout], frozenset[str]]] = MappingProxyType({"muon": _for_muon})
"""Names of the matrices that an optimiser treats otherwise."""
_NEEDS: Mapping[str, str] = MappingProxyType({"muon": "kind: muon"})
"""Why an optimiser needs shapes, if not for weight decay."""


def needs_shapes(section: OptimizerSection) -> bool:
    """Return whether an optimiser must see more than the vector."""
    return section.kind == "muon" or getattr(section, "decay", "all") == "matrices"
