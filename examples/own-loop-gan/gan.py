"""A GAN as a member of a swarm, with an optimizer for each of its nets: `python gan.py FOLDER PART [INVITE_FILE]`.

Points lie in eight clumps on a ring; PART is which two of them are here, 0 to 3. Without an invite it creates the swarm.
"""

import json
import math
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import starling

PARTS, CLUMPS, SPREAD, NOISE, BATCH = 4, 8, 0.1, 4, 64
# Weight of the critic's squared gradient at real points, without which GANs circle (Mescheder et al. 2018).
STEEP = 0.1
ROUNDS, STEPS = 500, 2


def points(clumps: list[int], count: int) -> Tensor:
    """Return (count, 2) of some clumps."""
    angle = torch.tensor(clumps)[torch.randint(len(clumps), (count,))] * (2 * math.pi / CLUMPS)
    return torch.stack([angle.cos(), angle.sin()], 1) + SPREAD * torch.randn(count, 2)


def net(inputs: int, outputs: int) -> nn.Module:
    """Return one of three layers."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs))


def shares(made: Tensor) -> Tensor:
    """Return which share of points (n, 2) lies at each clump, (8,): within four times its spread."""
    angles = torch.arange(CLUMPS) * (2 * math.pi / CLUMPS)
    centres = torch.stack([angles.cos(), angles.sin()], 1)
    return (torch.cdist(made, centres) < 4 * SPREAD).float().mean(0)


def main(folder: str, part: int, invite: Path | None) -> None:
    """Train in the swarm, then print how many of all eight clumps the generator makes, and which share of its points lies at one."""
    torch.set_num_threads(1)
    torch.manual_seed(part)
    own = [2 * part, 2 * part + 1]
    nets = nn.ModuleDict({"generator": net(NOISE, 2), "critic": net(2, 1)})
    generator, critic = nets["generator"], nets["critic"]
    of_generator = torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.5, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), lr=5e-4, betas=(0.5, 0.9))

    given = {"model": nets, "optimizer": [of_generator, of_critic]}
    local = {"listen": "/ip4/127.0.0.1/tcp/0", "config": {"lan": False, "linger_s": 2}}
    if invite is None:
        swarm = starling.Swarm.create(folder, rounds=ROUNDS, local_steps=STEPS, quorum=PARTS, **given, **local)
        waiting = Path(f"{folder}.invite.new")
        waiting.write_text(swarm.invite())
        waiting.rename(f"{folder}.invite")
    else:
        swarm = starling.Swarm(folder, invite.read_text(), **given, **local)
    with swarm:
        while not swarm.finished:
            made = generator(torch.randn(BATCH, NOISE))
            real = points(own, BATCH).requires_grad_()
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
        with torch.no_grad():
            at = shares(generator(torch.randn(4000, NOISE)))
        print(json.dumps({"clumps": int((at > 0.02).sum()), "near": float(at.sum())}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
