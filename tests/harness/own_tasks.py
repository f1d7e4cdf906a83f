"""Tasks as users write them, each with one difficulty for a node."""

import threading

import torch
from torch import nn

import starling
from starling.node.tasks.own import Made

X = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
CLASS = (X[:, 0] > 0).long()
SUM = X.sum(1)
RARE = (torch.arange(400) % 50 == 0).long()


class Kept(nn.Module):
    """Stores an activation with its graph, a lock and a generator, so it cannot be copied."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 1)
        self.lock, self.seen = threading.Lock(), None

    def forward(self, x):
        self.seen = self.head(self.norm(x))
        return self.seen[:, 0]


def kept() -> starling.Task:
    return starling.task(model=Kept, train=(X, SUM))


class Hooked(nn.Module):
    """Has a hook with a closure over the module, which adds a layer's output: a copy would add the original's."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 1)
        self.gave = None
        self.body.register_forward_hook(lambda *given: setattr(self, "gave", given[2]))

    def forward(self, x):
        self.body(x)
        return self.head(self.gave)[:, 0]


def hooked() -> starling.Task:
    return starling.task(model=Hooked, train=(X, SUM))


class Initialised(nn.Module):
    """Scales by its first batch, and notes that in a plain attribute; a smoke test must not count as the first batch."""

    def __init__(self):
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.zeros(6)), nn.Linear(6, 1)
        self.begun = False

    def forward(self, x):
        if not self.begun:
            self.scale.data.copy_(1 / x.std(0))
            self.begun = True
        return self.head(x * self.scale)[:, 0]


def initialised() -> starling.Task:
    return starling.task(model=Initialised, train=(X, SUM))


class Followed(nn.Module):
    """A teacher follows the model in each forward pass of training."""

    def __init__(self):
        super().__init__()
        self.head, self.teacher = nn.Linear(6, 1), nn.Linear(6, 1).requires_grad_(False)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.teacher.weight.lerp_(self.head.weight, 0.5)
        return self.head(x)[:, 0]


def followed() -> starling.Task:
    return starling.task(model=Followed, train=(X, SUM))


def skipping() -> starling.Task:
    """Return a task in which half of the batches have no loss."""
    calls = []

    def loss(output, target):
        calls.append(1)
        return None if len(calls) % 2 else nn.functional.mse_loss(output[:, 0], target)

    return starling.task(model=lambda: nn.Linear(6, 1), train=(X, SUM), loss=loss)


def lossless() -> starling.Task:
    return starling.task(model=lambda: nn.Linear(6, 1), train=(X, SUM), loss=lambda output, target: None)


MARGIN = nn.Linear(6, 2)


def margin(output, target):
    """Compute a loss with a module of the file, which no argument shows."""
    return nn.functional.cross_entropy(MARGIN(output), target)


def hidden_weights() -> starling.Task:
    return starling.task(model=lambda: nn.Linear(6, 6), train=(X, CLASS), loss=margin, metrics=lambda output, _: output.mean())


def both_classes(output, target):
    """Compute a metric that is undefined without both classes, like the area under a curve."""
    if int(target.sum()) in {0, len(target)}:
        raise ValueError("only one class is present")
    return (output[target == 1, 1].mean() > output[target == 0, 1].mean()).float()


def rare() -> starling.Task:
    order = RARE.argsort()
    return starling.task(
        model=lambda: nn.Linear(6, 2), train=(X, RARE), test=(X[order], RARE[order]), metrics={"both": both_classes, "share": share}
    )


def share(output, target):
    return target.float().mean()


def wide_later() -> starling.Task:
    """Return a task whose metric gives no number at its second evaluation."""
    calls = []

    def metric(output, target):
        calls.append(1)
        return output if len(calls) == 2 else output.mean()

    return starling.task(model=lambda: nn.Linear(6, 2), train=(X, CLASS), metrics={"wide": metric})


def one_class() -> starling.Task:
    return starling.task(
        model=lambda: nn.Linear(6, 2), train=(X, CLASS), test=(X, torch.zeros(400, dtype=torch.int64)), metrics=both_classes
    )


def weighted() -> starling.Task:
    """Return a task with class weights: the loss of a batch is no mean of its parts over any number in it."""
    of_class = torch.tensor([1.0, 30.0])
    return starling.task(
        model=lambda: nn.Linear(6, 2), train=(X, CLASS), loss=lambda o, t: nn.functional.cross_entropy(o, t, weight=of_class)
    )


def failing() -> Made:
    """Return a task that raises at its fifth step."""

    class Net(nn.Linear):
        calls = 0

        def forward(self, x):
            if self.training and torch.is_grad_enabled():
                self.calls += 1
                if self.calls == 5:
                    raise KeyError("a rare word")
            return super().forward(x)[:, 0]

    return starling.task(model=lambda: Net(6, 1), train=(X, SUM))
