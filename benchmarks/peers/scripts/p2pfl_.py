"""p2pfl: four nodes that vote, train and gossip models over gRPC, with its examples' settings (`set_standalone_settings`).

Its learner for PyTorch needs Lightning and a torchvision of an older torch; this one does the same on a plain module.
"""

# ruff: noqa: E402
import time

from p2pfl.settings import Settings

Settings.general.DISABLE_RAY = True  # read at import: Ray would keep the models, and its own talk be counted

import numpy as np
import torch
from common import World, ended, step, world
from datasets import Dataset
from p2pfl.learning.dataset.p2pfl_dataset import P2PFLDataset
from p2pfl.learning.frameworks import Framework
from p2pfl.learning.frameworks.learner import Learner
from p2pfl.learning.frameworks.p2pfl_model import P2PFLModel
from p2pfl.management.logger import logger
from p2pfl.node import Node
from p2pfl.utils.utils import set_standalone_settings, wait_convergence

START_S = 60.0


class Model(P2PFLModel):
    """A module whose parameters are sent as arrays."""

    def get_parameters(self) -> list[np.ndarray]:
        return [each.detach().numpy().copy() for each in self.model.parameters()]

    def set_parameters(self, params: list[np.ndarray] | bytes) -> None:
        if isinstance(params, bytes):
            params, more = self.decode_parameters(params)
            self.additional_info.update(more)
        with torch.no_grad():
            for own, given in zip(self.model.parameters(), params, strict=True):
                own.copy_(torch.from_numpy(np.array(given)))

    def get_framework(self) -> str:
        return Framework.PYTORCH.value


class Steps(Learner):
    """A node's local steps of a round, on its own module, so that momentum lasts when an average arrives."""

    def __init__(self, given: World, node: int) -> None:
        super().__init__()
        self.given, self.node, self.rounds = given, node, 0
        self.mine, self.batches = Model(given.model()), given.batches(node)
        self.optimizer = given.sgd(self.mine.model)

    def fit(self) -> P2PFLModel:
        model = self.get_model()
        self.mine.set_parameters(model.get_parameters())
        for _ in range(self.given.local_steps):
            step(self.mine.model, self.optimizer, next(self.batches))
        model.set_parameters(self.mine.get_parameters())
        self.rounds += 1
        model.set_contribution([self.addr], len(self.given.shard(self.node)[1]))
        return model

    def interrupt_fit(self) -> None:
        pass

    def evaluate(self) -> dict[str, float]:
        return {}

    def get_framework(self) -> str:
        return Framework.PYTORCH.value


def main() -> None:
    given = world()
    set_standalone_settings()
    logger.set_level("WARNING")
    began = time.monotonic()
    samples = P2PFLDataset(Dataset.from_dict({"x": [0]}))  # the learner has its own samples
    learners = [Steps(given, node) for node in range(given.nodes)]
    nodes = [Node(Model(given.model()), samples, learner=learner) for learner in learners]
    for node in nodes:
        node.start()
    for node, before in zip(nodes[1:], nodes, strict=False):  # connected in a line; gossip spreads the other addresses
        node.connect(before.addr)
    wait_convergence(nodes, given.nodes - 1, wait=START_S)
    nodes[0].set_start_learning(rounds=given.rounds, epochs=1, trainset_size=given.nodes)
    while any(learner.rounds < given.rounds for learner in learners) or any(each.state.round is not None for each in nodes):
        time.sleep(0.1)
    values = [given.accuracy(each.get_model().model) for each in nodes]
    for node in nodes:
        node.stop()
    ended(values, began, rounds=[each.rounds for each in learners])


if __name__ == "__main__":
    main()
