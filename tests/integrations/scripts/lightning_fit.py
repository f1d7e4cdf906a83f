"""The digits of `digits.py` with Lightning's Trainer, which clips and accumulates."""

import lightning
import torch
from torch.nn.functional import cross_entropy

from starling.integrations.lightning import SwarmCallback
from tests.integrations.scripts import digits
from tests.integrations.scripts.common import Given
from tests.integrations.scripts.plain import BATCH, CLIP, GATHERED, RATE


class Fit(lightning.LightningModule):
    """A module whose parameters have the names of `digits.Net`."""

    def __init__(self, given):
        super().__init__()
        self.net, self._given = digits.Net().net, given

    def training_step(self, batch, index):
        self._given.pause()
        x, y = batch
        return cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=RATE)


def main():
    given = Given(**digits.SWARM)
    data, tested = digits.read(given.part)
    model = Fit(given)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=given.steps,
        max_epochs=-1,
        accumulate_grad_batches=GATHERED,
        gradient_clip_val=CLIP,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=given.callbacks(SwarmCallback),
    )
    trainer.fit(model, digits.loader(data, BATCH))
    given.say(digits.accuracy(model.net, tested))


if __name__ == "__main__":
    main()
