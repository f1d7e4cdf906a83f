"""Lightning's Trainer on handwritten digits as a member of a swarm: `python digits.py FOLDER PART [INVITE_FILE]`.

PART is which two or three of the ten digits are here, 0 to 3. Without an invite it creates the swarm.
"""

import json
import sys
from pathlib import Path

import lightning
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import starling
from starling.integrations.lightning import SwarmCallback
from starling.node.tasks.digits import built_in

PARTS, ROUNDS, STEPS = 4, 60, 10


class Digits(lightning.LightningModule):
    """A small convolutional net, as one writes it without a swarm."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )

    def training_step(self, batch: list[torch.Tensor], _number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        return cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> dict[str, object]:
        """Return AdamW with a schedule that is stepped after each batch."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=ROUNDS * STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main(folder: str, part: int, invite: Path | None) -> None:
    """Train in the swarm, then print how many of the held-out digits, of all kinds, are recognised."""
    torch.set_num_threads(1)
    trained, held_out = ((torch.tensor(each.x).view(-1, 1, 8, 8), torch.tensor(each.y)) for each in built_in())
    own = trained[1] * PARTS // 10 == part
    loader = DataLoader(TensorDataset(trained[0][own], trained[1][own]), batch_size=32, shuffle=True, drop_last=True)
    module = Digits()

    def join(**given: object) -> starling.Swarm:
        local = {"listen": "/ip4/127.0.0.1/tcp/0", "config": {"lan": False, "linger_s": 2}}
        if invite is not None:
            return starling.Swarm(folder, invite.read_text(), **given, **local)
        swarm = starling.Swarm.create(folder, rounds=ROUNDS, local_steps=STEPS, quorum=PARTS, **given, **local)
        waiting = Path(f"{folder}.invite.new")
        waiting.write_text(swarm.invite())
        waiting.rename(f"{folder}.invite")
        return swarm

    trainer = lightning.Trainer(
        max_epochs=-1,
        gradient_clip_val=1.0,
        callbacks=[SwarmCallback(join)],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    with torch.no_grad():
        accuracy = float((module.net(held_out[0]).argmax(1) == held_out[1]).float().mean())
    print(json.dumps({"accuracy": accuracy}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
