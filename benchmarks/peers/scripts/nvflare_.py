"""NVIDIA FLARE: gradient tracking of `app_opt/p2p` in its simulator, one client per shard, on a ring."""

import os
import tempfile
import time
from pathlib import Path

from common import World, ended, world
from flare_client import Client
from nvflare.app_opt.p2p.controllers import DistOptController
from nvflare.app_opt.p2p.types import Config, Neighbor, Network, Node
from nvflare.job_config.api import FedJob


def ring(nodes: int) -> Network:
    """Return weights of one third each; with two nodes, of one half."""

    def around(at: int) -> list[int]:
        return sorted({(at - 1) % nodes, (at + 1) % nodes} - {at})

    return Network(
        [Node(f"site-{at + 1}", [Neighbor(f"site-{other + 1}", 1 / (1 + len(around(at)))) for other in around(at)]) for at in range(nodes)]
    )


def main() -> None:
    given: World = world()
    began, steps = time.monotonic(), given.rounds * given.local_steps
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["PEERS_RESULTS"] = scratch  # the simulator's clients are processes of its own
        job = FedJob(name="digits")
        # an iteration is one gradient and one exchange: as many gradients as elsewhere. It has no momentum, and at the rate that would make
        # up for that, lr / (1 - momentum) = .5, it ended at chance
        extra = {"iterations": steps, "stepsize": given.lr}
        job.to_server(DistOptController(config=Config(network=ring(given.nodes), extra=extra)))
        for node in range(given.nodes):
            job.to(Client(given.path, node), f"site-{node + 1}")
        job.simulator_run(str(Path(scratch) / "job"), log_config="concise")
        values = [float((Path(scratch) / f"value-{node}").read_text()) for node in range(given.nodes)]
    ended(values, began)


if __name__ == "__main__":
    main()
