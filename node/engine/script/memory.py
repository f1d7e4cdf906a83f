"""State of a script's optimisers in the form that exchanges of memories use: a copy that each of its rounds renews.

Shapes: d parameters, D numbers of the shared vector.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from starling.gossip.mix.memories import Decay, Memories, carry
from starling.node.engine.memory_pieces import View


class ScriptMemory:
    """State of a script's optimisers, empty until the script has sent one. Satisfies `starling.gossip.mix.memories.Memory`.

    Attributes:
        mean, square: (d,) m and v.
        age: in local steps; 0: it is empty.
        clock: local steps that the script has done since `life` began.
        met: exchanges since it was empty.
    """

    def __init__(self, dim: int, dtype: torch.dtype, view: View) -> None:
        self.mean, self.square = torch.zeros(dim, dtype=dtype), torch.zeros(dim, dtype=dtype)
        self.age = self.clock = self.met = 0
        self.decays: Sequence[Decay] = ()
        self.life: object = object()
        self._view = view

    def told(self, mean: Tensor, square: Tensor, age: int, decays: Sequence[Decay]) -> None:
        """Store the script's optimiser state (d,) after local steps; nothing is exchanged at age 0."""
        if age == 0:
            if self.age:
                self.forget()
            return
        self.mean.copy_(mean)
        self.square.copy_(square)
        self.age, self.decays = age, self._view.decays(decays)

    def moved(self, base: Memories, mean: Tensor, square: Tensor, age: int, decays: Sequence[Decay], steps: int) -> None:
        """Store the memory after so many local steps from `base`, while exchanges may have changed it."""
        before = (self.mean.clone(), self.square.clone()) if self.age and age else None
        self.told(mean, square, age, decays)
        if before is not None:
            carry(self.mean, self.square, before, base, decays, steps, age)

    def forget(self) -> None:
        """Clear the memory: the model was replaced."""
        self.mean.zero_()
        self.square.zero_()
        self.age = self.clock = self.met = 0
        self.life = object()

    def read(self) -> tuple[Tensor, Tensor]:
        """Return the moments m and v (D,)."""
        return self._view.shared(self.mean), self._view.shared(self.square)

    def write(self, mean: Tensor, square: Tensor, age: int) -> None:
        """Replace the shared part of the state."""
        whole = slice(0, self.mean.numel())
        self.mean.copy_(self._view.own(mean, whole, lambda: self.mean))
        self.square.copy_(self._view.own(square, whole, lambda: self.square))
        self.age = age
