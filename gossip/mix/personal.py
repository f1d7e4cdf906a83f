"""Models with personal parameters that are not exchanged: any mixing algorithm, applied to the shared parameters.

Shapes: d parameters, s of them shared, D numbers of the shared vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from starling.gossip.api import Averaging, Broadcasting, Gathering, Mixer, Phase, Swapping
from starling.gossip.errors import ConfigError
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.spans import Spans, put, spans_of, take, unmatched
from starling.gossip.vector import Layout

SHARES = (0.0, 0.5, 1.0)  # shares of an exchange's step among which a node chooses


@dataclass(frozen=True, slots=True)
class Personal:
    """`inner`, as if the model had only what lies in `spans`; all else follows the node's own gradient alone.

    The state is that of `inner`, for models (…, s). What holds of `inner`'s averages, flows and sums holds of the shared part.

    Source: FedPer, Arivazhagan et al. 2019 (arXiv:1912.00818), whose heads stay at home; FedRep, Collins et al. 2021 (arXiv:2102.07078),
    trains the parts in turn. Here both are trained in every step.
    """

    inner: Mixer
    spans: Spans  # spans of the shared coordinates

    def part(self, x: Tensor) -> Tensor:
        """Return (…, s): what of x (…, d) is shared, a copy."""
        return take(x, self.spans)

    def put(self, x: Tensor, shared: Tensor) -> Tensor:
        """Return a copy of x (…, d) with this shared part (…, s)."""
        return put(x, shared, self.spans)

    @property
    def edge(self) -> Averaging | Swapping | Gathering | Broadcasting:
        return self.inner.edge

    @property
    def asynchronous(self) -> bool:
        return self.inner.asynchronous

    def start(self, x: Tensor) -> Any:
        return self.inner.start(self.part(x))

    def correct(self, state: Any, gradient: Tensor) -> tuple[Tensor, Any]:
        """Return the gradient with its shared part corrected."""
        own = self.part(gradient)
        direction, state = self.inner.correct(state, own)
        return gradient if direction is own else self.put(gradient, direction), state

    def publish(self, state: Any, x: Tensor, phase: Phase) -> tuple[Tensor, Any]:
        own = self.part(x)
        published, state = self.inner.publish(state, own, phase)
        return x if published is own else self.put(x, published), state

    def shared(self, state: Any, x: Tensor) -> Tensor:
        """Return (…, D) as `inner`, of the shared part."""
        return self.inner.shared(state, self.part(x))

    def absorb(self, state: Any, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Any]:
        """Mix the shared part by `inner`; personal parameters stay."""
        mixed, state = self.inner.absorb(state, self.part(x), shared, phase)
        return self.put(x, mixed), state

    def corrected(self, state: Any, flows: Tensor) -> Any:
        return self.inner.corrected(state, flows)


def at_home(layout: Layout, patterns: Sequence[str]) -> frozenset[str]:
    """Names of the parameters that match one of `patterns`, as `head.*`.

    Raises ConfigError: a pattern matches nothing, or together they match everything.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in layout.names):
            raise ConfigError(f"{unmatched('mix.personal', pattern, layout)}; try `--set 'mix.personal=[\"{layout.names[-1]}\"]'`")
    found = frozenset(name for name in layout.names if any(fnmatchcase(name, pattern) for pattern in patterns))
    if len(found) == len(layout.names):
        raise ConfigError(
            f"mix.personal: {', '.join(patterns)} match all of the model, so nothing would be exchanged; leave out one of them"
        )
    return found


def shared_layout(layout: Layout, home: frozenset[str]) -> Layout:
    """Return the layout of the vector without the personal parameters `home`."""
    kept = [(name, shape) for name, shape in zip(layout.names, layout.shapes, strict=True) if name not in home]
    return Layout(tuple(name for name, _ in kept), tuple(shape for _, shape in kept), layout.dtype)


def shared_spans(layout: Layout, home: frozenset[str]) -> Spans:
    """Return the places of the parameters that are not in `home` in a model's flat vector."""
    return spans_of(layout, {*layout.names} - home)


def chosen(losses: Tensor) -> Tensor:
    """Losses (…, 3) of models after each of `SHARES` of a step -> (…) the share to take: of the least loss, the largest where they tie.

    A loss that is no number is never chosen unless all are: then nothing is taken.

    Source: L2C, Li et al. 2022 (CVPR), learns such weights by descent on held-out loss; a grid of three needs no gradient and no rate.
    """
    values = losses.nan_to_num(nan=torch.inf, posinf=torch.inf)
    least = values.min(dim=-1, keepdim=True).values
    best = (values <= least).to(values.dtype)
    shares = torch.tensor(SHARES, dtype=values.dtype, device=values.device)
    return torch.where(torch.isfinite(least[..., 0]), (best * shares).amax(dim=-1), 0.0)
