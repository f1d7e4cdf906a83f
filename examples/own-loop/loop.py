"""A plain PyTorch loop on handwritten digits that is a member of a swarm: `python loop.py FOLDER PART [INVITE_FILE]`.

PART is which two or three of the ten digits are here, 0 to 3. Without an invite it creates the swarm and writes FOLDER.invite.
"""

import gzip
import io
import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import starling

DIGITS = Path(starling.__file__).parent / "node" / "tasks" / "data" / "digits.csv.gz"
PARTS, ROUNDS, STEPS = 4, 60, 10


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (1797, 64) in [0, 1] and labels."""
    table = np.loadtxt(io.BytesIO(gzip.decompress(DIGITS.read_bytes())), delimiter=",", dtype=np.float32)
    return torch.from_numpy(table[:, :64] / 16), torch.from_numpy(table[:, 64]).long()


def main(folder: str, part: int, invite: Path | None) -> None:
    """Train in the swarm, then print how many of the held-out digits, of all kinds, are recognised."""
    torch.set_num_threads(1)
    x, y = data()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=ROUNDS * STEPS)
    own = (y[:1437] * PARTS // 10) == part
    loader = DataLoader(TensorDataset(x[:1437][own], y[:1437][own]), batch_size=32, shuffle=True, drop_last=True)

    def accuracy() -> float:
        return float((model(x[1437:]).argmax(1) == y[1437:]).float().mean())

    given = {"model": model, "optimizer": optimizer, "evaluate": accuracy}
    local = {"listen": "/ip4/127.0.0.1/tcp/0", "config": {"lan": False, "linger_s": 2}}
    if invite is None:
        swarm = starling.Swarm.create(folder, rounds=ROUNDS, local_steps=STEPS, quorum=PARTS, metric="accuracy", **given, **local)
        waiting = Path(f"{folder}.invite.new")
        waiting.write_text(swarm.invite())
        waiting.rename(f"{folder}.invite")
    else:
        swarm = starling.Swarm(folder, invite.read_text(), **given, **local)
    with swarm:
        for images, labels in swarm.epochs(loader):
            loss = cross_entropy(model(images), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            swarm.step(loss)
        with torch.no_grad():
            print(json.dumps({"accuracy": accuracy()}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
