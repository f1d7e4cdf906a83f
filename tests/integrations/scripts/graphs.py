"""Batches that are objects, as in PyTorch Geometric: digits as graphs, whose nodes are inked pixels with edges to neighbouring ones."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot, relu
from torch.utils.data import DataLoader

from tests.integrations.scripts import digits
from tests.integrations.scripts.common import Given


@dataclass(frozen=True)
class Graphs:
    """Several graphs as one: `x` (nodes, 17), `edge_index` (2, edges), `batch` (nodes,) has each node's graph, `y` (graphs,)."""

    x: Tensor
    edge_index: Tensor
    batch: Tensor
    y: Tensor

    def to(self, device):
        moved = {name: getattr(self, name).to(device) for name in ("x", "edge_index", "batch", "y")}
        return replace(self, **moved)

    @property
    def num_graphs(self):
        return len(self.y)


def graph(image, label):
    """Return the graph of an image (64,): a node has ink, row and column; edges join pixels that touch, also at corners."""
    at = (image > 0.2).nonzero()[:, 0]
    place = torch.stack([at // 8, at % 8], 1)
    near = (torch.cdist(place.float(), place.float()) < 1.5).nonzero().T
    return Graphs(torch.cat([image[at, None], one_hot(place, 8).flatten(1)], 1), near, torch.zeros_like(at), label[None])


def batched(graphs):
    sizes = [len(each.x) for each in graphs]
    begins = torch.tensor([0, *sizes]).cumsum(0)
    return Graphs(
        torch.cat([each.x for each in graphs]),
        torch.cat([each.edge_index + begin for each, begin in zip(graphs, begins, strict=False)], 1),
        torch.repeat_interleave(torch.tensor(sizes)),
        torch.cat([each.y for each in graphs]),
    )


def mean(x, index, count):
    """Return the mean of the rows of x (n, f) with equal index (n,), for each of `count` indices."""
    sums = torch.zeros(count, x.shape[1]).index_add(0, index, x)
    return sums / torch.bincount(index, minlength=count).clamp(min=1)[:, None]


def greatest(x, index, count):
    """Return the maximum instead of the mean, at least 0."""
    return torch.zeros(count, x.shape[1]).scatter_reduce(0, index[:, None].expand_as(x), x, "amax")


class GraphNet(nn.Module):
    """Averages over neighbours three times (GraphSAGE), and classifies the mean and maximum of all nodes."""

    def __init__(self):
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(17, 48), nn.Linear(48, 48), nn.Linear(48, 48)])
        self.near = nn.ModuleList([nn.Linear(17, 48), nn.Linear(48, 48), nn.Linear(48, 48)])
        self.head = nn.Linear(2 * 48, 10)

    def forward(self, graphs):
        x, (source, target) = graphs.x, graphs.edge_index
        for own, near in zip(self.own, self.near, strict=True):
            x = relu(own(x) + near(mean(x[source], target, len(x))))
        whole = graphs.batch, graphs.num_graphs
        return self.head(torch.cat([mean(x, *whole), greatest(x, *whole)], 1))


def main():
    given = Given(rounds=600, local_steps=2, metric="accuracy", set={"optimizer.schedule": "cosine"})
    (x, y), test = digits.read(given.part)
    tested = batched([graph(*each) for each in zip(*test, strict=True)])
    model = GraphNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    own = [graph(*each) for each in zip(x, y, strict=True)]

    def evaluate():
        return digits.accuracy(model, (tested, tested.y))

    swarm = given.swarm(model, optimizer, evaluate=evaluate)
    for batch in swarm.epochs(DataLoader(own, 32, shuffle=True, drop_last=True, collate_fn=batched)):
        given.pause()
        optimizer.param_groups[0]["lr"] = swarm.lr()
        here = batch.to("cpu")
        loss = cross_entropy(model(here), here.y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        swarm.step(loss)
    given.say(evaluate())
    swarm.close()


if __name__ == "__main__":
    main()
