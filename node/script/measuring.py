"""Evaluate a script's model on the swarm's request: by the script's function, or its last logged value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from starling.gossip.errors import ConfigError
from starling.node.rpc.script import Measured

LOSS = "loss"


class Measuring:
    """Evaluates one model.

    Attributes:
        is_asked: there is a function.
        metric: name of a number that the function gives without one.
    """

    def __init__(self, model: nn.Module, evaluate: Callable[[], Any] | None) -> None:
        """Store the evaluation function. Raises ConfigError: it is not callable."""
        if evaluate is not None and not callable(evaluate):
            raise ConfigError(f"evaluate: must be a function without arguments, got a {type(evaluate).__name__}")
        self._model, self._evaluate = model, evaluate
        self._logged: dict[str, float] = {}
        self.is_asked = evaluate is not None
        self.metric = LOSS

    def log(self, figures: Mapping[str, Any]) -> None:
        """Store figures for the swarm's next request. Raises ConfigError: one is no number."""
        self._logged = _numbers("log", figures)

    def measured(self, round: int) -> Measured:
        """Return the figures of the current model; exceptions of the function propagate."""
        if self._evaluate is None:
            return _said(self._logged, "the script gave no evaluate= and logged nothing by swarm.log(…)")
        modes = [(each, each.training) for each in self._model.modules()]
        self._model.eval()
        try:
            with torch.no_grad():
                given = self._evaluate()
        finally:
            for module, mode in modes:
                module.training = mode
        figures = _numbers("evaluate", given if isinstance(given, Mapping) else {self.metric: given})
        return _said(figures, f"evaluate() gave no finite number after round {round}")


def _numbers(of: str, figures: Mapping[str, Any]) -> dict[str, float]:
    try:
        return {str(name): float(value) for name, value in figures.items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{of}: must give a number, or numbers by name: {error}") from error


def _said(figures: Mapping[str, float], reason: str) -> Measured:
    """Return the first figure as the metric, and the others by name."""
    known = {name: value for name, value in figures.items() if math.isfinite(value)}
    if not known:
        return Measured(None, reason=reason)
    first, *others = known
    return Measured(known[first], known.get(LOSS, math.nan), 0, {name: known[name] for name in others if name != LOSS})
