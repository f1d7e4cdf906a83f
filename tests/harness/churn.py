"""The swarm of the acceptance rows: 16 quadratics, lost frames, and nodes that crash and join for half of the run.

The tables were made with nodes that wake at random and exchange without cost of time. Here production code runs in steps pace: clock pace
answers peers between two local steps, and five of them per slot are too few to repeat a lost frame. So a node does one exchange per K local
steps, where nodes of the tables do two on average.
"""

from dataclasses import dataclass

import trio

from starling.gossip.seeds import derive
from starling.node.catalogues import task
from starling.node.config import schema
from starling.node.net.faults import loss
from starling.node.simulate.virtual.swarm import VirtualSwarm

POOL = 80  # quadratics: 16 initial nodes, the others join
NODES = 16
LOCAL_STEPS = 5
STEP_S = 0.01
FEWEST = 5  # no node crashes in a smaller swarm


@dataclass(frozen=True, slots=True)
class Row:
    """The result.

    Args:
        errors: at every tenth of the run: mean over live nodes of ‖x_i − x*‖² / ‖x*‖², x* the optimum of their quadratics.
        alive: live nodes at the end.
        crashed, joined: numbers of events.
    """

    errors: tuple[float, ...]
    alive: int
    crashed: int
    joined: int


async def row(
    seed: int,
    rounds: int,
    *,
    mix: str = "pet",
    dim: int = 200,
    lr: float = 0.1,
    churn: float = 0.03,
    calm: int = 0,
    nodes: int = NODES,
    overlay: str = "sticky",
) -> Row:
    """Run one acceptance row: loss .3 on every lane, K = 5 exact gradients, exact codecs, whole vectors, kappa .1.

    Args:
        seed: of the problem, the faults and the churn.
        rounds: T; nodes crash and join from its first tenth to its half.
        mix: pet, dsgd or gradient_tracking.
        dim: d.
        lr: eta of the local steps, constant.
        churn: probability of a crash per round, and of a join.
        calm: further rounds after T.
        nodes: initial nodes.
        overlay: its kind.
    """
    swarm = VirtualSwarm(agreement(seed, rounds, mix, dim, lr, nodes, overlay), seed=seed, step_cost_s=lambda _index: STEP_S)
    errors: list[float] = []
    crashed, joined, played = 0, 0, 0
    async with swarm.running(nodes):
        while not _reached(swarm):  # noqa: ASYNC110 — a look costs no virtual time
            await trio.sleep(STEP_S)
        swarm.hub.rules.append(loss(0.3, seed))
        while played < rounds + calm:
            await trio.sleep(STEP_S)
            while played < min(rounds + calm, _reached(swarm)):
                if rounds // 10 <= played < rounds // 2:
                    if _happens(churn, seed, "crash", played) and len(swarm.nodes) >= FEWEST:
                        living = sorted(swarm.nodes)
                        await swarm.crash(living[derive(seed, "who", played) % len(living)])
                        crashed += 1
                    if _happens(churn, seed, "join", played) and nodes + joined < POOL:
                        await swarm.start(nodes + joined)
                        joined += 1
                played += 1
                if played % (rounds // 10) == 0:
                    errors.append(error(swarm))
        return Row(tuple(errors), len(swarm.nodes), crashed, joined)


def agreement(seed: int, rounds: int, mix: str, dim: int, lr: float, nodes: int, overlay: str) -> schema.Manifest:
    """Return a manifest with exact gradients and codecs and no bounds, so only the algorithm and the faults matter."""
    return schema.Manifest(
        seed=seed,
        task=schema.TaskSection(kind="quadratic", nodes=POOL, dim=dim, dtype="float64"),
        partition=schema.PartitionSection(shards=POOL),
        optimizer=schema.OptimizerSection(lr=lr, momentum=0.0, schedule="constant"),
        mix=schema.MixSection(kind=mix, clip_norm=0.0, defended=False, **({"kappa": 0.1} if mix == "pet" else {})),
        compress=schema.CompressSection(select="full", request="identity", response="identity"),
        overlay=schema.OverlaySection(kind=overlay),
        membership=schema.MembershipSection(probe_s=5.0, timeout_s=0.1, suspicion_s=0.6, sync_s=5.0),
        pace=schema.PaceSection(
            local_steps=LOCAL_STEPS, rounds=0, quorum=nodes, min_wait_s=0.02, max_wait_s=0.1, evaluate_every=10 * rounds
        ),
    )


def error(swarm: VirtualSwarm) -> float:
    """Return the distance of live nodes from their common optimum."""
    section = swarm.manifest.task
    best = task(section.kind, section.params()).optimum(sorted(swarm.nodes), swarm.manifest.seed)
    distances = [float((virtual.vector - best).square().sum()) for virtual in swarm.nodes.values() if virtual.engine]
    return sum(distances) / len(distances) / float(best.square().sum())


def _reached(swarm: VirtualSwarm) -> int:
    """Return the round that half of the live nodes have done."""
    done = sorted(virtual.node.progress.round for virtual in swarm.nodes.values())
    return done[len(done) // 2]


def _happens(chance: float, seed: int, what: str, played: int) -> bool:
    return derive(seed, what, played) / 2**63 < chance
