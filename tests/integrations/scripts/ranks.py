"""The digits of `digits.py` in two ranks, `ddp` or `fsdp`, each with half of the part's batches."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tests.integrations.scripts import digits
from tests.integrations.scripts.common import Given
from tests.integrations.scripts.plain import BATCH, CLIP, GATHERED, RATE


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    given = Given(**digits.SWARM)
    data, tested = digits.read(given.part)
    model = digits.Net()
    if given.other == ["fsdp"]:
        fully_shard(model.net[0])
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    own = TensorDataset(*data)
    loader = DataLoader(own, batch_size=BATCH * GATHERED // 2, sampler=DistributedSampler(own), drop_last=True)

    swarm = given.swarm(model, optimizer, evaluate=lambda: digits.accuracy(model, tested))
    for x, y in swarm.epochs(loader):
        given.pause()
        loss = cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        swarm.step(loss)
    given.say(digits.accuracy(model, tested))
    swarm.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
