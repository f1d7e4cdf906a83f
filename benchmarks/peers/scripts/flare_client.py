"""A client of FLARE's gradient tracking with a shard of the world; FLARE copies this file into the job it runs."""

import os
import sys
from pathlib import Path

import torch
from nvflare.app_opt.p2p.executors import GTExecutor

sys.path.insert(0, str(Path(__file__).parent))


class Client(GTExecutor):
    def __init__(self, path: str, node: int) -> None:
        from common import World

        self.path, self.node = path, node
        given = World(path)
        data = torch.utils.data.TensorDataset(*given.shard(node))
        test = torch.utils.data.TensorDataset(given.tensor("test_x"), given.tensor("test_y"))
        chance = torch.Generator().manual_seed(1000 * given.seed + node)
        loader = torch.utils.data.DataLoader(data, batch_size=given.batch, shuffle=True, generator=chance)
        super().__init__(given.model(), torch.nn.CrossEntropyLoss(), loader, torch.utils.data.DataLoader(test, batch_size=512), loader)

    def _post_algorithm_run(self, *arguments: object) -> None:
        from common import World

        value = World(self.path).accuracy(self.model)
        (Path(os.environ["PEERS_RESULTS"]) / f"value-{self.node}").write_text(str(value))
