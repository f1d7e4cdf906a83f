"""A local optimiser: a step of one length in every coordinate."""

import torch


class SignSgd(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, damping=1.0):
        super().__init__(params, {"lr": lr, "damping": damping})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad.sign(), alpha=group["lr"] * group["damping"])
