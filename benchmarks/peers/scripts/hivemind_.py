"""hivemind: a DHT and local steps between averages of parameters (`use_local_updates`), one process per peer."""

import json
import logging
import subprocess
import sys
import time

import hivemind
from common import World, ended, loss, world


def peer(path: str, node: int, first: list[str]) -> None:
    logging.disable(logging.INFO)
    given = World(path)
    dht = hivemind.DHT(start=True, initial_peers=first, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    model, batches = given.model(), given.batches(node)
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="digits",
        params=model.parameters(),
        optimizer=given.sgd(model),
        use_local_updates=True,
        target_batch_size=given.nodes * given.local_steps * given.batch,
        batch_size_per_step=given.batch,
        matchmaking_time=1.0,
        averaging_timeout=20.0,
        delay_state_averaging=False,
        tracker_opts={"min_refresh_period": 0.1, "default_refresh_period": 0.2},
        averager_opts={"target_group_size": given.nodes},
    )
    steps = 0
    while optimizer.local_epoch < given.rounds:
        optimizer.zero_grad()
        loss(model, next(batches)).backward()
        optimizer.step()
        steps += 1
        time.sleep(0.01)  # as on a slower model: else all samples of a round are seen before peers have heard of one another
    print(json.dumps([given.accuracy(model), steps]), flush=True)
    optimizer.shutdown()
    dht.shutdown()


def main() -> None:
    given = world()
    began = time.monotonic()
    first = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    addresses = [str(address) for address in first.get_visible_maddrs()]
    peers = [
        subprocess.Popen([sys.executable, __file__, given.path, str(node), *addresses], stdout=subprocess.PIPE, text=True)
        for node in range(given.nodes)
    ]
    results = [json.loads(process.stdout.readline()) for process in peers]
    for process in peers:
        process.kill()
        process.wait()
    ended([value for value, _ in results], began, steps=[steps for _, steps in results])
    first.shutdown()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        peer(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
    else:
        main()
