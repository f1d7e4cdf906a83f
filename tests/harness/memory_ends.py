"""An optimiser memory stored as two vectors, and both ends of exchanges of memories."""

import torch

from starling.gossip.compress.quantize.kinds import integer
from starling.gossip.compress.support import Full
from starling.gossip.mix.memories import Decay, MemoryCodec, MemoryExchange

BETAS = (0.9, 0.999)
CODEC = MemoryCodec(integer(8, nearest=True, bucket=32))


class VectorMemory:
    """Satisfies `starling.gossip.mix.memories.Memory`."""

    def __init__(self, mean, square, age, decays=None, clock=0):
        self.mean, self.square, self.age = mean.clone(), square.clone(), age
        self.decays = (Decay(slice(0, len(mean)), *BETAS),) if decays is None else decays
        self.met, self.clock, self.life = 0, clock, object()

    def read(self):
        return self.mean, self.square

    def write(self, mean, square, age):
        self.mean, self.square, self.age = mean, square, age

    def step(self, gradient):
        """Update the memory with a gradient, as Adam does."""
        for each in self.decays:
            part = gradient[each.where]
            self.mean[each.where] = each.mean * self.mean[each.where] + (1 - each.mean) * part
            if each.square is not None:
                self.square[each.where] = each.square * self.square[each.where] + (1 - each.square) * part**2
        self.age, self.clock = self.age + 1, self.clock + 1

    def forget(self):
        """Reset the memory."""
        self.mean, self.square, self.age = torch.zeros_like(self.mean), torch.zeros_like(self.square), 0
        self.met, self.clock, self.life = 0, 0, object()


def drawn(count, age, chance, decays=None, dtype=torch.float32):
    """Return a memory of `age` gradients."""
    made = VectorMemory(torch.zeros(count, dtype=dtype), torch.zeros(count, dtype=dtype), 0, decays)
    for _ in range(age):
        made.step(torch.randn(count, generator=chance, dtype=dtype))
    return made


def meet(one, other, *, theta=0.5, support=None, codec=CODEC, seed=0, **options):
    """Run an exchange initiated by `one`; return its effects at both ends, and its messages."""
    support = support or Full()
    dim = len(one.mean)
    ends = [MemoryExchange(each, codec, **options) for each in (one, other)]
    chance = [torch.Generator().manual_seed(seed + end) for end in range(2)]
    asked = ends[0].told(support, chance[0])
    heard = ends[1].parsed(asked.values, float(asked.age), support, dim)
    said, theirs = ends[1].answer(support, theta, heard, chance[1])
    ours = ends[0].answered(support, theta, ends[0].parsed(said.values, float(said.age), support, dim))
    return ends, (ours, theirs), (asked, said)


def learned(one, other, **options):
    """Run an exchange that both ends commit at once."""
    ends, effects, said = meet(one, other, **options)
    for end, effect in zip(ends, effects, strict=True):
        end.learn(effect)
    return said
