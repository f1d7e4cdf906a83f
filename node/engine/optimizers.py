"""The optimiser that a manifest names, and whether corrections and weights meet its gradients or its updates:

    sgd, or a mixing algorithm    the optimiser steps along correct(gradient); c has the units of a gradient, and with sgd a constant c
    that knows no rate            moves a coordinate by eta_c = lr/(1 − momentum) a step
    all others                    the optimiser steps along the gradient, then x <- x − lr·correct(0); c has the units of an update at
                                  rate 1, so eta_c = lr whatever the optimiser makes of gradients

muon steps hidden matrices by torch.optim.Muon and all else by AdamW, both at the same rate: Muon's is scaled to the rms of AdamW's steps
(Liu et al. 2025, arXiv:2502.16982).

A node's weight (`starling.node.config.weight`) multiplies its gradient, so that all is as if its loss had it: with sgd, and where gradients
enter trackers or directions that are exchanged. Any other optimiser makes the same step of a gradient and of a multiple: there the weight
multiplies the optimiser's step, not the correction.

Shapes: d parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from starling.gossip.errors import ConfigError
from starling.gossip.mix.catalogue import MIXERS
from starling.node.catalogues import OPTIMIZERS
from starling.node.config.large import LARGE
from starling.node.config.schema import Manifest, OptimizerSection
from starling.node.engine.corrections import Corrections
from starling.node.engine.flat_optimizer import Optimizer
from starling.node.engine.moments import Moments, kept
from starling.node.engine.pieces import Piece, needs_shapes, pieces

NOT_BY_ROWS = frozenset({"adafactor", "asgd", "muon"})
"""Optimisers that use the whole vector or its matrices, or store scalars that depend on past rates."""
FUSED = frozenset({"adagrad", "adam", "adamw", "sgd"})
"""Those that torch steps on processors in one pass over memory, without temporary vectors."""
Keys = Mapping[str, Any]
"""Arguments of a torch optimiser's constructor."""
ONE_PASS: Mapping[str, Keys] = MappingProxyType(dict.fromkeys(FUSED, MappingProxyType({"fused": True})))
"""Further arguments for a fused step."""
_MATCHED = {"adjust_lr_fn": "match_rms_adamw"}
"""Arguments that scale Muon's steps to the length of AdamW's."""
_WHOLE = Piece(0, 0, ())
"""Placeholder piece for the whole vector as one parameter."""


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes torch optimisers for the pieces of a vector, or for all of it, with the keys of a section.

    `one_pass`: more keys, by kind.
    """

    section: OptimizerSection
    cut: Sequence[Piece]
    one_pass: Mapping[str, Keys]

    def __call__(self, parameters: list[nn.Parameter]) -> Sequence[torch.optim.Optimizer]:
        """Return the optimisers; each parameter belongs to one. Raises ConfigError: an unknown name or key."""
        parts = _PARTS.get(self.section.kind, _alone)(self.section.kind, list(zip(parameters, self.cut or (_WHOLE,), strict=True)))
        keys = self._keys()
        return [self._built(kind, of, chosen(keys)) for kind, of, chosen in parts if of]

    def _keys(self) -> dict[str, Any]:
        """Return the keys that torch's constructor takes."""
        given = self.section.params()
        if self.section.kind in OPTIMIZERS.built_in:
            given.pop("decay", None)
        if "beta_1" in given or "beta_2" in given:
            given["betas"] = (given.pop("beta_1", 0.9), given.pop("beta_2", 0.999))
        return given

    def _built(self, kind: str, of: Sequence["_Of"], keys: Keys) -> torch.optim.Optimizer:
        decaying, spared = ([parameter for parameter, _ in each] for each in _parted(of, lambda piece: piece.decays))
        groups: list[dict[str, Any]] = [{"params": decaying}, {"params": spared, "weight_decay": 0.0}]
        filled = [group for group in groups if group["params"]]
        arguments = {"params": filled, "lr": self.section.lr, **keys, **self.one_pass.get(kind, {})}
        return OPTIMIZERS.build("optimizer", kind, arguments, trusted=True)


_Of = tuple[nn.Parameter, Piece]
"""(a parameter, its piece)."""
_Part = tuple[str, Sequence[_Of], Callable[[Keys], Keys]]
"""(name of a torch optimiser, the parameters it steps, the section's keys it takes)."""


def _alone(kind: str, of: Sequence[_Of]) -> Sequence[_Part]:
    """Return one optimiser of all parameters."""
    return [(kind, of, lambda keys: keys)]


def _muon(_kind: str, of: Sequence[_Of]) -> Sequence[_Part]:
    """Return Muon for hidden matrices, and AdamW for all else."""
    hidden, others = _parted(of, lambda piece: piece.hidden)
    return [
        ("muon", hidden, lambda keys: _MATCHED | _only(keys, "momentum", "nesterov", "ns_steps", "weight_decay")),
        ("adamw", others, lambda keys: _only(keys, "betas", "eps", "weight_decay")),
    ]


_PARTS: Mapping[str, Callable[[str, Sequence[_Of]], Sequence[_Part]]] = MappingProxyType({"muon": _muon})
"""Kinds that consist of several torch optimisers."""


def _only(keys: Keys, *names: str) -> dict[str, Any]:
    return {name: keys[name] for name in names}


def _parted(of: Sequence[_Of], condition: Callable[[Piece], bool]) -> tuple[list[_Of], list[_Of]]:
    """Return the parameters whose pieces meet a condition, and the others."""
    parts: dict[bool, list[_Of]] = {True: [], False: []}
    for each in of:
        parts[condition(each[1])].append(each)
    return parts[True], parts[False]


def by_rows(section: OptimizerSection) -> bool:
    """Tell if models of many nodes can be stacked (r, d) and stepped at once."""
    return section.kind not in NOT_BY_ROWS and not needs_shapes(section)


def optimizer(
    section: OptimizerSection, like: Tensor, *, weighs_updates: bool = False, model: nn.Module | None = None, moments: Moments = "float32"
) -> Optimizer:
    """Return the section's optimiser with empty state for vectors like `like` (d,), those of `model` if given.

    `moments`: how those of Adam's family are stored. A large model is stepped in one pass where torch can, which rounds otherwise.

    Raises ConfigError: an unknown name or parameter, or it needs a model.
    """
    if section.kind == "muon" and not hasattr(torch.optim, "Muon"):
        raise ConfigError(f"optimizer.kind: muon is in torch 2.9 and later, here is {torch.__version__}; upgrade torch")
    cut = pieces(section, model)
    one_pass = like.ndim == 1 and like.numel() > LARGE and like.device.type == "cpu"
    return Optimizer(
        Maker(section, cut, ONE_PASS if one_pass else {}),
        like,
        weighs_updates=weighs_updates,
        pieces=cut,
        by_coordinate=section.kind in OPTIMIZERS.built_in and section.kind not in NOT_BY_ROWS,
        kept=kept(moments, section.kind),
    )


def corrects_updates(manifest: Manifest) -> bool:
    """Tell if corrections are added to updates, in units of the rate: with any optimiser but sgd."""
    rated = MIXERS.facts(manifest.mix.kind, trusted=True).rated
    return rated and manifest.optimizer.kind != "sgd"


def weighs_updates(manifest: Manifest) -> bool:
    """Tell if a node's weight multiplies its updates: with any optimiser but sgd, unless gradients enter what nodes exchange."""
    trackers = MIXERS.facts(manifest.mix.kind, trusted=True).trackers
    return manifest.optimizer.kind != "sgd" and not trackers


def corrections_of(manifest: Manifest) -> Corrections:
    """Return where corrections and weights enter this swarm's local steps."""
    on_updates = corrects_updates(manifest)
    return Corrections(manifest.optimizer.clip_norm, on_updates, on_updates or weighs_updates(manifest))


def optimizer_of(manifest: Manifest, like: Tensor, model: nn.Module | None = None, moments: Moments = "float32") -> Optimizer:
    """Return the optimiser of a node of this swarm; as `optimizer`."""
    weighs = corrections_of(manifest).weighs_updates
    return optimizer(manifest.optimizer, like, weighs_updates=weighs, model=model, moments=moments)
