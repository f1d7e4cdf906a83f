"""Flower: FedAvg with a server and one virtual client per shard (Ray), through its ServerApp and ClientApp."""

import time
from functools import partial

import torch
from common import World, ended, step, world
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


def train(path: str, message: Message, context: Context) -> Message:
    """Do local steps from the server's model; a client's momentum restarts, since clients store nothing."""
    given = World(path)
    node, visit = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
    model = given.model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer, batches = given.sgd(model), given.batches(node, visit)
    for _ in range(given.local_steps):
        step(model, optimizer, next(batches))
    samples = MetricRecord({"num-examples": len(given.shard(node)[1])})
    reply = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": samples})
    return Message(content=reply, reply_to=message)


def main() -> None:
    given = world()
    client, server = ClientApp(), ServerApp()
    client.train()(partial(train, given.path))

    @server.main()
    def serve(grid: Grid, _context: Context) -> None:
        began, model = time.monotonic(), given.model()
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=given.nodes, min_available_nodes=given.nodes)
        result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=given.rounds)
        model.load_state_dict(result.arrays.to_torch_state_dict())
        ended([given.accuracy(model)], began)

    backend = {"init_args": {"num_cpus": given.nodes}, "client_resources": {"num_cpus": 1}}
    run_simulation(server, client, num_supernodes=given.nodes, backend_config=backend)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
