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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes torch optimisers of the parameters that the pieces are, or of the one that the vector is, with the keys of a section.

    `one_pass`: more keys for those of FUSED.
    """

    section: OptimizerSection
    cut: Sequence[Piece]
    one_pass: Mapping[str, bool]

    def __call__(self, parameters: list[nn.Parameter]) -> Sequence[torch.optim.Optimizer]:
        """Return them; each parameter is stepped by one. Raises ConfigError: an unknown name or key."""
        of: list[_Of] = list(zip(parameters, self.cut or (None,), strict=True))
        keys = self._keys()
        if self.section.kind != "muon":
            return (self._built(self.section.kind, of, keys),)
        own = {key: keys[key] for key in ("momentum", "nesterov", "ns_steps", "weight_decay")}
        hidden, others = ([each for each in of if each[1] is not None and each[1].hidden is is_it] for is_it in (True, False))
        made = [self._built("muon", hidden, own | {"adjust_lr_fn": "match_rms_adamw"})]
        adamw = {key: keys[key] for key in ("betas", "eps", "weight_decay")}
        return [*made, self._built("adamw", others, adamw)] if others else made

    def _keys(self) -> dict[str, Any]:
        """Return what torch's constructor takes."""
        given = self.section.params()
        if self.section.kind in OPTIMIZERS.built_in:
            given.pop("decay", None)
        if "beta_1" in given or "beta_2" in given:
            given["betas"] = (given.pop("beta_1", 0.9), given.pop("beta_2", 0.999))
        return given

    def _built(self, kind: str, of: Sequence["_Of"], keys: Mapping[str, Any]) -> torch.optim.Optimizer:
        decaying = [parameter for parameter, piece in of if piece is None or piece.decays]
        groups: list[dict[str, Any]] = [{"params": decaying}] if decaying else []
        if spared := [parameter for parameter, piece in of if piece is not None and not piece.decays]:
            groups.append({"params": spared, "weight_decay": 0.0})
        arguments = {"params": groups, "lr": self.section.lr, **keys, **(self.one_pass if kind in FUSED else {})}
        return OPTIMIZERS.build("optimizer", kind, arguments, trusted=True)


_Of = tuple[nn.Parameter, Piece | None]
"""A parameter and the piece that it is; None: all of the vector."""


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
    if model is None and needs_shapes(section):
        key = "kind: muon" if section.kind == "muon" else "decay: matrices"
        raise ConfigError(f"optimizer.{key} needs the shapes of a model")
    cut = () if model is None else pieces(section, model)
    one_pass = like.ndim == 1 and like.numel() > LARGE and like.device.type == "cpu"
    return Optimizer(
        Maker(section, cut, {"fused": True} if one_pass else {}),
        like,
        weighs_updates=weighs_updates,
        pieces=cut,
        by_coordinate=section.kind in OPTIMIZERS.built_in and section.kind not in NOT_BY_ROWS,
        kept=kept(moments, section.kind),
    )


def corrects_updates(manifest: Manifest) -> bool:
    """Tell if corrections are added to updates: those in units of a rate, with any optimiser but sgd."""
    rated = MIXERS.facts(manifest.mix.kind, trusted=True).rated
    return rated and manifest.optimizer.kind != "sgd"


def weighs_updates(manifest: Manifest) -> bool:
    """Tell if a node's weight multiplies its updates: with any optimiser but sgd, unless gradients enter what nodes exchange."""
    trackers = MIXERS.facts(manifest.mix.kind, trusted=True).trackers
    return manifest.optimizer.kind != "sgd" and not trackers


def corrections_of(manifest: Manifest) -> Corrections:
    """Return where corrections and weights meet the optimiser of this swarm."""
    on_updates = corrects_updates(manifest)
    return Corrections(manifest.optimizer.clip_norm, on_updates, on_updates or weighs_updates(manifest))


def optimizer_of(manifest: Manifest, like: Tensor, model: nn.Module | None = None, moments: Moments = "float32") -> Optimizer:
    """Return the optimiser of a node of this swarm; as `optimizer`."""
    weighs = corrections_of(manifest).weighs_updates
    return optimizer(manifest.optimizer, like, weighs_updates=weighs, model=model, moments=moments)
