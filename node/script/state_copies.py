"""Copies of parameters that optimisers keep, as schedule-free and Lookahead do: they move along with what is mixed into a parameter."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from starling.gossip.errors import ConfigError
from starling.gossip.vector import real

KEYS = ("z", "slow", "slow_param", "slow_params", "slow_buffer", "old_p")
"""Keys of an optimiser's state under which optimisers store copies of a parameter (schedule-free, Lookahead, SAM)."""

Copies = Iterable[str] | Callable[[nn.Parameter], Iterable[Tensor]]
"""More keys of copies, or a function that returns the tensors that are copies of a parameter."""


class StateCopies:
    """Copies of parameters that optimisers hold.

    Args:
        named: the parameters by name.
        optimizers: those whose state is searched under `KEYS`.
        more: where else.
    """

    def __init__(self, named: Mapping[str, nn.Parameter], optimizers: Sequence[Optimizer], more: Copies) -> None:
        self._named, self._optimizers = named, tuple(optimizers)
        self._keys = KEYS if callable(more) else (*KEYS, *((more,) if isinstance(more, str) else more))
        self._function = more if callable(more) else None

    def by_number(self) -> Iterator[tuple[Tensor, int]]:
        """Yield each copy once, with its parameter's number. Raises ConfigError: the function returned one of another shape."""
        seen = set[int]()
        for number, (name, parameter) in enumerate(self._named.items()):
            seen.add(id(parameter))
            for copy in (*self._in_state(parameter), *self._from_function(name, parameter)):
                if id(copy) not in seen:
                    seen.add(id(copy))
                    yield real(copy), number

    def _in_state(self, parameter: nn.Parameter) -> Iterator[Tensor]:
        for optimizer in self._optimizers:
            state = getattr(optimizer, "state", {}).get(parameter, {})
            for key in self._keys:
                copy = state.get(key)
                if isinstance(copy, Tensor) and copy.shape == parameter.shape:
                    yield copy

    def _from_function(self, name: str, parameter: nn.Parameter) -> Iterator[Tensor]:
        copies = () if self._function is None else self._function(parameter)
        for copy in (copies,) if isinstance(copies, Tensor) else copies:
            if copy.shape != parameter.shape:
                shapes = f"{tuple(copy.shape)}, needed is {tuple(parameter.shape)}"
                raise ConfigError(f"copies: what it gave for {name} has shape {shapes}; return copies of the parameter")
            yield copy
