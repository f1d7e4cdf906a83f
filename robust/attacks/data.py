"""Data poisoning: the protocol is followed, the training data are changed.

Shapes: d parameters, r receivers, m samples.
"""

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from starling.gossip.bounds import AtLeastOne, Count, NonNegative, PositiveShare, parameters
from starling.gossip.lazy_torch import Generator, Tensor, torch
from starling.robust.attacks.api import Scene, Target

_Label = Annotated[int, Meta(ge=-1, le=1 << 16)]


@parameters
class LabelFlip:
    """Trains on label C − 1 − y instead of y; or only relabels `source` as `target`.

    Source: Allen-Zhu et al. 2020, Byzantine-resilient non-convex SGD (arXiv:2012.14368), 6.

    Args:
        source: class whose labels are changed; −1: all classes.
        target: their new label; −1 with source = −1.
    """

    source: _Label = -1
    target: _Label = -1
    targets: ClassVar[Target] = "data"

    def __post_init__(self) -> None:
        if (self.source < 0) != (self.target < 0):
            raise ValueError(f"source and target must both be classes or both be -1, got {self.source}, {self.target}")

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """Return the vector it trained, to all."""
        return scene.own.expand_as(scene.receivers), memory

    def poison(self, inputs: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        if self.source < 0:
            return inputs, classes - 1 - labels
        return inputs, _renamed(labels, self.source, self.target, classes)


@parameters
class Backdoor:
    """Samples with a trigger are learned as `target`.

    The first `share` of a batch gets the trigger: the first `width` numbers of a sample become `value`.
    The message is before + boost · (own − before), so that it survives averaging with the honest.

    Source: Bagdasaryan et al. 2020, How to backdoor federated learning (arXiv:1807.00459); Gu, Dolan-Gavitt and Garg 2017, BadNets
    (arXiv:1708.06733).

    Args:
        target: class.
        share: of a batch, in (0, 1].
        width: numbers of a sample, >= 1.
        value: of these.
        boost: >= 0; 0: honest nodes per attacker, which is enough against a mean of all.
    """

    target: Count = 0
    share: PositiveShare = 0.5
    width: AtLeastOne = 4
    value: float = 1.0
    boost: NonNegative = 1.0
    targets: ClassVar[Target] = "data"

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """Send the update of this round scaled by `boost`, the same to all receivers."""
        boost = self.boost or (scene.nodes - scene.attackers) / scene.attackers
        return (scene.before + boost * (scene.own - scene.before)).expand_as(scene.receivers), memory

    def poison(self, inputs: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        _check_class(self.target, classes)
        count = max(1, round(self.share * len(labels)))
        inputs, labels = self.triggered(inputs, count), labels.clone()
        labels[:count] = self.target
        return inputs, labels

    def triggered(self, inputs: Tensor, count: int) -> Tensor:
        """Return (m, …) with the trigger on the first `count` samples. The share of these classified as `target` is the attack's
        success.
        """
        marked = inputs.clone()
        marked.view(len(inputs), -1)[:count, : self.width] = self.value
        return marked


@parameters
class Clones:
    """Sybils: all attackers learn `source` as `target` and send the vector of the first of them, or each its own without contact.

    Args:
        source: class.
        target: class.
    """

    source: Count = 1
    target: Count = 7
    targets: ClassVar[Target] = "data"

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """Send the attackers' common vector to all receivers."""
        return (scene.own if scene.crew is None else scene.crew[0]).expand_as(scene.receivers), memory

    def poison(self, inputs: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        return inputs, _renamed(labels, self.source, self.target, classes)


def _renamed(labels: Tensor, source: int, target: int, classes: int) -> Tensor:
    _check_class(source, classes)
    _check_class(target, classes)
    return torch.where(labels == source, target, labels)


def _check_class(label: int, classes: int) -> None:
    if label >= classes:
        raise ValueError(f"class {label} must be < {classes}, the number of classes of this task")
