"""Handwritten digits split by label, and a net for them: each PART has two or three of the ten digits, and all are tested."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from starling.node.tasks.digits import built_in
from tests.integrations.scripts.common import PARTS

SWARM = {"rounds": 150, "local_steps": 5, "metric": "accuracy"}


class Net(nn.Module):
    """A net whose parameters have equal names in all loops."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x):
        return self.net(x)


def read(part):
    """Return (x, y) of a part, or of all for None, and of the test split."""
    trained, tested = (tuple(map(torch.tensor, (each.x, each.y))) for each in built_in())
    x, y = trained
    if part is not None:
        own = y * PARTS // 10 == part
        x, y = x[own], y[own]
    return (x, y), tested


def loader(pair, batch_size=32):
    return DataLoader(TensorDataset(*pair), batch_size=batch_size, shuffle=True, drop_last=True)


@torch.no_grad()
def accuracy(model, pair):
    x, y = pair
    return float((model(x).argmax(1) == y).float().mean())
