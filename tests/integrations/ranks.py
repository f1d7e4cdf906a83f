"""The work of one rank of a training, in its own process with torchrun's environment: python -m tests.integrations.ranks FOLDER CASE…

Rank 0 has a node in its own process. After each case every rank writes a line of JSON.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import nullcontext
from functools import partial
from os import _exit as exit_at_once
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from starling.gossip.errors import ConfigError, GossipError
from starling.gossip.mix.borne import correct, corrected, start
from starling.integrations import distributed
from starling.integrations.sharded import ShardedMemories, ShardedParameters, reshard, whole
from starling.node.script.parameters import Parameters
from starling.node.script.script_state import ScriptState
from tests.integrations.nodes import Clocked, Lost, Node, Silent
from tests.node.script.loops import batches, flat, net, some

ROUNDS, STEPS, RATE = 3, 2, 0.1


def beside(kind, *given, **keys):
    """Start the node in rank 0."""
    return kind(*given, **keys) if dist.get_rank() == 0 else nullcontext()


def beside_it(*, is_over=True):
    """Make every Swarm believe that the node has ended, in order or not, when the engine hangs up."""
    distributed.Running = lambda *given: SimpleNamespace(node=None, check=lambda: None, is_over=lambda: is_over, doing=lambda: "")


def equal(vector):
    """Return whether a vector is equal in all ranks."""
    both = [torch.empty_like(vector) for _ in range(dist.get_world_size())]
    dist.all_gather(both, vector.contiguous())
    return all(torch.equal(vector, each) for each in both)


def data(rank):
    """Return the batches of a rank, two per local step."""
    return list(batches(2 * ROUNDS * STEPS, seed=rank))


OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": partial(torch.optim.AdamW, weight_decay=0.0)}


def by_hand(c, kind="sgd", width=3):
    """Return the parameters after each round of a single process with the data of both ranks."""
    model, models = net(width=width), []
    optimizer = OPTIMIZERS[kind](model.parameters(), RATE)
    state = None if c is None else corrected(start(flat(model)), c)
    for step in range(ROUNDS * STEPS):
        for rank in (0, 1):
            for x, y in data(rank)[2 * step : 2 * step + 2]:
                (mse_loss(model(x), y) / 4).backward()
        if state is not None:
            g, state = correct(state, torch.cat([each.grad.reshape(-1) for each in model.parameters()]))
            parts = g.split([each.numel() for each in model.parameters()])
            for each, part in zip(model.parameters(), parts, strict=True):
                each.grad.copy_(part.view_as(each))
        optimizer.step()
        optimizer.zero_grad()
        if step % STEPS == STEPS - 1:
            with torch.no_grad():
                for each in model.parameters():
                    each.mul_(0.5)
            models.append(flat(model))
    return models


def rounds(folder, rank, **keys):
    """Ranks of DistributedDataParallel are equal after each round, and equal to a single process."""
    ddp = DistributedDataParallel(net(), **keys)
    optimizer = torch.optim.SGD(ddp.parameters(), RATE)
    c, evaluated, models = 0.3 * some(flat(ddp).numel()), [], []

    def evaluate():
        evaluated.append(flat(ddp))
        return float(rank)

    node = beside(Node, folder, net(), rounds=ROUNDS, steps=STEPS, optimizer="sgd", mix="pet", evaluates=True, c=c)
    with node:
        swarm = distributed.Swarm(folder, model=ddp, optimizer=optimizer, evaluate=evaluate)
        pairs = iter(data(rank))
        while not swarm.finished:
            for last in (False, True):
                x, y = next(pairs)
                with nullcontext() if last else ddp.no_sync():
                    loss = mse_loss(ddp(x), y) / 2
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if swarm.step(loss):
                models.append(flat(ddp))
                assert equal(models[-1])
        assert list(pairs) == []
        swarm.close()
    assert len(models) == ROUNDS
    assert all(torch.equal(one, other) for one, other in zip(models, evaluated, strict=True))
    for one, other in zip(models, by_hand(c), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0.0)
    if rank == 0:
        assert all(torch.equal(one, other) for one, other in zip(models, node.after, strict=True))
        assert [each.value for each in node.figures] == [0.0] * ROUNDS


def views(folder, rank):
    """The same as `rounds`, with gradients that are views of DistributedDataParallel's buckets."""
    rounds(folder, rank, gradient_as_bucket_view=True)


def shards(folder, rank, kind="sgd", mix="pet", mesh=(2,)):
    """With `fully_shard`, 7 rows on 2 ranks and an evaluation before each round's end, ranks equal a single process."""
    model = net(width=7)
    for each in (model[0], model):  # the root holds parameters of its own
        fully_shard(each, mesh=init_device_mesh("cpu", mesh, mesh_dim_names=("copies", "shards")[-len(mesh) :]))
    optimizer = OPTIMIZERS[kind](model.parameters(), RATE)
    c = 0.3 * some(sum(each.numel() for each in model.parameters())) if kind == "sgd" else None
    models, pairs = [], iter(data(rank))
    with beside(Node, folder, net(width=7), rounds=ROUNDS, steps=STEPS, optimizer=kind, mix=mix, c=c) as node:
        swarm = distributed.Swarm(folder, model=model, optimizer=optimizer)
        while not swarm.finished:
            for last in (False, True):
                x, y = next(pairs)
                model.set_requires_gradient_sync(last)
                (mse_loss(model(x), y) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                model(x)
            if swarm.step():
                model.reshard()
                models.append(torch.cat([each.full_tensor().detach().reshape(-1) for each in model.parameters()]))
                with torch.no_grad():
                    output = model(x)
                assert equal(models[-1])
        swarm.close()
    alone = net(width=7)
    torch.nn.utils.vector_to_parameters(models[-1], alone.parameters())
    assert torch.allclose(alone(x), output)
    assert len(models) == ROUNDS
    for one, other in zip(models, by_hand(c, kind, width=7), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0.0)
    if rank == 0:
        assert all(torch.equal(one, other) for one, other in zip(models, node.after, strict=True))


def copies(folder, rank):
    """The same as `shards`, with equal shards."""
    shards(folder, rank, mesh=(2, 1))


def shards_of_adamw(folder, rank):
    """The same as `shards`, with AdamW's moments exchanged too."""
    shards(folder, rank, "adamw")


def copies_of_shards(folder, rank):
    """An optimizer's copies of sharded parameters are moved by mixes, and rounding errors of bfloat16 are stored, as for a whole model."""
    for dtype in (torch.float32, torch.bfloat16):
        parts, one = net(width=7, dtype=dtype), net(width=7, dtype=dtype)
        fully_shard(parts, mesh=init_device_mesh("cpu", (2,)))
        both = []
        for model, kind in ((parts, ShardedParameters), (one, Parameters)):
            optimizer = torch.optim.SGD(model.parameters(), RATE)
            for each in model.parameters():
                optimizer.state[each]["z"] = 2.0 * each.detach()
            both.append(kind(model, [optimizer]))
            x = torch.zeros(both[-1].layout.dim)
            for number in range(10):
                both[-1].read(x)
                both[-1].write(x + 1e-4 * some(x.numel(), seed=number))
            both[-1].read(x)
            both[-1] = x, torch.cat([whole(value["z"]).reshape(-1) for value in optimizer.state.values()])
        assert all(torch.equal(one, other) for one, other in zip(*both, strict=True))
        moved = torch.cat([each.detach().float().reshape(-1) for each in net(width=7, dtype=dtype).parameters()])
        assert not torch.equal(both[0][1].float(), 2.0 * moved)


def memories_of_shards(folder, rank):
    """Sharded optimizer state that was written is read again, with its age."""
    model = net(width=7)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters())
    mse_loss(model(next(batches(1))[0]), torch.zeros(8, 1)).backward()
    optimizer.step()
    model.reshard()
    parameters = ShardedParameters(model, [optimizer])
    memories, dim = ShardedMemories([optimizer], parameters), parameters.layout.dim
    assert memories.age() == 1
    given, found = (some(dim, 1), some(dim, 2).square()), (torch.ones(dim), torch.ones(dim))
    memories.write(*given, 7)
    memories.read(*found)
    assert memories.age() == 7
    assert all(torch.equal(one, other) for one, other in zip(given, found, strict=True))


def refused_shards(folder, rank):
    """Shards that cannot be gathered or stored are refused before the rank joins a swarm."""
    mesh = init_device_mesh("cpu", (2,))
    trained, frozen = net(), net()
    frozen[0].requires_grad_(False)
    fully_shard(trained, mesh=mesh)
    fully_shard(frozen, mesh=mesh)
    for model, keys, words in (
        (trained, {"state": {"optimizer": torch.optim.SGD(trained.parameters(), RATE)}}, "state: cannot be kept"),
        (frozen, {}, "0.weight is sharded and not trained"),
        (FullyShardedDataParallel(net(), device_id=torch.device("cpu")), {}, "use fully_shard"),
    ):
        optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], RATE)
        with pytest.raises(ConfigError, match=words):
            distributed.Swarm(folder, model=model, optimizer=optimizer, **keys)
    with pytest.raises(ConfigError, match="create it before `fully_shard`"):
        distributed.Swarm.create(folder, model=trained, optimizer=torch.optim.SGD(trained.parameters(), RATE))


def clock(folder, rank, *, in_shards=False):
    """In clock pace, rank 0 decides after which step all ranks apply the result of an exchange."""
    model = net(width=7)
    trained = fully_shard(model, mesh=init_device_mesh("cpu", (2,))) if in_shards else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(trained.parameters())
    pairs, went, took = list(batches(8, seed=rank)), 0, []

    def now():
        reshard(model)
        return torch.cat([whole(each.detach()).reshape(-1).clone() for each in model.parameters()])

    with beside(Clocked, folder, net(width=7), rounds=4, steps=2, mix="pet"):
        swarm = distributed.Swarm(folder, model=trained, optimizer=optimizer)
        while not swarm.finished:
            x, y = pairs[went % len(pairs)]
            mse_loss(trained(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            before = now()
            swarm.step()
            if not torch.equal(before, now()):
                took.append(went)
            went += 1
            time.sleep(0.005)
        swarm.close()
    assert len(took) >= 3
    assert equal(now())
    assert equal(torch.tensor([went, *took[:3]]))
    assert went > 2 * len(took), "no step was done while exchanges ran"


def clock_of_shards(folder, rank):
    """The same as `clock`, with shards."""
    clock(folder, rank, in_shards=True)


def lost(folder, rank, *, again=True):
    """All ranks continue with another engine of the node, from its checkpoint."""
    beside_it(is_over=not again)
    ddp = DistributedDataParallel(net())
    optimizer = torch.optim.AdamW(ddp.parameters(), RATE)
    pairs, ended = iter(batches(100, seed=rank)), []
    with beside(Lost, folder, net(), rounds=2, steps=2, again=again) as node:
        swarm = distributed.Swarm(folder, model=ddp, optimizer=optimizer)
        while not swarm.finished:
            x, y = next(pairs)
            mse_loss(ddp(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            before = flat(ddp)
            if swarm.step():
                ended.append(before)
                assert equal(flat(ddp))
        swarm.close()
    beside_it()
    assert len(ended) == (4 if again else 2)
    if rank == 0:
        assert all(torch.equal(one, other) for one, other in zip(ended, node.before, strict=True))


def over(folder, rank):
    """All ranks are told that the node has ended."""
    lost(folder, rank, again=False)


def state(folder, rank):
    """All ranks continue with the optimizer state that rank 0 stored, whatever their own state is."""
    kept = torch.optim.SGD(net().parameters(), RATE, momentum=0.9)
    if rank == 0:
        for each in kept.param_groups[0]["params"]:
            each.grad = torch.ones_like(each)
        kept.step()
        folder.mkdir()
        ScriptState(folder, {"optimizer": kept}).write(0)
    ddp = DistributedDataParallel(net(1))
    optimizer = torch.optim.SGD(ddp.parameters(), RATE, momentum=0.9)
    read = []

    def state_dict():
        read.append(rank)
        return kept.state_dict()

    objects = {"optimizer": SimpleNamespace(state_dict=state_dict, load_state_dict=optimizer.load_state_dict)}
    with beside(Node, folder, net(), rounds=1, steps=1) as node:
        swarm = distributed.Swarm(folder, model=ddp, optimizer=optimizer, state=objects)
        assert not swarm.finished
        assert torch.equal(flat(ddp), flat(net()))
        memories = torch.cat([each["momentum_buffer"].reshape(-1) for each in optimizer.state.values()])
        assert torch.equal(memories, torch.ones_like(memories))
        mse_loss(ddp(next(batches(1))[0]), torch.zeros(8, 1)).backward()
        optimizer.step()
        assert swarm.step()
        if rank == 0:
            node.join()
        swarm.close()
    assert read == [0, 0][: 2 * (1 - rank)], "rank 0 keeps it"


def created(folder, rank):
    """Only rank 0 creates a swarm."""
    made = []
    parent = distributed.single.creation.create
    distributed.single.creation.create = lambda *given: made.append(given)
    try:
        ddp = DistributedDataParallel(net())
        optimizer = torch.optim.SGD(ddp.parameters(), RATE)
        with beside(Node, folder, net(), rounds=1, steps=1):
            swarm = distributed.Swarm.create(folder, model=ddp, optimizer=optimizer, rounds=1, local_steps=1)
            assert not swarm.finished
            swarm.close()
    finally:
        distributed.single.creation.create = parent
    assert len(made) == (rank == 0)


def refused(folder, rank):
    """If rank 0 cannot join, all ranks report the reason."""
    ddp = DistributedDataParallel(net(width=5))
    optimizer = torch.optim.SGD(ddp.parameters(), RATE)
    with (
        beside(Silent, folder, net()),
        pytest.raises(GossipError, match=r"the swarm's has .*; build the model that the swarm was created") as raised,
    ):
        distributed.Swarm(folder, model=ddp, optimizer=optimizer)
    assert isinstance(raised.value, ConfigError) == (rank == 0)
    assert str(raised.value).startswith("rank 0 cannot go on: ") == (rank == 1)


def unequal(folder, rank):
    """Ranks with different models are detected before any of them joins a swarm."""
    model = net(width=3 + rank)
    words = f"rank {rank} trains {(19, 25)[rank]} parameters, others do not"
    with pytest.raises(ConfigError, match=words):
        distributed.Swarm(folder, model=model, optimizer=torch.optim.SGD(model.parameters(), RATE))


def accelerated(folder, rank):
    """With Accelerate, 7 batches accumulated by 2 are 4 local steps."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    samples = torch.utils.data.TensorDataset(*(torch.cat(each) for each in zip(*batches(7), strict=True)))
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(samples, batch_size=4))
    assert len(loader) == 7
    with beside(Node, folder, net(), rounds=2, steps=2) as node:
        swarm = distributed.Swarm(folder, model=model, optimizer=optimizer)
        ended = []
        for at, (x, y) in enumerate(loader):
            with accelerator.accumulate(model):
                loss = mse_loss(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                if not swarm.finished and swarm.step(loss):
                    ended.append(at)
                    assert equal(flat(model))
        swarm.close()
    assert ended == [3, 6]
    assert swarm.finished
    if rank == 0:
        assert torch.equal(flat(model), node.after[-1])


def trainer(folder, rank):
    """Ranks of the Trainer of transformers are equal after each round, and the swarm ends them at the same step."""
    from starling.integrations.transformers import SwarmCallback
    from tests.integrations import gpt

    seen = gpt.Recorder()
    with beside(Node, folder, gpt.gpt(), rounds=2, steps=2) as node:
        used = gpt.trainer(folder, gpt.gpt(), SwarmCallback(folder), seen, max_steps=100, ddp_backend="gloo")
        used.train()
    assert used.state.global_step == 4
    assert all(equal(each) for each in seen.models.values())
    if rank == 0:
        assert [torch.equal(seen.models[2 * at + 2], each) for at, each in enumerate(node.after)] == [True, True]


def lightning(folder, rank):
    """The same as `trainer`, with Lightning's Trainer."""
    from lightning.pytorch import LightningModule, Trainer

    from starling.integrations.lightning import SwarmCallback

    class Fit(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, index):
            return mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 0.01)

    module = Fit()
    samples = torch.utils.data.TensorDataset(*(torch.cat(each) for each in zip(*batches(8), strict=True)))
    with beside(Node, folder, Fit(), rounds=2, steps=2) as node:
        used = Trainer(
            accelerator="cpu",
            strategy="ddp",
            devices=2,
            logger=False,
            enable_progress_bar=False,
            max_epochs=10,
            enable_model_summary=False,
            enable_checkpointing=False,
            callbacks=[SwarmCallback(folder)],
        )
        used.fit(module, torch.utils.data.DataLoader(samples, batch_size=8))
    assert used.global_step == 4
    assert equal(flat(module))
    if rank == 0:
        assert torch.equal(flat(module), node.after[-1])


def interrupted(folder, rank):
    """A rank that waits notices Ctrl-C at its next heartbeat, and then rank 0 stops waiting."""
    ddp = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(ddp.parameters(), RATE)
    with beside(Silent, folder, net()):
        swarm = distributed.Swarm(folder, model=ddp, optimizer=optimizer)
        if rank == 1:
            pressed = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
            pressed.start()
        began, ends = time.monotonic(), (GossipError, KeyboardInterrupt)[rank]
        with pytest.raises(ends, match=("another rank of this training has ended", None)[rank]):
            _ = swarm.finished
        done("interrupted", time.monotonic() - began)
        exit_at_once(0)  # rank 0 is not notified


def done(case, took_s=0.0):
    sys.stdout.write(json.dumps({"case": case, "took_s": took_s}) + "\n")
    sys.stdout.flush()


def main():
    torch.set_num_threads(1)
    pytest.MonkeyPatch().setattr(distributed, "started", lambda *given: None)
    beside_it()
    dist.init_process_group("gloo")
    folder, rank = Path(sys.argv[1]), dist.get_rank()
    for case in sys.argv[2:]:
        globals()[case](folder / case, rank)
        dist.barrier()
        done(case)
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # noqa: BLE001 - other ranks and threads must not be waited for
        traceback.print_exc()
        sys.stderr.flush()
        exit_at_once(1)
