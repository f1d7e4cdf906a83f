"""Liars in swarms of whole nodes: the same attacks as in the simulator, over the node's own protocol."""

from statistics import mean

import msgspec
import pytest

from starling.node.config import presets
from starling.node.config.schema import AdmissionSection, Manifest, RobustSection
from tests.harness.stories import replayable
from tests.harness.swarms import events, story, until

NODES = 8
LIAR = NODES - 1
ROUNDS = 24


def gathering(rule: str) -> Manifest:
    """Return the open preset with another rule and without proof of work."""
    agreed = presets.load(
        Manifest,
        assignments=["preset=open", f"partition.shards={NODES}", f"pace.quorum={NODES}", f"pace.rounds={ROUNDS}", "pace.max_wait_s=1.0"],
    )
    robust = RobustSection(rule=rule) if rule == "mean" else RobustSection(rule=rule, f=agreed.robust.f)
    return msgspec.structs.replace(agreed, preset="custom", byzantine_fraction=0.0, robust=robust, admission=AdmissionSection())


def told(rule: str, attack: str) -> tuple[float, list[str]]:
    """Return the mean accuracy of the honest, and the report of one of them, after a run with one liar."""

    async def tale() -> tuple[float, list[str]]:
        swarm = story(gathering(rule), 0, attacks={LIAR: attack})
        honest = [index for index in range(NODES) if index != LIAR]
        async with swarm.running(NODES):
            await until(lambda: all(swarm.nodes[i].node.progress.round >= ROUNDS for i in honest), 2000.0)
            values = []
            for index in honest:
                await swarm.nodes[index].node.running.training.house.evaluation.evaluate()
                values.append(swarm.nodes[index].node.progress.evaluated.value)
            return mean(values), events(swarm.nodes[0])

    return replayable(tale, 0)


@pytest.mark.acceptance
@pytest.mark.slow
def test_one_liar_breaks_the_mean_and_not_cs_nnm() -> None:
    ruined, _ = told("mean", "foe")
    stood, _ = told("cs_nnm", "foe")
    assert stood > 0.8
    assert ruined < stood - 0.2


@pytest.mark.slow
def test_payloads_of_nan_are_faults_and_cost_nothing_else() -> None:
    stood, said = told("cs_nnm", "nan")
    assert stood > 0.8
    assert "peer_quarantine" in said
