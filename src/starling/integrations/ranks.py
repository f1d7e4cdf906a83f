"""Messages of rank 0 to the other ranks: those of its node's engine, with vectors.

    >= 1    length of a word, which comes next; then the vectors that belong to it
    WAIT    there is nothing yet: rank 0 says so every BEAT_S
    GO_ON   there is nothing yet, and the next local step is to be done

Shapes: d parameters.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from starling.gossip.errors import GossipError
from starling.node.rpc.script import Bye, Grant, Measure, Refusal, Welcome
from starling.node.rpc.shared_vectors import Half

BEAT_S = 2.0  # from one word of rank 0 to the next, while it waits
WAIT, GO_ON = 0, -1


class Restored(msgspec.Struct, frozen=True, tag_field="kind", tag="restored"):
    """State that rank 0 has restored into the objects in `state`."""

    round: int | None  # None: nothing
    size: int = 0  # bytes of a file of torch.save, which are shared next


Word = Welcome | Grant | Measure | Refusal | Bye | Restored
"""What rank 0 says. Refusal: it cannot go on, for that reason. Bye: the node has ended in order."""


class Ranks:
    """The processes of this training, and a group of theirs for what rank 0 says.

    Attributes:
        rank: of this one.
        size: how many there are.
    """

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._group = dist.new_group(backend="gloo")
        self._spoke = time.monotonic()

    def tell(self, word: Word, half: Half | None = None) -> None:
        """Tell the others, with vectors of the engine's half. Raises GossipError: one is gone."""
        body = msgspec.msgpack.encode(word)
        self._tell_length(len(body))
        self.share(torch.frombuffer(bytearray(body), dtype=torch.uint8))
        for each in _sent(word, half):
            self.share(each)

    def tell_to_wait(self) -> None:
        """Tell the others that there is nothing yet, if the last word is BEAT_S old. Raises GossipError: one is gone."""
        if time.monotonic() - self._spoke >= BEAT_S:
            self._tell_length(WAIT)

    def tell_to_go_on(self) -> None:
        """Tell the others, which ask whether there is a word, that there is none. Raises GossipError: one is gone."""
        self._tell_length(GO_ON)

    @contextmanager
    def told_of_errors(self) -> Iterator[None]:
        """Tell the others why rank 0 cannot go on."""
        try:
            yield
        except GossipError as error:
            self.tell(Refusal(str(error)))
            raise

    def hear(self, half: Half | None = None) -> Word | None:
        """Wait for a word of rank 0, and take over its vectors -> it; None: the next step is to be done before there is one.

        Raises GossipError: rank 0 cannot go on, or is gone.
        """
        length = torch.zeros(1, dtype=torch.int64, device="cpu")
        while length == WAIT:
            self.share(length)
        if length == GO_ON:
            return None
        body = torch.empty(int(length), dtype=torch.uint8, device="cpu")
        self.share(body)
        word: Word = msgspec.msgpack.decode(body.numpy().tobytes(), type=Word)
        if isinstance(word, Refusal):
            raise GossipError(f"rank 0 cannot go on: {word.reason}")
        for each in _sent(word, half):
            self.share(each)
        return word

    def share(self, tensor: Tensor) -> None:
        """Give all ranks the values that a tensor has in rank 0. Raises GossipError: one is gone."""
        with _broken():
            dist.broadcast(tensor, 0, group=self._group)

    def sum(self, values: Sequence[float]) -> Sequence[float]:
        """Return the sums of these over all ranks, which all ask for them. Raises GossipError: one is gone."""
        sums = torch.tensor(values, dtype=torch.float64, device="cpu")
        with _broken():
            dist.all_reduce(sums, group=self._group)
        found: list[float] = sums.tolist()
        return found

    def _tell_length(self, length: int) -> None:
        self._spoke = time.monotonic()
        self.share(torch.tensor([length], dtype=torch.int64, device="cpu"))


@contextmanager
def _broken() -> Iterator[None]:
    """Raises GossipError where torch says that a collective has failed."""
    try:
        yield
    except RuntimeError as error:
        raise GossipError(f"another rank of this training has ended: {error}") from error


def _sent(word: Word, half: Half | None) -> Sequence[Tensor]:
    """Return the vectors (d,) that go with a word."""
    match word:
        case Measure() if half is not None:
            return (half.x,)
        case Grant() if half is not None:
            remembered = (half.mean, half.square) if word.age else ()
            return (half.x, *remembered, *((half.correction,) if word.flows else ()))
    return ()
