"""Plain averages of models and of what their optimisers remember (`starling.gossip.mix.memories`)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from starling.gossip.bounds import parameters
from starling.gossip.lazy_torch import Tensor
from starling.gossip.mix.base import MixerBase

NOT_COORDINATES = frozenset({"low_rank", "dct_top_k"})
"""Selectors of exchanges about a subspace, in which v has no mean: these average models alone."""


def in_place_of_flows(agreed: Any) -> bool:
    """Return whether the mix "pet" of a manifest or scenario is `Moments`: flows are for sgd, whose steps are linear in the gradient."""
    return bool(agreed.mix.kind == "pet" and agreed.optimizer.kind != "sgd")


def averages_memories(agreed: Any) -> bool:
    """Return whether nodes of a manifest or scenario average what their optimisers remember."""
    named = agreed.mix.kind == "moments" or in_place_of_flows(agreed)
    return named and agreed.compress.select not in NOT_COORDINATES


@parameters
class Moments(MixerBase):
    """DSGD that averages m and v of adamw, muon and their relatives along with the model, for nodes with different data.

    Where the optimiser is one whose state has other names than `exp_avg`, `exp_avg_sq` and `momentum_buffer`, models alone are averaged.

    Source: averages of local momenta, Yu, Jin and Yang 2019 (arXiv:1905.03817). Here pairwise, with Adam's v, in four bits, ages along.

    Args:
        memory: quantizer of m, to the nearest in blocks of 32: "int4" or "int8".
        square_every: exchanges of a node of which one carries v.
    """

    memory: Literal["int4", "int8"] = "int4"
    square_every: Annotated[int, Meta(ge=1, le=1000)] = 4
    asynchronous: ClassVar[bool] = True

    @property
    def bits(self) -> int:
        """Return those of a code of m."""
        return {"int4": 4, "int8": 8}[self.memory]

    @property
    def replaces(self) -> bool:
        """Tell if a model may be mixed in its own memory: always."""
        return True

    def shared(self, state: None, x: Tensor) -> Tensor:
        """Return the model."""
        return x
