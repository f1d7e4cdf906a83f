"""MNIST with few images per node, as in the reference's studies of small nets: pixels have mean 0 and deviation 1."""

import torch

from starling.gossip.rng import generator
from starling.node.tasks.images import Images
from starling.node.tasks.labelled import LabelledData

TEST = 4000
MEAN, DEVIATION = 0.1307, 0.3081


class FewImages(Images):
    """Labels among a node's first images, in a node-specific order; evaluated on as many test images as the reference has."""

    def __init__(self, path: str, each: int = 150, hidden: int = 64, test: int = TEST) -> None:
        super().__init__(path=path, hidden=hidden)
        object.__setattr__(self, "each", each)
        object.__setattr__(self, "test", test)

    def data(self, source, device):
        whole = super().data(source, device)
        few = torch.randperm(whole.samples, generator=generator(source.seed, "few", source.shard))[: self.each]
        return LabelledData(*_scaled(*whole.take(few)), *_scaled(*next(whole.held_out(self.test))))


def _scaled(x, y):
    return (x - MEAN) / DEVIATION, y
