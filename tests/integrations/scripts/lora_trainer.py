"""The texts of `language.py` with the Trainer of transformers."""

from transformers import Trainer, TrainingArguments

from starling.integrations.transformers import SwarmCallback
from tests.integrations.scripts import language
from tests.integrations.scripts.common import Given


def main():
    given = Given(**language.SWARM)
    own, tested = language.read(given.part)
    trainer = Trainer(
        language.adapted(),
        TrainingArguments(**language.arguments(given)),
        train_dataset=[{"input_ids": words, "labels": words} for words in own],
        callbacks=[language.Paused(given), *given.callbacks(SwarmCallback)],
    )
    trainer.train()
    given.say(language.loss(trainer.model, tested))


if __name__ == "__main__":
    main()
