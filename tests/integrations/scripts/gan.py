"""A GAN with an optimiser for each of its two nets, on points on a ring of eight clumps: each PART has two adjacent clumps.

The figure is the energy distance between generated points and all points, a metric of distributions that is 0 for equal
ones (Székely and Rizzo 2013).
"""

import math

import torch
from torch import nn
from torch.nn.functional import softplus

from tests.integrations.scripts.common import PARTS, Given

SWARM = {"rounds": 400, "local_steps": 2, "metric": "distance", "higher_is_better": False}
CLUMPS, SPREAD, NOISE, BATCH = 8, 0.15, 4, 64
# Weight of the critic's squared gradient at real points, without which GANs circle (Mescheder et al. 2018).
STEEP = 0.1


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs))


def points(part, count, generator=None):
    """Return (count, 2) points of a part; None: of all parts."""
    of = CLUMPS if part is None else CLUMPS // PARTS
    clump = torch.randint(of, (count,), generator=generator) + (0 if part is None else part * of)
    angle = 2 * math.pi * clump / CLUMPS
    centre = torch.stack([angle.cos(), angle.sin()], 1)
    return centre + SPREAD * torch.randn(count, 2, generator=generator)


def distance(one, other):
    """Return the energy distance of two samples (n, 2) and (m, 2)."""
    between, within, of_other = (torch.cdist(one, other).mean(), torch.cdist(one, one).mean(), torch.cdist(other, other).mean())
    return float(2 * between - within - of_other)


def main():
    given = Given(**SWARM)
    nets = nn.ModuleDict({"generator": mlp(NOISE, 2), "critic": mlp(2, 1)})
    generator, critic = nets["generator"], nets["critic"]
    of_critic = torch.optim.Adam(critic.parameters(), lr=5e-4, betas=(0.5, 0.9))
    of_generator = torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.5, 0.9))
    seen = torch.Generator().manual_seed(5)
    tested, noise = points(None, 1000, seen), torch.randn(1000, NOISE, generator=seen)

    @torch.no_grad()
    def measured():
        return distance(generator(noise), tested)

    swarm = given.swarm(nets, [of_critic, of_generator], evaluate=measured)
    while not swarm.finished:
        given.pause()
        real = points(given.part, BATCH).requires_grad_()
        made = generator(torch.randn(BATCH, NOISE))
        of_critic.zero_grad()
        of_real = critic(real)
        steepness = torch.autograd.grad(of_real.sum(), real, create_graph=True)[0].square().sum(1).mean()
        ((softplus(-of_real) + softplus(critic(made.detach()))).mean() + STEEP * steepness).backward()
        of_critic.step()
        of_generator.zero_grad()
        loss = softplus(-critic(made)).mean()
        loss.backward()
        of_generator.step()
        swarm.step(loss)
    given.say(measured())
    swarm.close()


if __name__ == "__main__":
    main()
