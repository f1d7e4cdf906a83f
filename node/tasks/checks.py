"""Bounds of task parameters, which come from a manifest that someone else wrote."""

from __future__ import annotations

from collections.abc import Collection


def whole(name: str, value: int, low: int, high: int) -> None:
    """Raises ValueError unless `value` is an int (not a bool) in [low, high]."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name}: must be a whole number in [{low}, {high}], got {value!r}")


def real(name: str, value: float, low: float, high: float) -> None:
    """Raises ValueError unless `value` is a number in [low, high]; NaN is in no interval."""
    if type(value) not in (int, float) or not low <= value <= high:
        raise ValueError(f"{name}: must be a number in [{low:g}, {high:g}], got {value!r}")


def choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raises ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name}: must be one of {', '.join(sorted(choices))}, got {value!r}")
