"""Types of parameters with their bounds: fields of a part's constructor that a configuration sets, checked by msgspec. Torch-free.

Every number has a floor and a ceiling: a manifest comes from other people, and what no run can use only costs those who try it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from operator import ge, gt, le, lt
from typing import Annotated, Any, Literal, TypeVar, Union, cast, dataclass_transform, get_args, get_origin, get_type_hints

from msgspec import Meta

Positive = Annotated[float, Meta(gt=0, le=1e6)]
NonNegative = Annotated[float, Meta(ge=0, le=1e6)]
Share = Annotated[float, Meta(ge=0, le=1)]
PositiveShare = Annotated[float, Meta(gt=0, le=1)]
ShareBelowOne = Annotated[float, Meta(ge=0, lt=1)]
Count = Annotated[int, Meta(ge=0, le=10**9)]
AtLeastOne = Annotated[int, Meta(ge=1, le=10**6)]
Bytes = Annotated[int, Meta(ge=1, le=1 << 40)]
Degree = Annotated[int, Meta(ge=1, le=32)]
Steps = Annotated[int, Meta(ge=1, le=1024)]
Byzantine = Annotated[int, Meta(ge=0, le=64)]
WeightRule = Literal["metropolis_hastings", "max_degree", "uniform"]

T = TypeVar("T")
_SIGNS = {"gt": (">", gt), "ge": (">=", ge), "lt": ("<", lt), "le": ("<=", le)}


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def parameters(kind: type[T]) -> type[T]:
    """Make a class a frozen dataclass with slots whose constructor raises ValueError where a field is out of its type's bounds, not finite,
    or none of the choices of a Literal. A `__post_init__` of its own is called after that.
    """
    further: Callable[[T], None] | None = getattr(kind, "__post_init__", None)

    def check(part: T) -> None:
        hints = _hints(cast("Any", type(part)))
        for each in fields(cast("Any", part)):
            if each.init:
                _check(each.name, hints[each.name], getattr(part, each.name))
        if further is not None:
            further(part)

    cast("Any", kind).__post_init__ = check
    return dataclass(frozen=True, slots=True)(kind)


def _check(name: str, hint: Any, value: Any) -> None:
    arguments = get_args(hint)
    if get_origin(hint) is Literal and value not in arguments:
        raise ValueError(f"{name} must be one of {', '.join(arguments)}, got {value!r}")
    if get_origin(hint) is Union and value is not None:
        return _check(name, arguments[0], value)
    if not arguments or not isinstance(meta := arguments[-1], Meta):
        return None
    bounds = [(*_SIGNS[key], getattr(meta, key)) for key in _SIGNS if getattr(meta, key) is not None]
    wanted = Integral if arguments[0] is int else Real
    right = type(value) is not bool and isinstance(value, wanted) and math.isfinite(value)
    if not (right and all(holds(value, bound) for _, holds, bound in bounds)):
        finite = "finite and " if arguments[0] is float else ""
        raise ValueError(f"{name} must be {finite}{' and '.join(f'{sign} {bound:.12g}' for sign, _, bound in bounds)}, got {value!r}")
    return None


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind, include_extras=True)
