"""The privacy accountant: (ε, δ) of all noised steps of a node's data, stored in a file next to the checkpoint.

Steps are written in lots before they are taken, so that after a crash the sum is too large by at most a lot, never too small. The file
stays when a checkpoint is moved away: what was sent to peers cannot be taken back.

Accountant: Rényi differential privacy of the Poisson-sampled Gaussian, by opacus. Source: Mironov, Talwar and Zhang 2019
(arXiv:1908.10530); to (ε, δ) by Balle et al. 2020 (arXiv:1905.09982), Theorem 21.
"""

import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from starling.gossip.errors import ConfigError
from starling.node.engine import tensor_file

LOT = 64
ORDERS = (*(1.0 + tenth / 10 for tenth in range(1, 100)), *map(float, range(11, 64)), *(2.0**k for k in range(6, 11)))
INSTALL = "pip install 'starling-swarm[privacy]'"


class Lot(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Steps with noise of this standard deviation, in units of the clip norm, on this share of the samples."""

    noise: Annotated[float, Meta(gt=0)]
    rate: Annotated[float, Meta(gt=0, le=1)]
    steps: Annotated[int, Meta(ge=0, lt=2**53)]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    lots: list[Lot]


def epsilon(lots: Sequence[Lot], delta: float, orders: Sequence[float] = ORDERS) -> float:
    """Return ε at δ of all these steps together, 0 for none; ConfigError if opacus is not installed."""
    taken = [lot for lot in lots if lot.steps]
    if not taken:
        return 0.0
    moments = sum(lot.steps * _moments(lot.noise, lot.rate, tuple(orders)) for lot in taken)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning says that the best order is the largest: the bound holds, but could be tighter
        used, _ = _opacus().get_privacy_spent(orders=list(orders), rdp=moments, delta=delta)
    return max(0.0, float(used))


@lru_cache(maxsize=16)
def _moments(noise: float, rate: float, orders: tuple[float, ...]) -> npt.NDArray[np.float64]:
    """Return the Rényi divergence of one step for every order. Callers must not modify it."""
    found: npt.NDArray[np.float64] = _opacus().compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=list(orders))
    return found


def _opacus() -> Any:
    """Return the accountant's module."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from opacus.accountants.analysis import rdp  # noqa: PLC0415  takes seconds, and only this needs it
    except ImportError as error:
        raise ConfigError(f"privacy.noise: needs an accountant that is not installed; try: {INSTALL}") from error
    return rdp


class Account(Protocol):
    """What is spent of a node's privacy.

    Attributes:
        problem: why no step may be taken; "" if one may.
    """

    problem: str

    def epsilon(self, further: int = 0) -> float | None:
        """Return ε of the steps so far and of so many further ones; None without differential privacy."""

    def write(self) -> None:
        """Write it. Raises OSError: it could not be."""


class Unaccounted:
    """Steps without differential privacy. Satisfies `Account`."""

    problem: str = ""

    def epsilon(self, further: int = 0) -> None:
        """Return None."""

    def write(self) -> None:
        """Do nothing."""


class Accountant:
    """The steps of one node's data. Raises ConfigError if the file is damaged, or opacus is missing.

    A path of None is no file, as in simulation; noise and rate are those of further steps, as in `Lot`; `most` is the largest ε allowed, 0:
    any.
    """

    def __init__(self, path: Path | None, *, noise: float, rate: float, delta: float, most: float) -> None:
        self._path = path
        self._delta = delta
        self._most = most
        self.lots = [] if path is None else _read(path)  # steps grouped by noise and rate, the current ones last
        if not self.lots or (self.lots[-1].noise, self.lots[-1].rate) != (noise, rate):
            self.lots.append(Lot(noise, rate, 0))
        self._reserved = self.lots[-1].steps
        self.epsilon(1)  # raises an error now instead of at the first step
        self.problem = ""  # why no step may be taken; "" if one may

    def epsilon(self, further: int = 0) -> float:
        """Return ε of the steps taken and `further` ones."""
        return epsilon(self._with(further), self._delta)

    def count_step(self) -> bool:
        """Count one step before it is taken -> whether it may be taken."""
        last = self.lots[-1]
        if last.steps == self._reserved and not self._reserve():
            return False
        last.steps += 1
        return True

    def write(self) -> None:
        """Write the exact count, at an orderly stop. After an OSError the file counts more steps than were taken, never fewer."""
        if self._path is not None:
            self._write(0)
            self._reserved = self.lots[-1].steps

    def _reserve(self) -> bool:
        lot = LOT
        while lot and self._most and self.epsilon(lot) > self._most:
            lot //= 2
        if not lot:
            self.problem = f"epsilon would exceed privacy.max_epsilon = {self._most:g}"
            return False
        try:
            self._write(lot)
        except OSError as error:
            self.problem = f"{self._path} cannot be written: {error.strerror or error}"
            return False
        self._reserved = self.lots[-1].steps + lot
        self.problem = ""
        return True

    def _write(self, ahead: int) -> None:
        if self._path is not None:
            tensor_file.write(self._path, msgspec.json.encode(_File(self._with(ahead))) + b"\n").replace(self._path)
            tensor_file.flush_folder(self._path.parent)

    def _with(self, further: int) -> list[Lot]:
        *before, last = self.lots
        return [*before, Lot(last.noise, last.rate, last.steps + further)]


def _read(path: Path) -> list[Lot]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File).lots
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise ConfigError(
            f"privacy: {path} records what your data have cost and cannot be read: {why}; "
            f"to count from 0, as for data that were never used: mv {path} {path}.bad"
        ) from error
