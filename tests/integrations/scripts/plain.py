"""A plain loop on digits with AdamW, or SGD with the argument `sgd`; two batches per step, and clipping."""

import torch
from torch.nn.functional import cross_entropy

from tests.integrations.scripts import digits
from tests.integrations.scripts.common import Given

BATCH, GATHERED, CLIP, RATE = 16, 2, 1.0, 2e-3
SGD_RATE = 0.2


def main():
    given = Given(**digits.SWARM)
    data, tested = digits.read(given.part)
    model = digits.Net()
    if given.other == ["sgd"]:
        optimizer = torch.optim.SGD(model.parameters(), lr=SGD_RATE)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)

    swarm = given.swarm(model, optimizer, evaluate=lambda: digits.accuracy(model, tested))
    for number, (x, y) in enumerate(swarm.epochs(digits.loader(data, BATCH)), 1):
        given.pause()
        (cross_entropy(model(x), y) / GATHERED).backward()
        if number % GATHERED == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            swarm.step()
    given.say(digits.accuracy(model, tested))
    swarm.close()


if __name__ == "__main__":
    main()
