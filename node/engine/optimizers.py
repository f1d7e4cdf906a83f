"""`torch.optim` on the flat parameter vector, its correction by the mixing algorithm, and the learning rate of each round.

`Optimizer.corrected` is the one place where corrections meet the optimiser, `phase` the one place where they meet rates:

    sgd, or a mixing algorithm    the optimiser steps along correct(gradient); c has the units of a gradient, and with sgd a constant c
    that knows no rate            moves a coordinate by eta_c = lr/(1 − momentum) a step
    all others                    the optimiser steps along the gradient, then x <- x − lr·correct(0); c has the units of an update at
                                  rate 1, so eta_c = lr whatever the optimiser makes of gradients

muon steps hidden matrices by torch.optim.Muon and all else by AdamW, both at the same rate: Muon's is scaled to the rms of AdamW's steps
(Liu et al. 2025, arXiv:2502.16982).

A node's weight (`starling.node.config.weight`) multiplies its gradient, so that all is as if its loss had it: with sgd, and where gradients
enter trackers or directions that are exchanged. Any other optimiser makes the same step of a gradient and of a multiple: there the weight
multiplies the optimiser's step, not the correction.

The optimiser's state belongs to this node and is never mixed.

Shapes: d parameters.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import unwrap
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from starling.gossip.api import Phase
from starling.gossip.errors import ConfigError
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.kinds import EdgeKind, kind_of
from starling.gossip.vector import layout
from starling.node.catalogues import OPTIMIZERS
from starling.node.config.large import LARGE
from starling.node.config.schema import Manifest, OptimizerSection
from starling.node.engine.eager import without_tracer
from starling.node.engine.mixing import mixer
from starling.node.engine.moments import NAMES, SCALES, Kept, Moments, kept

NOT_BY_ROWS = frozenset({"adafactor", "asgd", "muon"})
"""Those that look at the vector as a whole or at its matrices, or keep scalars that depend on past rates."""


Correct = Callable[[Tensor], Tensor]
"""A gradient (…, d) -> the direction that the mixing algorithm wants stepped along instead."""
CLIMB = 10.0  # `Phase.climb` of sgd (decision 23 has measurements)
STRETCH = 1 << 18
"""Coordinates stepped at a time where they do not look at each other: bounds what a step takes meanwhile."""
FUSED = frozenset({"adagrad", "adam", "adamw", "sgd"})
"""Those that torch steps on processors in one pass over memory, without temporary vectors."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the flat vector that an optimiser sees as one parameter of a shape, and how it is treated."""

    start: int
    end: int
    shape: tuple[int, ...]
    hidden: bool = False  # a hidden matrix, for Muon
    decays: bool = True


@dataclass(frozen=True, slots=True)
class _Form:
    """What a tensor of an optimiser's state must be."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


Make = Callable[[list[nn.Parameter]], Sequence[torch.optim.Optimizer]]
"""Torch optimisers of the parameters that the pieces are, each of which is stepped by one of them."""


class Optimizer:
    """Torch optimisers of one flat vector `like` (d,). Raises ConfigError if one cannot step from a gradient alone (LBFGS, SparseAdam).

    `corrects_updates`: corrections are added to what the optimiser makes of a gradient, not to the gradient. `weighs_updates`: the same for
    a node's weight. `clip_norm`: longest gradient, > 0; None: any. `pieces`: what the vector is cut into, all of it and in order; none: it
    is one parameter. `by_coordinate`: a coordinate's step depends on no other, so long vectors (d,) are stepped `STRETCH` at a time, with
    the same bits, unless they are stepped in one pass. `kept`: how moments are kept between steps, if not as they are.
    """

    def __init__(
        self, make: Make, like: Tensor, *, corrects_updates: bool = False, weighs_updates: bool = False,
        clip_norm: float | None = None, pieces: Sequence[Piece] = (), by_coordinate: bool = False,
        kept: Kept | None = None,
    ) -> None:  # fmt: skip
        without_tracer()
        self._by_coordinate = by_coordinate and like.ndim == 1
        self._kept = kept
        self.corrects_updates = corrects_updates
        self.weighs_updates = weighs_updates or corrects_updates
        self._clip_norm = clip_norm
        self._pieces = pieces
        whole = self._cut(like)
        trials = [nn.Parameter(torch.zeros_like(part[: self._tried(part)])) for part in whole]
        self._parameters = [nn.Parameter(part) for part in whole]  # stand for others' data and gradients
        try:
            self._optimizers, tried = make(self._parameters), make(trials)
            for trial in trials:
                trial.grad = torch.zeros_like(trial)
            for each in tried:
                each.step()
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"optimizer.kind: it cannot step a flat vector: {error}") from error
        self._bare = [bare(each) for each in self._optimizers]
        self._rate = math.nan  # of the last step
        self._fused = all(each.defaults.get("fused") for each in self._optimizers)
        self._template = dict(
            form
            for name, tensor in _tensors(tried, trials).items()
            for form in self._forms(name, tensor, trials, whole)
        )

    def _tried(self, part: Tensor) -> int:
        """How much of a parameter (n, …) a trial step is made of."""
        return min(2, len(part)) if self._by_coordinate else len(part)

    def _forms(
        self, name: str, tensor: Tensor, trials: Sequence[Tensor], whole: Sequence[Tensor]
    ) -> list[tuple[str, _Form]]:
        """What has to hold of a state, given a trial's `tensor`."""
        number, bare = int(name.partition(".")[0]) if len(trials) > 1 else 0, name.rpartition(".")[2]
        of = whole[number]
        if self._kept is not None and bare in NAMES:
            forms = self._kept.forms(name, of.numel()).items()
            return [(each, _Form(torch.Size((count,)), dtype, tensor.device)) for each, (count, dtype) in forms]
        shape = of.shape if tensor.shape == trials[number].shape else tensor.shape
        return [(name, _Form(shape, tensor.dtype, tensor.device))]

    def _cut(self, x: Tensor) -> list[Tensor]:
        """Views of x (d,), one per piece, in its shape; x itself, of any shape, where there are none."""
        return [x[piece.start : piece.end].view(piece.shape) for piece in self._pieces] or [x]

    def corrected(
        self, gradient: Tensor, correct: Correct, weight: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor | None]:
        """Direction and shift of a step, each like the gradient (…, d); `correct` is called once.

        It is given the gradient, clipped, and times `weight`, a number or (…, 1), where gradients are weighed. Where updates are corrected
        it is asked what it adds to a direction of 0, which may not depend on the direction. There is no shift where it gives back what it
        was given.
        """
        if self._clip_norm is not None:
            gradient = clipped(gradient, self._clip_norm)
        if not self.weighs_updates and not (isinstance(weight, float) and weight == 1.0):
            gradient = gradient * weight
        if not self.corrects_updates:
            return correct(gradient), None
        nothing = gradient.new_zeros(()).expand_as(gradient)
        shift = correct(nothing)
        return gradient, None if shift is nothing else shift

    def step(
        self, x: Tensor, direction: Tensor, lr: float, shift: Tensor | None = None, weight: float = 1.0,
        chance: Generator | None = None,
    ) -> None:  # fmt: skip
        """Change x (d,), detached from autograd, in place along a direction (d,), and then by −lr·shift (d,), at a rate lr >= 0.

        `weight` multiplies the first where updates are weighed; `chance` rounds moments where they are kept in less than float32.
        """
        rate = lr * weight if self.weighs_updates else lr
        if rate != self._rate:
            self._set(rate)
        values, gradients = (self._cut(x), self._cut(direction)) if self._pieces else ((x,), (direction,))
        parts = zip(self._parameters, values, gradients, strict=True)
        if self._kept is not None or (self._by_coordinate and x.numel() > STRETCH and not self._fused):
            for parameter, value, gradient in parts:
                self._by_stretches(parameter, value, gradient, chance)
        else:
            for parameter, value, gradient in parts:
                parameter.data, parameter.grad = value, gradient
            for step in self._bare:
                step()
        for parameter in self._parameters:
            parameter.grad = None
        if shift is not None:
            x.sub_(shift, alpha=lr)

    def _set(self, rate: float) -> None:
        self._rate = rate
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate

    def _by_stretches(self, parameter: nn.Parameter, value: Tensor, gradient: Tensor, chance: Generator | None) -> None:
        """Step one parameter (n,), a stretch of it at a time; numbers that the state has once for all begin anew in each stretch."""
        optimizer, step = next(
            each for each in zip(self._optimizers, self._bare, strict=True) if _steps(each[0], parameter)
        )
        before: dict[str, Any] = dict(optimizer.state.get(parameter, {}))
        after: dict[str, Any] = {}
        for start in range(0, value.numel(), STRETCH):
            part = slice(start, min(start + STRETCH, value.numel()))
            parameter.data, parameter.grad = value[part], gradient[part]
            optimizer.state[parameter] = self._opened(before, part, value.shape)
            step()
            for name, each in optimizer.state[parameter].items():
                self._close(after, before, name, each, part, value, chance)
        parameter.grad, parameter.data = None, value
        optimizer.state[parameter] = after

    def _opened(self, state: Mapping[str, Any], part: slice, shape: torch.Size) -> dict[str, Any]:
        """The state of a stretch: views, moments that are kept otherwise as copies, and copies of what has another shape."""
        found: dict[str, Any] = {}
        for name, each in state.items():
            if self._kept is not None and name in NAMES:
                found[name] = self._kept.read(state, name, part.start, part.stop)
            elif name.endswith(SCALES):
                continue
            elif not isinstance(each, Tensor):
                found[name] = each
            else:
                found[name] = each[part] if each.shape == shape else each.clone()
        return found

    def _close(
        self, after: dict[str, Any], before: Mapping[str, Any], name: str, each: Any, part: slice, value: Tensor,
        chance: Generator | None,
    ) -> None:  # fmt: skip
        """Keep one tensor of a stretch's state in that of the whole parameter `value` (n,)."""
        if not isinstance(each, Tensor) or each.shape != value[part].shape:
            after[name] = each
        elif self._kept is not None and name in NAMES:
            for tensor, (count, dtype) in self._kept.forms(name, value.numel()).items():
                if tensor not in after:
                    after[tensor] = before.get(tensor, value.new_empty(count, dtype=dtype))
            self._kept.write(after, name, part.start, each, chance)
        else:
            if name not in after:
                after[name] = before.get(name, each.new_empty(value.shape))
            if after[name][part].data_ptr() != each.data_ptr():
                after[name][part] = each

    def state_dict(self) -> dict[str, Tensor]:
        """The state by torch's names, of several pieces after their number, for a checkpoint; shared, not copied. Empty before the
        first step.
        """
        return _tensors(self._optimizers, self._parameters)

    def load(self, state: Mapping[str, Tensor], taken: Callable[[], None] = lambda: None) -> None:
        """Take over the state of a checkpoint; ValueError if it does not fit, and nothing changed. `taken`: called after each tensor."""
        if state and state.keys() != self._template.keys():
            raise ValueError(f"optimizer state has {sorted(state)}, needed are {sorted(self._template)}")
        for name, tensor in state.items():
            needed = self._template[name]
            if tensor.shape != needed.shape or tensor.dtype != needed.dtype:
                raise ValueError(
                    f"optimizer state {name} is {tensor.dtype} of shape {tuple(tensor.shape)}, "
                    f"needed is {needed.dtype} of shape {tuple(needed.shape)}"
                )
        if not state:
            return
        own: dict[str, Tensor] = {}
        for name, tensor in state.items():
            own[name] = tensor.clone().to(self._template[name].device)
            taken()
        self.share(own)

    def share(self, state: Mapping[str, Tensor]) -> None:
        """Use these tensors as the state, changed in place by every step. For simulations of many nodes in one array."""
        for number, parameter in enumerate(self._parameters):
            prefix = f"{number}." if len(self._parameters) > 1 else ""
            own = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
            next(each for each in self._optimizers if _steps(each, parameter)).state[parameter] = own


def bare(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """Return the step of one of torch's own optimisers less their profiling and hooks, which take as long as the step of a small model.

    Of any other optimiser it is the step as it is.
    """
    if not type(optimizer).__module__.startswith("torch.optim."):
        return optimizer.step
    within = unwrap(type(optimizer).step)

    def step() -> None:
        with torch.no_grad():
            within(optimizer)

    return step


def clipped(gradient: Tensor, norm: float) -> Tensor:
    """Gradients (…, d), each shortened to `norm` > 0 if it is longer. One that is not finite stays so.

    Source: Pascanu, Mikolov and Bengio 2013 (arXiv:1211.5063), as `torch.nn.utils.clip_grad_norm_` without its epsilon.
    """
    lengths = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True, dtype=torch.float64)
    shortened: Tensor = gradient * (norm / lengths.clamp(min=norm)).to(gradient.dtype)
    return shortened


def _steps(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> bool:
    return any(each is parameter for group in optimizer.param_groups for each in group["params"])


def _tensors(optimizers: Sequence[torch.optim.Optimizer], parameters: Sequence[nn.Parameter]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for number, parameter in enumerate(parameters):
        prefix = f"{number}." if len(parameters) > 1 else ""
        for each in optimizers:
            state = each.state.get(parameter, {}).items()
            found |= {prefix + name: value for name, value in state if isinstance(value, Tensor)}
    return found


def hidden_matrices(model: nn.Module) -> frozenset[str]:
    """Names of the parameters that Muon is for: weights of layers, of two or more dimensions.

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
    return frozenset(
        name for name, weight in layers if id(weight) not in embeddings and min(len(weight), weight[0].numel()) > 1
    )


def pieces(section: OptimizerSection, model: nn.Module) -> tuple[Piece, ...]:
    """What the section's optimiser must see of a model's flat vector; none if that is the vector alone.

    Raises ConfigError: muon, and there is no hidden matrix.
    """
    if not _needs_shapes(section):
        return ()
    about, sparing = layout(model), getattr(section, "decay", "all") == "matrices"
    hidden = hidden_matrices(model) if section.kind == "muon" else frozenset[str]()
    if section.kind == "muon" and not hidden.intersection(about.names):
        raise ConfigError(
            "optimizer.kind: muon makes steps of hidden matrices orthogonal, and this model has none beside embeddings and its output "
            "layer; try `--set optimizer.kind=adamw`"
        )
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


def _needs_shapes(section: OptimizerSection) -> bool:
    return section.kind == "muon" or getattr(section, "decay", "all") == "matrices"


def by_rows(section: OptimizerSection) -> bool:
    """Whether models of many nodes can be stacked (r, d) and stepped at once."""
    return section.kind not in NOT_BY_ROWS and not _needs_shapes(section)


def optimizer(
    section: OptimizerSection, like: Tensor, *, corrects_updates: bool = False, weighs_updates: bool = False,
    model: nn.Module | None = None, moments: Moments = "float32",
) -> Optimizer:  # fmt: skip
    """The section's optimiser with empty state for vectors like `like` (d,), those of `model` if given.

    `moments`: how those of Adam's family are kept. A large model is stepped in one pass where torch can, which rounds otherwise.

    Raises ConfigError: an unknown name or parameter, or it needs a model.
    """
    if section.kind == "muon" and not hasattr(torch.optim, "Muon"):
        raise ConfigError(f"optimizer.kind: muon is in torch 2.9 and later, here is {torch.__version__}; upgrade torch")
    if model is None and _needs_shapes(section):
        key = "kind: muon" if section.kind == "muon" else "decay: matrices"
        raise ConfigError(f"optimizer.{key} needs the shapes of a model")
    given, cut = section.params(), () if model is None else pieces(section, model)
    fused = {"fused": True} if like.ndim == 1 and like.numel() > LARGE and like.device.type == "cpu" else {}
    if section.kind in OPTIMIZERS.built_in:
        given.pop("decay", None)
    if "beta_1" in given or "beta_2" in given:
        given["betas"] = (given.pop("beta_1", 0.9), given.pop("beta_2", 0.999))

    def built(
        kind: str, of: Sequence[tuple[nn.Parameter, Piece | None]], keys: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        decaying = [parameter for parameter, piece in of if piece is None or piece.decays]
        groups: list[dict[str, Any]] = [{"params": decaying}] if decaying else []
        if spared := [parameter for parameter, piece in of if piece is not None and not piece.decays]:
            groups.append({"params": spared, "weight_decay": 0.0})
        arguments = {"params": groups, "lr": section.lr, **keys, **(fused if kind in FUSED else {})}
        return OPTIMIZERS.build("optimizer", kind, arguments, trusted=True)

    def make(parameters: list[nn.Parameter]) -> Sequence[torch.optim.Optimizer]:
        of: list[tuple[nn.Parameter, Piece | None]] = list(zip(parameters, cut or (None,), strict=True))
        if section.kind != "muon":
            return (built(section.kind, of, given),)
        own = {key: given[key] for key in ("momentum", "nesterov", "ns_steps", "weight_decay")}
        rest = [each for each in of if each[1] is not None and not each[1].hidden]
        hidden = [each for each in of if each[1] is not None and each[1].hidden]
        made = [built("muon", hidden, own | {"adjust_lr_fn": "match_rms_adamw"})]
        adamw = {key: given[key] for key in ("betas", "eps", "weight_decay")}
        return [*made, built("adamw", rest, adamw)] if rest else made

    return Optimizer(
        make,
        like,
        corrects_updates=corrects_updates,
        weighs_updates=weighs_updates,
        clip_norm=section.clip_norm,
        pieces=cut,
        by_coordinate=section.kind in OPTIMIZERS.built_in and section.kind not in NOT_BY_ROWS,
        kept=kept(moments, section.kind),
    )


def corrects_updates(manifest: Manifest) -> bool:
    """Whether corrections are added to updates: those in units of a rate, with any optimiser but sgd."""
    rated = MIXERS.facts(manifest.mix.kind, trusted=True).rated
    return rated and kind_of(mixer(manifest).edge) is not EdgeKind.DIRECTIONS and manifest.optimizer.kind != "sgd"


def weighs_updates(manifest: Manifest) -> bool:
    """Whether a node's weight multiplies its updates: with any optimiser but sgd, unless gradients enter what nodes exchange."""
    trackers = MIXERS.facts(manifest.mix.kind, trusted=True).trackers
    trackers = trackers or kind_of(mixer(manifest).edge) is EdgeKind.DIRECTIONS
    return manifest.optimizer.kind != "sgd" and not trackers


def optimizer_of(
    manifest: Manifest, like: Tensor, model: nn.Module | None = None, moments: Moments = "float32"
) -> Optimizer:
    """The optimiser of a node of this swarm; as `optimizer`."""
    return optimizer(
        manifest.optimizer, like, corrects_updates=corrects_updates(manifest), weighs_updates=weighs_updates(manifest),
        model=model, moments=moments,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rate in each round: linear warm-up to lr, then decay to floor · lr at the end of the run; lr throughout an endless run.

    It is never 0, because the gain of the correction divides by it: lr > 0, floor in (0, 1]. `warmup` is a share of the rounds, in [0, 1);
    0 rounds are an endless run.
    """

    kind: Literal["constant", "cosine", "linear", "exponential"]
    lr: float
    rounds: int
    warmup: float = 0.0
    floor: float = 0.05

    def at(self, round: int) -> float:
        """The rate of `round` >= 0; after the last one it stays where it is."""
        if self.rounds == 0:
            return self.lr
        warm = self.warmup * self.rounds
        if round < warm:
            return self.lr * min(1.0, (round + 1) / warm)
        if self.kind == "constant":
            return self.lr
        done = min(1.0, (round - warm) / (self.rounds - warm))
        if self.kind == "exponential":
            return self.lr * math.pow(self.floor, done)
        left = 1.0 - done if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.lr * (self.floor + (1.0 - self.floor) * left)


def schedule(section: OptimizerSection, rounds: int) -> Schedule:
    """The manifest's schedule over `rounds` (0: endless)."""
    return Schedule(section.schedule, section.lr, rounds, section.warmup, section.floor)


def ramp(rounds_since_join: int, ramp_rounds: int) -> float:
    """Factor in (0, 1] on a late joiner's rate, 1 after `ramp_rounds` >= 0: its optimiser's memory is empty."""
    return 1.0 if ramp_rounds == 0 else min(1.0, (rounds_since_join + 1) / ramp_rounds)


def phase(section: OptimizerSection, rates: Schedule, round: int, local_steps: float, ramped: float = 1.0) -> Phase:
    """The phase of a round with its eta_c, where a late joiner's rate is `ramped`, in (0, 1].

    For sgd a constant unit gradient moves a coordinate by lr/(1 − momentum) a step. All others are corrected in units of their updates;
    their flows' gain keeps to the highest rate.
    """
    kept = 1.0 - (section.momentum if section.kind == "sgd" else 0.0)
    return Phase(
        round, local_steps, rates.at(round) * ramped / kept, highest_lr=rates.lr / kept,
        climb=CLIMB if section.kind == "sgd" else 1.0, memory=1.0 / kept,
    )  # fmt: skip
