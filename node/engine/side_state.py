"""State of a module that changes without training: buffers, and frozen parameters that the task's own code writes, as teachers are.

Both are in checkpoints, frozen parameters once they were seen to change, and those are given to late joiners. Undecided state
is reported to the owner, once.
"""

import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from starling.gossip.binding import Moves
from starling.gossip.errors import ConfigError
from starling.gossip.vector import finite, real
from starling.node.config.buffers import STAYS
from starling.node.config.schema import Manifest
from starling.node.engine.quantised import packed, quantised
from starling.node.engine.saved_buffers import SavedBuffers, put, same
from starling.node.tasks.evaluate import tracking

BUFFER, FROZEN = "buffer.", "frozen."
_LOOKED_AT = 64  # numbers of a frozen parameter that are compared to detect a change
_NAMED = 6  # in a note


def carried_buffers(manifest: Manifest, module: nn.Module) -> tuple[str, ...]:
    """Return the names of the buffers that are averaged along with the model, as `task.buffers` says: of finite numbers, as masks are not.

    Raises ConfigError: a name of it matches no such buffer, or one of more digits than the vector has.
    """
    chosen, own = manifest.task.buffers, _own_buffers(module)
    if chosen is None or chosen == "local":
        return ()
    floats = [name for name, each in own.items() if (each.is_floating_point() or each.is_complex()) and finite(real(each))]
    if chosen == "average":
        found = _persistent(module) - _normalising(module)
        return _narrow(module, [name for name in floats if name in found])
    taken: set[str] = set()
    for pattern in chosen:
        matched = [name for name in (own if pattern.startswith(STAYS) else floats) if _matches(name, pattern)]
        if not matched:
            raise ConfigError(
                f"task.buffers: {pattern!r} matches no buffer of finite floating-point numbers of this model; its buffers are "
                f"{_listed(list(own)) or 'none'}; leave it out"
            )
        taken |= set() if pattern.startswith(STAYS) else set(matched)
    return _narrow(module, [name for name in floats if name in taken])


def _narrow(module: nn.Module, names: Sequence[str]) -> tuple[str, ...]:
    wide = (torch.float64, torch.complex128)
    if any(each.dtype in wide for each in module.parameters() if each.requires_grad):
        return tuple(names)
    for name in names:
        if (dtype := module.get_buffer(name).dtype) in wide:
            raise ConfigError(
                f"task.buffers: {name} is {str(dtype).removeprefix('torch.')}, which would be rounded to float32; make it float32, or name "
                "what is averaged without it"
            )
    return tuple(names)


def _own_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers by name, each once, without those of packed layers."""
    left_out = quantised(module)
    return {name: each for name, each in module.named_buffers() if name not in left_out}


def _persistent(module: nn.Module) -> set[str]:
    return set(module.state_dict())


def _normalising(module: nn.Module) -> set[str]:
    layers = set(map(id, tracking(module)))
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, layer in module.named_modules()
        if id(layer) in layers
        for name, _ in layer.named_buffers(recurse=False)
    }


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern.removeprefix(STAYS))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else "")


class SideState:
    """Untrained state of one module.

    Attributes:
        notes: observed changes, each a line for the owner, until they are taken.
    """

    def __init__(self, module: nn.Module, manifest: Manifest) -> None:
        """Find the buffers. Raises ConfigError as `carried_buffers`."""
        self._module = module
        self.notes: list[str] = []
        chosen = manifest.task.buffers
        self.carried = carried_buffers(manifest, module)
        quiet = _normalising(module) | set(self.carried)
        if isinstance(chosen, tuple):
            stay = [pattern for pattern in chosen if pattern.startswith(STAYS)]
            quiet |= {name for name in self.buffers for pattern in stay if _matches(name, pattern)}
        self._watched = set() if chosen == "local" else self.buffers.keys() - quiet
        self._kept = SavedBuffers(module, self.buffers, self._watched)
        self.after_step: Moves = (self._kept.keep,) if self._kept else ()
        self._frozen = {
            name: each for name, each in module.named_parameters() if not each.requires_grad and not each.is_meta and not packed(each)
        }
        self._changing: dict[str, nn.Parameter] = {}
        self._gives = True
        self._seen = self._samples()
        self._extra = _extra_states(module)

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Return the current buffers by name: a module may have replaced them."""
        return _own_buffers(self._module)

    @property
    def teachers(self) -> tuple[nn.Parameter, ...]:
        """Return the frozen parameters that were seen to change."""
        return tuple(self._changing.values())

    def mark(self) -> None:
        """Mark the state as good after a round: detect changes, and copy the buffers."""
        self._look_at_frozen()
        self._look_at_extra()
        if changed := self._kept.mark():
            self.notes.append(
                f"task.buffers: training changes {_listed(sorted(changed))}, which stay at this node; a swarm created with `--set "
                "task.buffers=average`, or their names, averages them with the model, with `local` they stay without this note"
            )

    def reset_buffers(self) -> None:
        """Undo a forward pass's changes of buffers."""
        self._kept.reset()

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint."""
        return {**{BUFFER + name: each for name, each in self.buffers.items()}, **self.changing()}

    def changing(self) -> dict[str, Tensor]:
        """Return the frozen parameters that were seen to change."""
        return {FROZEN + name: each.detach() for name, each in self._changing.items()}

    def keep_home(self) -> None:
        """Give late joiners no state from now on: it reveals samples, without the noise of differential privacy."""
        self._gives = False

    def given(self) -> dict[str, Tensor]:
        """Return the tensors for late joiners: frozen parameters that were seen to change."""
        return self.changing() if self._gives else {}

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise ValueError unless buffers are the module's, whose first dimension may have grown, and frozen parameters its own."""
        exact = _normalising(self._module)
        given, ours = (
            {name: (b.shape[0 if name in exact else 1 :], b.ndim, b.dtype) for name, b in each.items()}
            for each in (named(tensors, BUFFER), self.buffers)
        )
        if given != ours:
            raise ValueError("holds other buffers than the model has")
        self.check_changing({name: each for name, each in tensors.items() if name.startswith(FROZEN)})

    def check_changing(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise ValueError unless all are frozen parameters of the module, finite, as `changing` names them."""
        for name, each in tensors.items():
            own = self._frozen.get(name.removeprefix(FROZEN)) if name.startswith(FROZEN) else None
            if own is None or own.shape != each.shape or own.dtype != each.dtype or not finite(real(each)):
                raise ValueError("holds other frozen parameters than the model has")

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Install a checkpoint's state, which `check` has accepted."""
        now = self.buffers
        with torch.no_grad():
            for name, each in named(tensors, BUFFER).items():
                put(now[name], each)
        self.take([tensors])

    def take(self, given: Sequence[Mapping[str, Tensor]]) -> None:
        """Install the median of several nodes' frozen parameters, number by number, the lower one of two."""
        for name in sorted({name for each in given for name in named(each, FROZEN)}):
            values = [each[FROZEN + name] for each in given if FROZEN + name in each]
            self._changing[name] = self._frozen[name]
            with torch.no_grad():
                median = values[0] if len(values) == 1 else torch.stack(values).sort(0).values[(len(values) - 1) // 2]
                self._frozen[name].copy_(median)
        self._seen = self._samples()

    def _look_at_frozen(self) -> None:
        now = self._samples()
        changed = [name for name in now if name not in self._changing and not same(now[name], self._seen.get(name))]
        if changed:
            self._changing |= {name: self._frozen[name] for name in changed}
            self.notes.append(
                f"frozen parameters change in training: {_listed(changed)}; they stay at this node, are in its checkpoints, and given "
                "to late joiners"
            )
        self._seen = now

    def _look_at_extra(self) -> None:
        changed = sorted(name for name, each in _extra_states(self._module).items() if self._extra.get(name) != each)
        if changed and self._extra:
            self.notes.append(
                f"get_extra_state: training changes that of {_listed(changed)}; it is in no checkpoint and no export, which have that of a "
                "fresh model; keep it in buffers, register_buffer"
            )
            self._extra = {}

    def _samples(self) -> dict[str, Tensor]:
        """Return a few numbers of each frozen parameter that was not seen to change."""
        return {name: _some(each) for name, each in self._frozen.items() if name not in self._changing and each.numel()}


def _extra_states(module: nn.Module) -> dict[str, bytes]:
    """Return modules' extra state as bytes to compare; nothing for one without bytes."""
    found: dict[str, bytes] = {}
    for name, each in module.named_modules():
        if type(each).get_extra_state is not nn.Module.get_extra_state:
            with suppress(Exception):  # the owner's objects may raise anything
                found[name or type(each).__name__] = pickle.dumps(each.get_extra_state())
    return found


def _some(parameter: Tensor) -> Tensor:
    flat = parameter.detach().reshape(-1)
    return flat[:: max(1, len(flat) // _LOOKED_AT)].clone()


def named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the entries whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
