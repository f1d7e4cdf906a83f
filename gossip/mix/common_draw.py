"""Messages that all peers of a sender get: their random numbers depend on sender and round, not on the receiver.

Shapes: D numbers of the shared vector.
"""

from dataclasses import dataclass, field

from starling.gossip.api import Selector
from starling.gossip.lazy_torch import Generator, Tensor, torch
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.rng import generator
from starling.gossip.seeds import derive


def mask_seed(seed: int, sender: str) -> int:
    """Return the selector's seed; its turn is the round. `seed` is that of the swarm."""
    return derive(seed, "mask", sender)


def chance(seed: int, sender: str, round: int) -> Generator:
    """Return what the quantizer rounds by."""
    return generator(seed, "quantize", sender, round)


@dataclass(slots=True)
class RoundMessages:
    """The messages of one sender in one round."""

    codec: ExchangeCodec
    selector: Selector
    seed: int  # of the swarm
    sender: str
    round: int
    _last: tuple[Tensor, bytes] | None = field(init=False, default=None)

    def encode(self, message: Tensor) -> bytes:
        """Return the payload of a message (D,), the same bytes for the same message. Raises ValueError: "not_finite"."""
        if self._last is None or not torch.equal(message, self._last[0]):
            support = self.selector.select(message, None, mask_seed(self.seed, self.sender), self.round)
            drawn = chance(self.seed, self.sender, self.round)
            self._last = message, self.codec.encode_message(message, support, drawn)
        return self._last[1]
