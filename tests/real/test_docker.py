"""The containers of `docker/`: what its README promises, on a Docker engine. Skipped where none answers.

The first run builds the image, which takes minutes and gets packages from where pip gets them.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from node import settings
from node.cli.inspect import check
from node.config import Manifest

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(2400)]

FOLDER = Path(__file__).parents[2] / "docker"
BUILD_S = 1800.0
START_S = 120.0  # four nodes that load torch on a busy machine
LEARN_S = 240.0
VOLUNTEERS = 2  # with the founder: the quorum of docker/manifest.toml


def command(*words: str, within_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=within_s)


def said(*words: str, within_s: float = 60.0) -> str:
    """Standard output of a command that must succeed."""
    ended = command(*words, within_s=within_s)
    assert ended.returncode == 0, f"{' '.join(words)}: {ended.stderr[-2000:]}"
    return ended.stdout


def until(holds: Callable[[], bool], within_s: float, what: str) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, f"not within {within_s:.0f} s: {what}"
        time.sleep(0.5)


@pytest.fixture(scope="module")
def compose() -> tuple[str, ...]:
    """Compose 2, else compose 1, on our file."""
    for program in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(program[0]) is not None and command(*program, "version").returncode == 0:
            return (*program, "-f", str(FOLDER / "compose.yaml"))
    pytest.skip("neither `docker compose` nor `docker-compose` is installed")


@dataclass(frozen=True)
class Swarm:
    """A running project."""

    name: str

    def containers(self, service: str) -> list[str]:
        labels = (f"label=com.docker.compose.{key}" for key in (f"project={self.name}", f"service={service}"))
        filters = [word for label in labels for word in ("--filter", label)]
        return said("docker", "ps", "-aq", *filters).split()

    @property
    def everybody(self) -> list[str]:
        return self.containers("founder") + self.containers("volunteer")


def inspected(container: str, template: str) -> str:
    return said("docker", "inspect", "--format", template, container).strip()


def is_healthy(container: str) -> bool:
    return inspected(container, "{{.State.Health.Status}}") == "healthy"


def status(container: str) -> dict[str, Any]:
    """What a node says of itself; nothing until it answers."""
    ended = command("docker", "exec", container, "starling", "status", "--dir", "/data", "--json")
    return json.loads(ended.stdout) if ended.returncode == 0 else {}


@pytest.fixture(scope="module")
def swarm(compose: tuple[str, ...]) -> Iterator[Swarm]:
    """A founder and volunteers of our own image, gone afterwards with their volumes."""
    if command("docker", "version").returncode != 0:
        pytest.skip("no Docker engine answers (`docker version`)")
    started = Swarm(f"starling-test-{os.getpid()}")
    project = (*compose, "-p", started.name)
    try:
        said(*project, "up", "-d", "--build", "--scale", f"volunteer={VOLUNTEERS}", within_s=BUILD_S)
        yield started
    finally:
        command(*project, "down", "-v", within_s=START_S)


def test_the_manifest_is_one_that_found_accepts():
    agreed = settings.load(FOLDER / "manifest.toml", Manifest)
    check(agreed)
    assert agreed.pace.quorum == VOLUNTEERS + 1


def test_compose_accepts_its_file(compose):
    """No engine is needed for that."""
    assert said(*compose, "config", "--services").split() == ["founder", "volunteer"]


def test_every_container_becomes_healthy(swarm):
    assert len(swarm.everybody) == VOLUNTEERS + 1
    until(lambda: all(is_healthy(each) for each in swarm.everybody), START_S, "all are healthy")


def test_the_volunteers_find_the_founder_and_all_learn(swarm):
    """By the invite alone, and from parts of the data none of which is enough for that figure by itself."""

    def learned() -> bool:
        told = [status(each) for each in swarm.everybody]
        return all(each.get("members") == VOLUNTEERS + 1 and (each.get("value") or 0.0) > 0.8 for each in told)

    until(learned, LEARN_S, "members and accuracy of everybody")


def test_the_log_of_a_node_is_the_log_of_its_container(swarm):
    for each in swarm.everybody:
        until(lambda each=each: '"event":"listening"' in said("docker", "logs", each), START_S, "its first line")


def test_a_node_has_no_privileges(swarm):
    for each in swarm.everybody:
        process = said("docker", "exec", each, "cat", "/proc/1/status")
        facts = dict(line.split(":\t", 1) for line in process.splitlines() if ":\t" in line)
        assert facts["Uid"].split() == ["10001"] * 4
        assert int(facts["CapEff"], 16) == int(facts["CapBnd"], 16) == 0
        assert facts["NoNewPrivs"] == "1"
        assert command("docker", "exec", each, "touch", "/opt/starling/x").returncode != 0


def test_a_stopped_container_leaves_in_order_and_comes_back_as_itself(swarm):
    """Nobody has to found or join again; and a founder that has another address now is found by those who knew the old one."""
    for each in (swarm.containers("founder")[0], swarm.containers("volunteer")[0]):
        until(lambda each=each: bool(status(each)), START_S, "it answers")
        before = status(each)
        said("docker", "stop", "-t", "10", each)
        assert inspected(each, "{{.State.ExitCode}}") == "0"  # 137: it had to be killed
        said("docker", "start", each)

        def is_back(each: str = each, before: dict[str, Any] = before) -> bool:
            now = status(each)
            return now.get("peer") == before["peer"] and now["rejoined"] and now["members"] == VOLUNTEERS + 1

        until(is_back, START_S, "the same peer among the others")
