"""A GRU over rows of differing lengths, as PackedSequence: digits column by column, without blank columns at either side."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader

from tests.integrations.scripts import digits
from tests.integrations.scripts.common import Given


class Reader(nn.Module):
    """Classifies the last state of a GRU."""

    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(8, 48), nn.Linear(48, 10)

    def forward(self, packed: PackedSequence):
        return self.head(self.gru(packed)[1][0])


def columns(image):
    """Return 2 to 8 columns (length, 8) of an image (64,)."""
    turned = image.reshape(8, 8).T
    inked = turned.any(1).nonzero()
    return turned[int(inked[0]) : int(inked[-1]) + 1]


def packed(samples):
    """Return a batch of (columns, label)."""
    rows, labels = zip(*samples, strict=True)
    return pack_sequence(list(rows), enforce_sorted=False), torch.stack(labels)


def main():
    given = Given(rounds=600, local_steps=2, metric="accuracy", set={"optimizer.schedule": "cosine"})
    (x, y), (test_x, test_y) = digits.read(given.part)
    own = [(columns(image), label) for image, label in zip(x, y, strict=True)]
    tested = pack_sequence([columns(image) for image in test_x], enforce_sorted=False), test_y
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)

    swarm = given.swarm(model, optimizer, evaluate=lambda: digits.accuracy(model, tested))
    for batch, labels in swarm.epochs(DataLoader(own, 32, shuffle=True, drop_last=True, collate_fn=packed)):
        given.pause()
        optimizer.param_groups[0]["lr"] = swarm.lr()
        loss = cross_entropy(model(batch), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        swarm.step(loss)
    given.say(digits.accuracy(model, tested))
    swarm.close()


if __name__ == "__main__":
    main()
