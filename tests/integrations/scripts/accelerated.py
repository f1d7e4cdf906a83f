"""The digits of `digits.py` with Accelerate, which accumulates the batches of a step and scales their losses."""

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy

from tests.integrations.scripts import digits
from tests.integrations.scripts.common import Given
from tests.integrations.scripts.plain import BATCH, CLIP, GATHERED, RATE


def main():
    given = Given(**digits.SWARM)
    data, tested = digits.read(given.part)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=GATHERED)
    model = digits.Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    model, optimizer, loader = accelerator.prepare(model, optimizer, digits.loader(data, BATCH))

    swarm = given.swarm(model, optimizer, evaluate=lambda: digits.accuracy(model, tested))
    for x, y in swarm.epochs(loader):
        given.pause()
        with accelerator.accumulate(model):
            loss = cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            swarm.step(loss)
    given.say(digits.accuracy(model, tested))
    swarm.close()


if __name__ == "__main__":
    main()
