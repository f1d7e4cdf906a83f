"""ByzFL: its FedAvg loop (`byzfl.benchmark.train`) with its Client and Server in one process; all are honest, the rule is `Average`."""

import importlib.util
import sys
import time
import types

import torch
from common import World, ended, world


def package() -> types.ModuleType:
    """Import `byzfl` without its benchmark, which needs torchvision, whose wheels do not match every torch."""
    spec = importlib.util.find_spec("byzfl")
    made = types.ModuleType("byzfl")
    made.__path__ = list(spec.submodule_search_locations)
    sys.modules["byzfl"] = made
    from byzfl import fed_framework

    return fed_framework


def main() -> None:
    given: World = world()
    began, federated = time.monotonic(), package()
    sys.modules["byzfl.fed_framework.models"].digits = given.model  # name from which both ends derive theirs
    common = {
        "model_name": "digits",
        "device": "cpu",
        "optimizer_name": "SGD",
        "learning_rate": given.lr,
        "weight_decay": 0.0,
        "milestones": [],
        "learning_rate_decay": 1.0,
    }

    def loader(x: torch.Tensor, y: torch.Tensor, seed: int) -> torch.utils.data.DataLoader:
        chance = torch.Generator().manual_seed(1000 * given.seed + seed)
        data = torch.utils.data.TensorDataset(x, y)
        return torch.utils.data.DataLoader(data, batch_size=given.batch, shuffle=True, generator=chance)

    test = loader(given.tensor("test_x"), given.tensor("test_y"), given.nodes)
    rule = {"name": "Average", "parameters": {}}
    server = federated.Server({**common, "test_loader": test, "aggregator_info": rule, "pre_agg_list": []})
    clients = [
        federated.Client(
            {
                **common,
                "optimizer_params": {"momentum": given.momentum},
                "loss_name": "CrossEntropyLoss",
                "LabelFlipping": False,
                "nb_labels": 10,
                "momentum": given.momentum,
                "store_per_client_metrics": False,
                "training_dataloader": loader(*given.shard(node), node),
            }
        )
        for node in range(given.nodes)
    ]
    for _ in range(given.rounds):
        for client in clients:
            client.set_model_state(server.get_dict_parameters())
        learned = []
        for client in clients:
            client.compute_model_update(given.local_steps)
            learned.append(client.get_flat_parameters())
        server.update_model_with_weights(learned)
    ended([given.accuracy(server.model)], began)


if __name__ == "__main__":
    main()
