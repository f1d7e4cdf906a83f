"""Memories of local optimisers, averaged along an edge like the models.

Adam and Muon divide by what they remember of gradients. Where data differ, a memory that never saw the other's data makes a full step of
each small gradient; the average of both makes the step that a node with the data of both would make. An average is convex: it needs no sum
to be conserved, forgets at the optimiser's own rate, and a lost exchange, a closed edge or a death costs nothing.

    i -> j   q(m_i), and log(v_i) in some exchanges;  age t_i
    j -> i   q(m_j − q(m_i)), log(v_j) likewise;      age t_j
    both     m ± θ·decoded,  v <- (1 − θ)·v + θ·v_other,  w <- (1 − θ)·w + θ·w_other
    then     v <- max(v, (m/w1)²·w2): no coordinate of a step is longer than the rate

w1 = 1 − β1^t and w2 = 1 − β2^t are the weights of gradients in m and v at age t. Optimisers of torch keep one whole number t, so after an
exchange both ends take the greater age and scale m and v from the mean weight to that of this age: bias corrections stay as they were.

An answer that is committed s local steps later, m having decayed by β1^s, is added with that factor: m is linear in it, so it is as if it
had been added in time.

An empty memory says nothing and learns nothing: a node that joins does its local steps first. So no memory rests on one peer's word.

A receiver bounds what one peer does: θ·‖decoded‖ <= max(‖m‖, ¼·√(Σ v/w2)·w1), and Σ v_other/w2 <= 4·Σ v/w2.

Shapes: D numbers of the shared vector, k of one exchange, h of them with a second moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from starling.gossip.api import Quantizer
from starling.gossip.compress.header import TRAILER
from starling.gossip.compress.quantize.logarithm import Logarithm
from starling.gossip.compress.support import Full, Support
from starling.gossip.lazy_torch import Generator, Tensor, torch
from starling.gossip.mix.rows import blocks
from starling.gossip.vector import stretches

OLDEST = 1 << 24  # largest age in a message: float32 counts no further, and all weights are 1 by then
LONGEST_SHARE = 0.25  # largest change of m, as a share of the root of Σ v
LARGEST = 4.0  # largest Σ v/w2 of a peer, in units of ours


@dataclass(frozen=True, slots=True)
class Decay:
    """Decay of some coordinates of a memory: m by `mean` a step, v by `square`; None: they have no v."""

    where: slice
    mean: float
    square: float | None


class Memory(Protocol):
    """State of one node's optimiser for the shared vector's coordinates.

    Attributes:
        decays: of all D coordinates, in order, without gaps.
        met: exchanges since it was empty.
    """

    decays: Sequence[Decay]
    met: int

    @property
    def age(self) -> int:
        """Local steps that are remembered; 0: it is empty."""

    @property
    def clock(self) -> int:
        """Return the local steps since `life` began."""

    @property
    def life(self) -> object:
        """Object that changes identity when the memory is deleted."""

    def read(self) -> tuple[Tensor, Tensor]:
        """Return m (D,) and v (D,), 0 where there is none or the memory is empty; may return its own storage."""

    def write(self, mean: Tensor, square: Tensor, age: int) -> None:
        """Replace it by what `read` gave, changed in place, at an age >= 1."""


@dataclass(frozen=True, slots=True)
class MemoryCodec:
    """The swarm's codec of memories.

    Args:
        mean: quantizer of m and of differences of m.
        square: quantizer of v.
        every: exchanges of a node, after the first as many, of which one carries v.
    """

    mean: Quantizer
    square: Logarithm = field(default_factory=Logarithm)
    every: int = 4

    def squared(self, met: int) -> bool:
        """Return whether the exchange after `met` others carries v: it is one of the first, or the next in turn."""
        return met < self.every or met % self.every == 0


@dataclass(frozen=True, slots=True)
class MemoryMessage:
    """Message of one end about its memory.

    Args:
        age: in local steps, 0: it is empty.
        mean: the codes of m, or of a difference of m; b"": none.
        square: those of v; b"": none.
    """

    age: int
    mean: bytes = b""
    square: bytes = b""

    @property
    def values(self) -> bytes:
        """Return all codes."""
        return self.mean + self.square


def joined(payload: bytes, said: MemoryMessage) -> bytes:
    """Return a payload followed by an end's report of its memory."""
    values = said.values
    return b"".join((payload, values, TRAILER.pack(said.age, len(values))))


def split_memory(payload: bytes) -> tuple[bytes, bytes, float]:
    """Return what was before the memory in a payload, the memory's codes, and an age to be checked.

    Raises ValueError: "bad_length".
    """
    end = len(payload) - TRAILER.size
    if end < 0:
        raise ValueError("bad_length")
    age, length = TRAILER.unpack_from(payload, end)
    if length > end:
        raise ValueError("bad_length")
    return payload[: end - length], payload[end - length : end], age


@dataclass(frozen=True, slots=True)
class Learned:
    """Effect of an exchange on this end's memory, stored as the received bytes."""

    support: Support
    theta: float
    difference: bytes  # of m
    sign: float  # sign of the difference at this end: 1 or −1
    square: bytes  # the other end's v; b"": none
    age: int  # age of the other end's memory
    own_age: int
    clock: int
    life: object


def _second(decays: Sequence[Decay], support: Support, dim: int) -> Tensor | None:
    """Return (k,) bool, the coordinates of an exchange that have a v; None: all."""
    if all(each.square is not None for each in decays):
        return None
    has = torch.zeros(dim)
    for each in decays:
        has[each.where] = float(each.square is not None)
    return support.view(has) > 0.0


def _part(values: Tensor, support: Support, chosen: Tensor | None = None) -> Tensor:
    """Return what values (D,) have on a support, of these only the chosen (k,) bool."""
    part = support.view(values)
    return part if chosen is None else part[chosen.to(part.device)]


Memories = tuple[Tensor, Tensor]
"""M and v (D,)."""
Forged = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""M and v (D,) -> what an attacker says of them."""


@dataclass(frozen=True, slots=True)
class MemoryExchange:
    """One node's side of exchanges of memories.

    Args:
        memory: its own.
        codec: of the swarm.
        home: it says nothing of its memory and learns nothing, as one whose optimiser is not known by name, or that adds noise to what it
            sends.
        forged: what is said instead of m and v (D,), by who attacks others; None: the truth.
    """

    memory: Memory
    codec: MemoryCodec
    home: bool = False
    forged: Forged | None = None

    def told(self, support: Support, chance: Generator) -> MemoryMessage:
        """Return an initiator's memory on a support, with v where it is its turn. Raises ValueError: "not_finite"."""
        memory = self.memory
        if self.home or memory.age == 0:
            return MemoryMessage(0)
        mean, square = self._said()
        carried = self.codec.mean.encode(_part(mean, support), chance)
        return MemoryMessage(
            min(memory.age, OLDEST), carried, self._square(support, square, chance) if self.codec.squared(memory.met) else b""
        )

    def parsed(self, values: bytes, age: float, support: Support, dim: int) -> MemoryMessage:
        """Return the other end's report from its codes and its age, decoded at once so that errors are the peer's fault.

        Raises ValueError: a snake_case reason; "bad_memory": an age that is none, or codes that are too short or too long.
        """
        if not 0 <= age <= OLDEST or age != int(age) or (age == 0) != (not values):
            raise ValueError("bad_memory")
        if not values:
            return MemoryMessage(0)
        count, second = support.size(dim), self._seconds(support, dim)
        end = self.codec.mean.size(count)
        if len(values) - end not in (0, self.codec.square.size(second)):
            raise ValueError("bad_memory")
        said = MemoryMessage(int(age), values[:end], values[end:])
        self.codec.mean.decode(said.mean, count)
        if said.square:
            self.codec.square.decode(said.square, second)
        return said

    def answer(self, support: Support, theta: float, asked: MemoryMessage, chance: Generator) -> tuple[MemoryMessage, Learned | None]:
        """Return a responder's answer, and what the exchange does at its end; None: nothing. Raises ValueError: "not_finite"."""
        memory = self.memory
        if self.home or not asked.mean or memory.age == 0:
            return MemoryMessage(0), None
        mean, square = self._said()
        difference = _part(mean, support).cpu().float().clone()
        difference -= self.codec.mean.decode(asked.mean, difference.numel())
        codes = self.codec.mean.encode(difference, chance)
        said = MemoryMessage(min(memory.age, OLDEST), codes, self._square(support, square, chance) if asked.square else b"")
        return said, self._learned(support, theta, codes, -1.0, asked)

    def answered(self, support: Support, theta: float, said: MemoryMessage) -> Learned | None:
        """Return the effect of a response at the initiator; None: nothing."""
        return None if self.home or not said.mean else self._learned(support, theta, said.mean, 1.0, said)

    def _said(self) -> tuple[Tensor, Tensor]:
        mean, square = self.memory.read()
        return (mean, square) if self.forged is None else self.forged(mean, square)

    def _learned(self, support: Support, theta: float, codes: bytes, sign: float, other: MemoryMessage) -> Learned:
        memory = self.memory
        return Learned(support, theta, codes, sign, other.square, other.age, memory.age, memory.clock, memory.life)

    def _square(self, support: Support, square: Tensor, chance: Generator) -> bytes:
        chosen = _second(self.memory.decays, support, square.numel())
        return self.codec.square.encode(_part(square, support, chosen), chance)

    def _seconds(self, support: Support, dim: int) -> int:
        """Return h of an exchange."""
        second = _second(self.memory.decays, support, dim)
        return support.size(dim) if second is None else int(second.sum())

    def learn(self, each: Learned | None) -> None:
        """Apply a committed exchange to the memory, unless it is empty or the memory was reset since."""
        memory = self.memory
        if each is None or each.life is not memory.life or memory.age == 0:
            return
        own, since = memory.age, memory.clock - each.clock
        memory.met += 1
        mean, square = memory.read()
        age = max(own, each.age + since) if isinstance(each.support, Full) else own
        ages = _Ages(own, each, since, age, memory.decays)
        index = each.support.index(mean.numel())
        m, v = mean[index], square[index]
        second = _second(memory.decays, each.support, mean.numel())
        self._learn_mean(m, v, ages, index)
        self._learn_square(v, second, ages, index)
        _lift(m, v, ages, index)
        if not isinstance(index, slice):
            mean[index], square[index] = m, v
        memory.write(mean, square, age)

    def _learn_mean(self, m: Tensor, v: Tensor, ages: _Ages, index: slice | Tensor) -> None:
        """Add the difference to m (k,) in place, v (k,) being as before."""
        each = ages.other
        change = self.codec.mean.decode(each.difference, m.numel()).to(m)
        change *= each.sign * each.theta
        _times(change, ages.by(lambda decay: decay.mean**ages.since, index, change))
        length, most = float(change.norm()), _longest(m, v, ages, index)
        change *= most / length if length > most else 1.0
        m += change
        _times(m, ages.by(ages.mean, index, m))

    def _learn_square(self, v: Tensor, second: Tensor | None, ages: _Ages, index: slice | Tensor) -> None:
        """Average v (k,) in place with the other's, where it came."""
        each = ages.other
        if each.square:
            count = v.numel() if second is None else int(second.sum())
            others = self.codec.square.decode(each.square, count).to(v)
            if second is not None:
                others = torch.zeros_like(v).masked_scatter_(second.to(v.device), others)
            _bound(others, v, ages, index)
            v.lerp_(others, each.theta)
        _times(v, ages.by(ages.square, index, v))


Factor = Callable[[Decay], float]


def _times(x: Tensor, factor: float | Tensor) -> None:
    """Multiply x (k,) in place; nothing is done for 1."""
    if not isinstance(factor, float) or factor != 1.0:
        x *= factor


def _longest(m: Tensor, v: Tensor, ages: _Ages, index: slice | Tensor) -> float:
    """Return how long a change of m (k,) may be."""

    def scale(decay: Decay) -> float:
        return 0.0 if decay.square is None else _weight(decay.mean, ages.own) ** 2 / _weight(decay.square, ages.own)

    return max(float(m.norm()), LONGEST_SHARE * math.sqrt(_total(v, ages.by(scale, index, v))))


def _total(x: Tensor, factor: float | Tensor) -> float:
    """Return Σ of factor·x (k,)."""
    return float(x.sum()) * factor if isinstance(factor, float) else float((x * factor).sum())


def _bound(others: Tensor, v: Tensor, ages: _Ages, index: slice | Tensor) -> None:
    """Shorten another's v (k,) in place where its sum is far above that of our v (k,), each over its weight."""

    def total(squares: Tensor, age: int) -> float:
        inverse = ages.by(lambda decay: 0.0 if decay.square is None else 1.0 / _weight(decay.square, age), index, squares)
        return _total(squares, inverse)

    theirs, most = total(others, ages.other.age), LARGEST * total(v, ages.own)
    if theirs > most > 0.0:
        others *= most / theirs


def _lift(m: Tensor, v: Tensor, ages: _Ages, index: slice | Tensor) -> None:
    """Raise v (k,) in place to (m/w1)²·w2 where it is less."""

    def scale(decay: Decay) -> float:
        return 0.0 if decay.square is None else _weight(decay.square, ages.age) / _weight(decay.mean, ages.age) ** 2

    factor = ages.by(scale, index, v)
    for part, _ in stretches(slice(None), v.numel()):
        least = m[part].square().mul_(factor if isinstance(factor, float) else factor[part])
        torch.maximum(v[part], least, out=v[part])


def carry(mean: Tensor, square: Tensor, other: Memories, base: Memories, decays: Sequence[Decay], steps: int, age: int) -> None:
    """Add to m and v (D,) in place what an exchange did to them elsewhere, `steps` local steps ago: from `base` to `other`, m and v each.

    `age` is that of m and v now. v is raised where a step would be longer than the rate, as after an exchange.
    """
    for each in decays:
        vectors = (mean, other[0], base[0], square, other[1], base[1])
        for m, after, before, v, raised, was in blocks(*(vector[each.where] for vector in vectors)):
            m.add_(after - before, alpha=each.mean**steps)
            if each.square is not None:
                v.add_(raised - was, alpha=each.square**steps).clamp_min_(0.0)
                least = _weight(each.square, age) / _weight(each.mean, age) ** 2
                torch.maximum(v, m.square().mul_(least), out=v)


def _weight(beta: float, age: int) -> float:
    """Return the weight of gradients in a memory of this age."""
    return float(1.0 - beta**age)


@dataclass(frozen=True, slots=True)
class _Ages:
    """Age of a memory before and after an exchange, and the factors that follow."""

    own: int  # before
    other: Learned
    since: int  # local steps since the exchange was agreed
    age: int  # after
    decays: Sequence[Decay]

    def by(self, factor: Factor, index: slice | Tensor, like: Tensor) -> float | Tensor:
        """Return a factor for each coordinate of an exchange: one number where it is the same for all, else (k,)."""
        numbers = [factor(each) for each in self.decays]
        if all(number == numbers[0] for number in numbers):
            return numbers[0]
        lengths = torch.tensor([each.where.stop - each.where.start for each in self.decays])
        return torch.tensor(numbers, dtype=like.dtype).repeat_interleave(lengths)[index].to(like.device)

    def mean(self, decay: Decay) -> float:
        """Return by what m, the change added, is multiplied for the age after."""
        beta, other = decay.mean, self.other
        added = other.theta * beta**self.since * (_weight(beta, other.age) - _weight(beta, other.own_age))
        return _ratio(_weight(beta, self.age), _weight(beta, self.own) + added)

    def square(self, decay: Decay) -> float:
        """Return by what v, averaged where the other's came, is multiplied for the age after."""
        if decay.square is None:
            return 1.0
        own, theirs = _weight(decay.square, self.own), _weight(decay.square, self.other.age)
        return _ratio(_weight(decay.square, self.age), own + self.other.theta * (theirs - own) if self.other.square else own)


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0.0 else 1.0
