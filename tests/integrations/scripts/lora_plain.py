"""A plain loop with a model of peft; only its adapters are trained."""

import torch
from torch.utils.data import DataLoader

from tests.integrations.scripts import language
from tests.integrations.scripts.common import Given


def main():
    given = Given(**language.SWARM)
    own, tested = language.read(given.part)
    model = language.adapted()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=language.RATE)

    swarm = given.swarm(model, optimizer, evaluate=lambda: language.loss(model, tested))
    for words in swarm.epochs(DataLoader(own, language.BATCH, shuffle=True)):
        given.pause()
        loss = model(input_ids=words, labels=words).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        swarm.step(loss)
    given.say(language.loss(model, tested))
    swarm.close()


if __name__ == "__main__":
    main()
