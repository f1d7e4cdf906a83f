"""Consent to attack, and how an attacking node says so."""

import pytest
import trio

from starling.gossip.errors import ConfigError
from starling.node.config import attack_consent
from starling.node.config.schema import NodeConfig
from starling.node.daemon.observe.snapshot import take_snapshot
from starling.robust.attacks.catalogue import ATTACKS
from tests.harness.stories import replayable
from tests.harness.swarms import digits, story, until


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_starts_without_a_second_yes(attack: str) -> None:
    with pytest.raises(ConfigError, match="attack_agreed=true") as caught:
        attack_consent.check(NodeConfig(attack=attack))
    assert "\n" not in str(caught.value)
    attack_consent.check(NodeConfig(attack=attack, attack_agreed=True))


def test_an_unknown_attack_and_parameters_without_an_attack_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'sing_flip' is unknown, choose one of alie.*did you mean sign_flip"):
        attack_consent.check(NodeConfig(attack="sing_flip", attack_agreed=True))
    with pytest.raises(ConfigError, match="attack_params: there is no attack"):
        attack_consent.check(NodeConfig(attack_params={"z": 1.0}))


def test_consent_alone_starts_no_attack() -> None:
    attack_consent.check(NodeConfig(attack_agreed=True))
    assert attack_consent.warning(NodeConfig(attack_agreed=True)) is None


@pytest.mark.slow
def test_an_attacking_node_says_so_in_events_and_status() -> None:
    async def tale() -> None:
        swarm = story(digits(2, rounds=4), 0, attacks={1: "sign_flip"})
        async with swarm.running(2):
            with trio.fail_after(60):
                await until(lambda: all(virtual.node.progress.round >= 1 for virtual in swarm.nodes.values()))
            honest, liar = (take_snapshot(swarm.nodes[index].node) for index in range(2))
        assert liar.byzantine
        assert liar.problem is not None
        assert liar.problem.startswith("Byzantine on purpose")
        assert "sign_flip" in liar.problem
        assert [event.level for event in liar.events if event.name == "byzantine"] == ["warning"]
        assert not honest.byzantine
        assert honest.problem is None
        assert "byzantine" not in [event.name for event in honest.events]

    replayable(tale, 0)
