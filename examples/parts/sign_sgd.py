"""A local optimiser: a step of one length in every coordinate."""

from dataclasses import dataclass, field

from starling.gossip.lazy_torch import Tensor


@dataclass
class SignSgd:
    like: Tensor = field(repr=False)  # (d,) a vector such as those it will step
    damping: float = 1.0

    def step(self, x, direction, lr):
        x.sub_(direction.sign(), alpha=lr * self.damping)

    def state_dict(self):
        return {}

    def load(self, state):
        if state:
            raise ValueError("this optimiser has no memory")

    share = load
