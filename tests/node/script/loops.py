"""Small models, batches, corrections and optimisers as in users' own loops."""

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import Optimizer

from starling.node.script.hooks import Hooks
from starling.node.script.optimizers import unwrapped
from starling.node.script.parameters import Parameters


def net(seed=0, width=3, dtype=torch.float32):
    """Return a model of two layers with 4 inputs, the same for each seed."""
    made = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for each in made.parameters():
            each.copy_(torch.randn(each.shape, generator=generator) / 2)
    return made.to(dtype)


def batches(count, seed=1):
    """Return this many batches of 8 samples."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(8, 4, generator=generator)
        yield x, x.sum(1, keepdim=True).sin()


def fitted(model, batch):
    """Do a backward pass for one batch and return the loss."""
    x, y = (each.to(next(model.parameters()).dtype) for each in batch)
    loss = mse_loss(model(x), y)
    loss.backward()
    return loss


def flat(model):
    """Return a copy of the parameters as one vector."""
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()])


class Subtracted:
    """Subtracts a vector c (d,) from gradients, and records the calls. Satisfies `Correction`."""

    def __init__(self, c, *, active=True):
        self.c, self.active = c, active
        self.taken, self.steps = [], 0

    def take(self, gradient, start):
        assert gradient.dtype == self.c.dtype
        self.taken.append((start, start + gradient.numel()))
        gradient.sub_(self.c[start : start + gradient.numel()])

    def stepped(self):
        self.steps += 1


def some(count, seed=7):
    """Return a vector (count,) to subtract."""
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def hooked(model, optimizers, c=None):
    """Return hooks over optimisers and their correction: c (d,), or a random vector."""
    inner = unwrapped(optimizers)
    parameters = Parameters(model, inner)
    correction = Subtracted(some(parameters.layout.dim) if c is None else c)
    return Hooks(inner, parameters, correction), correction


def subtract(model, c):
    """Subtract c (d,) from a model's gradients by hand."""
    start = 0
    for each in model.parameters():
        if each.grad is not None:
            each.grad.sub_(c[start : start + each.numel()].view_as(each))
        start += each.numel()


class ScheduleFree(Optimizer):
    """Schedule-free SGD (Defazio et al. 2024): the parameter is interpolated between the average x and the iterate z; the state holds z."""

    def __init__(self, params, lr=0.1, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] += 1
            share, beta, lr = 1 / group["k"], group["beta"], group["lr"]
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                p.lerp_(z, share).add_(p.grad, alpha=lr * (beta * (1 - share) - 1))
                z.sub_(p.grad, alpha=lr)


class Lookahead(Optimizer):
    """Slow weights every 5 steps, stored in the wrapper, without `Optimizer.__init__`, as in common recipes."""

    def __init__(self, base, every=5, alpha=0.5):
        self.optimizer, self.every, self.alpha, self.count = base, every, alpha, 0
        self.param_groups, self.state, self.defaults = base.param_groups, base.state, base.defaults
        self.slow = {p: p.detach().clone() for group in base.param_groups for p in group["params"]}

    @torch.no_grad()
    def step(self, closure=None):
        self.optimizer.step(closure)
        self.count += 1
        if self.count % self.every == 0:
            for p, slow in self.slow.items():
                slow.lerp_(p, self.alpha)
                p.copy_(slow)


class KeepsSlow(torch.optim.SGD):
    """The same with the slow weights in the optimiser state."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, lr=lr)
        self.count = 0

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                slow = self.state[p].setdefault("slow_param", p.clone())
                if self.count % 5 == 0:
                    slow.lerp_(p, 0.5)
                    p.copy_(slow)


class SAM(Optimizer):
    """A step in two halves: up along the gradient, then, from the start again, the base optimiser's step along the gradient found there."""

    def __init__(self, params, base, **keys):
        super().__init__(params, keys)
        self.base_optimizer = base(self.param_groups, **keys)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, rho=0.05):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old_p"] = p.detach().clone()
                p.add_(p.grad, alpha=rho)

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old_p"])
        self.base_optimizer.step()
