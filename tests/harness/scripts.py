"""Scripts with engines that are called by hand: each in its own thread, over the socket in its folder."""

import select
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from msgspec import structs

from starling.gossip.rng import generator
from starling.gossip.seeds import derive
from starling.node.catalogues import task
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from starling.node.script.member import Member
from starling.node.script.optimizers import unwrapped
from starling.node.script.parts import Parts
from starling.node.tasks.api import Source
from tests.harness.engines import open_request

WAIT_S = 60.0


class Up:
    """A node that runs as long as its test."""

    def check(self):
        pass

    def is_over(self):
        return True

    def doing(self):
        return ""


class Scripted:
    """An engine whose local steps a script does; usable with `done` of `tests.harness.engines`."""

    def __init__(self, agreed, folder, shard=0, node="a", **changes):
        self.engine = Worker()
        self.folder = folder
        call = structs.replace(open_request(agreed, shard, node, folder / "checkpoint"), script=True, **changes)
        self.opened = self.engine.handle(call)
        assert isinstance(self.opened, calls.Opened), self.opened

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def step(self):
        """Wait for the script's next message, and handle it."""
        if not self.engine.busy:
            due = self.engine.due_s
            poll = select.poll()
            for each in self.engine.sources:
                poll.register(each, select.POLLIN)
            poll.poll(1000.0 * min(WAIT_S, WAIT_S if due is None else due))
        assert self.engine.busy, "the script is silent"
        return self.engine.step()

    def hear(self, until):
        """Handle messages of scripts until a condition holds."""
        began = time.monotonic()
        while not until():
            assert time.monotonic() - began < WAIT_S, "it never holds"
            if self.engine.busy:
                self.engine.step()
            else:
                time.sleep(0.005)

    @property
    def has_script(self):
        return self.engine.driver.contact.is_up


@contextmanager
def running(script, *given):
    """Run a script in a thread; return its result once it has ended; its exception is raised here."""
    outcome = SimpleNamespace(value=None, error=None, over=False)

    def run():
        try:
            outcome.value = script(*given)
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            outcome.error = error
        outcome.over = True

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield outcome
    except AssertionError as error:
        if outcome.error is not None:
            raise outcome.error from error
        raise
    thread.join(WAIT_S)
    assert not thread.is_alive(), "the script still runs"
    if outcome.error is not None:
        raise outcome.error


def pieces(agreed, node, shard):
    """Return the model and data of a task's node, and the generator of its batches."""
    made = task(agreed.task.kind, agreed.task.params())
    model = made.model(generator(agreed.seed, "model"))
    data = made.data(Source(None, agreed.partition, shard, agreed.seed), "cpu")
    chance = torch.Generator()

    def batch(step):
        chance.manual_seed(derive(agreed.seed, "batch", node, step))
        return data.batch(agreed.task.batch_size, chance)

    return made, model, batch


def replayed(agreed, folder, optimizers, node="a", shard=0, before=lambda member: None, evaluate=None):
    """Do the local steps of a task's node until the swarm has finished; return the model."""
    torch.set_num_threads(1)
    made, model, batch = pieces(agreed, node, shard)
    given = optimizers(model, agreed.optimizer.lr)
    member = Member(folder, Parts(model, unwrapped(given), evaluate), Up())
    before(member)
    model.train()
    step = 0
    while not member.grant.finished:
        for each in given:
            for group in each.param_groups:
                group["lr"] = member.grant.rate
        loss = made.loss(model, batch(step))
        loss.backward()
        for each in given:
            each.step()
            each.zero_grad()
        member.step(loss)
        step += 1
    member.close()
    return model
