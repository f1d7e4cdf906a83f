"""The containers of `docker/` work as docs/containers.md says, by its own commands, on a Docker engine. Skipped without one.

The first run builds the image, which takes minutes and downloads packages from pip's index.
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from starling.node.cli.config import check
from starling.node.config import toml as settings
from starling.node.config.parts import convert
from starling.node.config.schema import Manifest
from tests.harness import pages
from tests.harness.containers import BUILD_S, ROOT, command, needs_an_engine, said

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(3600)]

FOLDER = ROOT / "docker"
BLOCKS = {block.reader: block.lines for block in pages.blocks(ROOT / "docs" / "containers.md")}
PROGRAMS = {1: ("docker-compose",), 2: ("docker", "compose")}
START_S = 240.0  # six nodes that load torch on a busy machine
LEARN_S = 600.0
SCENARIO_S = 900.0
LARGEST_BYTES = 1_300_000_000
HEALTHY_S = 20.0
GOOD = 0.95
VOLUNTEERS = 5


def until(holds: Callable[[], bool], within_s: float, what: str) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, f"not within {within_s:.0f} s: {what}"
        time.sleep(1.0)


def installed(version: int) -> bool:
    program = PROGRAMS[version]
    if shutil.which(program[0]) is None:
        return False
    answer = command(*program, "version", "--short")
    return answer.returncode == 0 and answer.stdout.lstrip("v").startswith(str(version))


@dataclass(frozen=True)
class Swarm:
    """A compose project."""

    program: tuple[str, ...]
    name: str

    def compose(self, *words: str, within_s: float = BUILD_S) -> str:
        return said(*self.program, "-f", str(FOLDER / "compose.yaml"), "-p", self.name, *words, within_s=within_s)

    def shell(self, line: str, within_s: float = BUILD_S) -> subprocess.CompletedProcess[str]:
        """Run a line of the page in this project; with compose 1 if there is no other, and without a terminal."""
        typed = re.sub(r" exec (?!-T)", " exec -T ", line.replace("docker compose", " ".join(self.program)))
        named = {"COMPOSE_FILE": "docker/compose.yaml", "COMPOSE_PROJECT_NAME": self.name}
        return command("sh", "-ec", typed, within_s=within_s, env={**os.environ, **named})

    def containers(self, *services: str) -> list[str]:
        names = []
        for service in services:
            labels = (f"label=com.docker.compose.{key}" for key in (f"project={self.name}", f"service={service}"))
            filters = [word for label in labels for word in ("--filter", label)]
            names += sorted(said("docker", "ps", "-a", "--format", "{{.Names}}", *filters).split())
        return names

    @property
    def honest(self) -> list[str]:
        return self.containers("creator", "volunteer", "wan")

    def all_learn(self) -> None:
        """Return whether all honest nodes know each other, and exceed the accuracy of any single part of the data."""
        honest = self.honest

        def learned() -> bool:
            answer = [status(each) for each in honest]
            return all(each.get("members", 0) >= len(honest) and (each.get("value") or 0.0) >= GOOD for each in answer)

        until(learned, LEARN_S, f"members and accuracy of {len(honest)} nodes")


def inspected(container: str, template: str) -> str:
    return said("docker", "inspect", "--format", template, container).strip()


def at(written: str) -> datetime:
    return datetime.fromisoformat(written)


def is_healthy(container: str) -> bool:
    return inspected(container, "{{.State.Health.Status}}") == "healthy"


def status(container: str) -> dict[str, Any]:
    """Return a node's status; nothing until it answers."""
    ended = command("docker", "exec", "-u", "10001", container, "starling", "status", "--dir", "/data", "--json")
    return json.loads(ended.stdout) if ended.returncode == 0 else {}


@pytest.fixture(scope="module")
def program() -> tuple[str, ...]:
    """Build the image and return the command of compose 2, else of compose 1, if a Docker engine answers."""
    version = next((version for version in (2, 1) if installed(version)), None)
    if version is None:
        pytest.skip("neither `docker compose` nor `docker-compose` is installed")
    needs_an_engine()
    Swarm(PROGRAMS[version], "starling-test").compose("--profile", "wan", "build")
    return PROGRAMS[version]


@pytest.fixture(scope="module")
def begin(program: tuple[str, ...]) -> Iterator[Callable[[str, str], Swarm]]:
    """Start a project by a line of the page. It ends when another is started, or with the tests."""
    started: list[Swarm] = []

    def end() -> None:
        while started:
            ended = started.pop()
            words = ("--profile", "byzantine", "--profile", "wan", "down", "-v", "--remove-orphans")
            ended.compose(*words, within_s=START_S)

    def start(name: str, line: str) -> Swarm:
        end()
        started.append(Swarm(program, f"starling-test-{os.getpid()}-{name}"))
        ended = started[0].shell(line)
        assert ended.returncode == 0, ended.stderr[-2000:]
        return started[0]

    try:
        yield start
    finally:
        end()


@pytest.fixture(scope="module")
def swarm(begin: Callable[[str, str], Swarm]) -> Swarm:
    """Start the page's creator and volunteers."""
    (line,) = (line for line in BLOCKS["start"] if " up " in line)
    assert f"--scale volunteer={VOLUNTEERS}" in line
    return begin("swarm", line)


def test_create_accepts_the_container_manifest():
    check(settings.load(FOLDER / "manifest.toml", Manifest))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("profile", ["byzantine", "wan", "observe"])
def test_either_compose_accepts_the_file(version, profile):
    if not installed(version):
        pytest.skip(f"no compose {version} is installed")
    files = ("-f", "docker/compose.yaml", "-f", "docker/compose.cuda.yaml")
    for some in (files, files[:2]):
        config = yaml.safe_load(said(*PROGRAMS[version], *some, "--profile", profile, "config"))
        services = config["services"]
        nodes = {name: each for name, each in services.items() if name in {"creator", "volunteer", "liar", "wan"}}
        assert {"creator", "volunteer"} <= nodes.keys()
        for name, each in nodes.items():
            assert each["read_only"], name
            assert each["cap_drop"] == ["ALL"], name
            assert bool(each.get("cap_add")) == (name == "wan"), name
        assert not any("ports" in each for each in nodes.values())
        for name in ("prometheus", "grafana"):
            assert all("127.0.0.1" in str(port) for port in services.get(name, {}).get("ports", []))


def test_prometheus_and_grafana_are_configured_for_all_nodes():
    """Prometheus scrapes every service with nodes; Grafana reads the same Prometheus and finds its dashboard."""
    (source,) = yaml.safe_load((FOLDER / "observe/grafana/datasources/prometheus.yml").read_text())["datasources"]
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    assert source["url"] == "http://prometheus:9090"
    mounted = {each.split(":")[1]: each.split(":")[0] for each in services["grafana"]["volumes"]}
    (provider,) = yaml.safe_load((FOLDER / "observe/grafana/dashboards/starling.yml").read_text())["providers"]
    dashboard = next(place for place in mounted if place.endswith(".json"))
    assert str(Path(dashboard).parent) == provider["options"]["path"]
    assert services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == dashboard
    assert json.loads((FOLDER / mounted[dashboard]).read_text())["panels"]
    scraped = FOLDER / "observe" / "prometheus.yml"
    asked = str(yaml.safe_load(scraped.read_text())["scrape_configs"])
    assert all(name in asked for name in ("creator", "volunteer", "wan", "liar", "9464"))
    if shutil.which("promtool") is not None:
        said("promtool", "check", "config", str(scraped))


@pytest.mark.parametrize("name", ["partition", "kill", "churn"])
def test_a_scenario_refuses_wrong_input_in_a_line(name):
    script = f"docker/scenarios/{name}.sh"
    for words, part in ((("--for", "soon"), "--for: must be"), (("--fro", "3"), "no option --fro"), (("-p",), "-p:")):
        refused = command("sh", script, *words)
        assert refused.returncode == 2
        assert part in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert "Exit code 0" in said("sh", script, "--help")


def test_the_systemd_unit_is_valid(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on this machine")
    unit = (ROOT / "deploy" / "starling.service").read_text()
    assert "ExecStart=%h/.local/bin/starling run --dir %h/starling-node\n" in unit
    place = tmp_path / "starling.service"
    place.write_text(unit.replace("%h/.local/bin/starling", "/bin/true"))
    looked = command("systemd-analyze", "--user", "verify", str(place), env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)})
    assert (looked.returncode, looked.stdout + looked.stderr) == (0, "")


def test_the_kubernetes_manifest_has_what_a_node_needs():
    parts = {each["kind"]: each for each in yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "swarm.yaml").read_text())}
    assert parts.keys() == {"ConfigMap", "Service", "StatefulSet"}
    check(convert(settings.parse(parts["ConfigMap"]["data"]["manifest.toml"]), Manifest))
    spec = parts["StatefulSet"]["spec"]
    pod = spec["template"]["spec"]
    (node,) = pod["containers"]
    assert parts["Service"]["spec"]["clusterIP"] == "None"
    assert parts["Service"]["metadata"]["name"] == spec["serviceName"]
    labels = spec["template"]["metadata"]["labels"]
    assert labels == spec["selector"]["matchLabels"] == parts["Service"]["spec"]["selector"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert node[probe]["exec"]["command"] == ["starling", "status", "--dir", "/data"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 10001
    assert node["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert node["securityContext"]["readOnlyRootFilesystem"]
    assert not node["securityContext"]["allowPrivilegeEscalation"]
    assert node["resources"]["requests"].keys() == {"cpu", "memory"}
    volumes = {each["name"] for each in (*pod["volumes"], *(claim["metadata"] for claim in spec["volumeClaimTemplates"]))}
    assert {each["name"] for each in node["volumeMounts"]} == volumes
    (script,) = node["args"]
    said("sh", "-n", "-c", script)
    host = "$POD.starling.$NAMESPACE.svc.cluster.local"
    assert f"/dns4/{host}/tcp/4001" in script


@pytest.mark.parametrize(
    ("folder", "image", "settings", "gpus"),
    [("kubernetes", "starling:latest", "--set threads=1", None), ("kubernetes-gpu", "starling:cuda", "", 1)],
)
def test_kustomize_renders_both_folders(folder, image, settings, gpus):
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on this machine")
    parts = {each["kind"]: each for each in yaml.safe_load_all(said("kubectl", "kustomize", str(ROOT / "deploy" / folder)))}
    (node,) = parts["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert node["image"] == image
    assert {each["name"]: each.get("value") for each in node["env"]}["SETTINGS"] == settings
    assert node["resources"]["limits"].get("nvidia.com/gpu") == gpus


def test_the_image_is_small_and_not_root(program):
    assert int(said("docker", "image", "inspect", "--format", "{{.Size}}", "starling")) <= LARGEST_BYTES
    assert said("docker", "image", "inspect", "--format", "{{.Config.User}}", "starling").strip() == "starling"
    assert said("docker", "run", "--rm", "--entrypoint", "id", "starling", "-u").strip() == "10001"
    unwanted = said("docker", "run", "--rm", "--entrypoint", "sh", "starling", "-c", "which gcc; ls /opt/starling/bin/pip || true")
    assert unwanted.strip() == ""


def test_a_demo_learns_in_the_image(program):
    """Files left out of the small image are not missed."""
    line = ("docker", "run", "--rm", "starling", "demo", "--nodes", "2", "--rounds", "30", "--no-tui", "--json")
    answer = json.loads(said(*line, within_s=START_S))
    assert all(each["value"] > 0.8 for each in answer["nodes"])


def test_a_volunteer_without_a_creator_names_it(program):
    started = said("docker", "run", "-d", "--init", "-e", "INVITE_FILE=/invite/swarm", "starling", "join").strip()
    try:
        until(
            lambda: "docker compose -f docker/compose.yaml up -d creator" in command("docker", "logs", started).stderr,
            START_S,
            "what to do",
        )
        assert inspected(started, "{{.State.Running}}") == "true"
    finally:
        said("docker", "rm", "-f", "-v", started)


def test_a_lone_creator_reports_what_it_waits_for(begin):
    """One node, then enough of them, then fewer while it runs."""
    swarm = begin("alone", "docker compose up -d creator")
    (creator,) = swarm.containers("creator")
    until(lambda: is_healthy(creator), START_S, "healthy")
    if os.getloadavg()[0] < (os.cpu_count() or 1):  # other load on this machine is not the image's fault
        log = json.loads(inspected(creator, "{{json .State.Health.Log}}"))
        first = next(each["End"] for each in log if each["ExitCode"] == 0)
        assert (at(first) - at(inspected(creator, "{{.State.StartedAt}}"))).total_seconds() <= HEALTHY_S
    until(lambda: "waiting for 3 members, 1 here" in (status(creator).get("problem") or ""), START_S, "what it waits for")
    swarm.compose("up", "-d", "--scale", "volunteer=2")
    until(lambda: status(creator).get("state") == "training", START_S, "it trains")
    swarm.compose("up", "-d", "--scale", "volunteer=1")
    until(lambda: status(creator).get("members") == 2, START_S, "it sees that one is gone")
    reached = status(creator)["round"]
    until(lambda: status(creator).get("round", 0) > reached + 5, START_S, "it goes on")


def test_every_container_becomes_healthy(swarm):
    assert len(swarm.honest) == VOLUNTEERS + 1
    until(lambda: all(is_healthy(each) for each in swarm.honest), START_S, "all are healthy")


def test_the_volunteers_find_the_creator_and_all_learn(swarm):
    """By the invite alone, and from parts of the data none of which suffices for that accuracy."""
    swarm.all_learn()


def test_the_log_of_a_node_is_the_log_of_its_container(swarm):
    for each in swarm.honest:
        until(lambda each=each: '"event":"listening"' in said("docker", "logs", each), START_S, "its first line")


def test_a_node_has_no_privileges(swarm):
    for each in swarm.honest:
        has_none(each)
        assert command("docker", "exec", each, "touch", "/opt/starling/x").returncode != 0


def has_none(container: str) -> None:
    """Assert that the node's processes run as a user without privileges."""
    look = "for p in /proc/[0-9]*; do grep -q ^/opt/starling/bin/python $p/cmdline && cat $p/status; done; true"
    answer = said("docker", "exec", "-u", "10001", container, "sh", "-c", look)
    facts = re.findall(r"^(Uid|CapEff|CapBnd|NoNewPrivs):\t(.*)$", answer, re.MULTILINE)
    assert {name for name, _ in facts} == {"Uid", "CapEff", "CapBnd", "NoNewPrivs"}
    allowed = {"Uid": ["10001"] * 4, "CapEff": ["0" * 16], "CapBnd": ["0" * 16], "NoNewPrivs": ["1"]}
    assert all(value.split() == allowed[name] for name, value in facts)


@pytest.mark.parametrize("line", BLOCKS["look"])
def test_a_running_swarm_can_be_inspected(swarm, line):
    assert swarm.shell(line).stdout


def test_metrics_of_containers_can_be_scraped(swarm):
    """From the address that Prometheus scrapes, by the name that compose gives."""
    fetch = "import urllib.request as u; print(u.urlopen('http://volunteer:9464/metrics').read().decode())"
    assert "# TYPE starling_" in said("docker", "exec", swarm.containers("creator")[0], "python", "-c", fetch)


@pytest.mark.parametrize("line", BLOCKS["scenarios"])
def test_the_swarm_heals(swarm, line):
    """The scenario's table lists every node, and its exit code says that all know all members again and have progressed."""
    ended = swarm.shell(line, within_s=SCENARIO_S)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-1000:]
    if "scenarios" not in line:
        return
    last = ended.stdout[ended.stdout.rindex("node ") :]
    assert all(each in last for each in swarm.honest)
    assert re.search(r"^healed after \d+ s$", last, re.MULTILINE)
    if "kill" in line:
        assert len(re.findall(r" yes$", last, re.MULTILINE)) == 2
    if "partition" in line:  # during the partition each half declared the other dead
        first, cut, *_ = ended.stdout.split("node ")[1:]
        assert len(re.findall(rf" training +{VOLUNTEERS + 1} ", first)) == VOLUNTEERS + 1
        assert len(re.findall(r" training +3 ", cut)) == VOLUNTEERS + 1


def test_a_stopped_container_leaves_in_order_and_comes_back_as_itself(swarm):
    """No node has to create or join again; members find a creator at its new address."""
    for each in (swarm.containers("creator")[0], swarm.containers("volunteer")[0]):
        until(lambda each=each: bool(status(each)), START_S, "it answers")
        before = status(each)
        said("docker", "stop", "-t", "10", each)
        assert inspected(each, "{{.State.ExitCode}}") == "0"  # 137: it had to be killed
        said("docker", "start", each)

        def is_back(each: str = each, before: dict[str, Any] = before) -> bool:
            now = status(each)
            return now.get("peer") == before["peer"] and now["rejoined"] and now["members"] == VOLUNTEERS + 1

        until(is_back, START_S, "the same peer among the others")


@pytest.mark.parametrize("line", BLOCKS["change"])
def test_a_running_swarm_can_be_changed(swarm, line, tmp_path):
    if " export " in line:
        until(lambda: all(is_healthy(each) for each in swarm.honest), START_S, "who is to export it answers")
    ended = swarm.shell(line.replace("> now", f"> {tmp_path}/now"))
    assert ended.returncode == 0, ended.stderr[-2000:]
    if "> now" in line:
        assert (tmp_path / "now.safetensors").stat().st_size > 10_000


def of_profile(name: str) -> str:
    (line,) = (line for line in BLOCKS["profiles"] if f"--profile {name} " in line)
    return line


def test_a_swarm_learns_among_byzantine_nodes(begin):
    """A Byzantine node says so in its status."""
    swarm = begin("byzantine", of_profile("byzantine"))
    swarm.all_learn()
    liars = swarm.containers("liar")
    answer = [status(each) for each in liars]
    assert len(answer) == 1
    assert all(each["byzantine"] and "sign_flip" in each["problem"] for each in answer)


def test_a_swarm_learns_over_slow_and_lossy_connections(begin):
    """Packets are lost and the rate is limited only in the containers that request it, and by no training process."""
    swarm = begin("wan", of_profile("wan"))
    swarm.all_learn()
    shaped = swarm.containers("wan")
    assert len(shaped) == 4
    for each in shaped:
        has_none(each)
        assert "tbf" in said("docker", "exec", each, "tc", "qdisc", "show", "dev", "eth0")
        dropped = said("docker", "exec", "-u", "0", each, "iptables", "-nvxL", "INPUT")
        assert int(re.search(r"^\s*(\d+)\s+\d+\s+DROP.*statistic", dropped, re.MULTILINE)[1]) > 0


def test_a_swarm_is_observed(begin):
    line = of_profile("observe")
    config = said(*PROGRAMS[1 if not installed(2) else 2], "-f", "docker/compose.yaml", "--profile", "observe", "config")
    services = yaml.safe_load(config)["services"]
    for name in ("prometheus", "grafana"):
        if command("docker", "image", "inspect", services[name]["image"]).returncode != 0:
            pytest.skip(f"the image {services[name]['image']} is not on this machine")
    swarm = begin("observe", line)
    ask = "wget -qO- 'http://localhost:9090/api/v1/query?query=up'"
    (prometheus,) = swarm.containers("prometheus")

    def all_up() -> bool:
        answer = json.loads(said("docker", "exec", prometheus, "sh", "-c", ask))
        return sum(each["value"][1] == "1" for each in answer["data"]["result"]) >= len(swarm.honest)

    until(all_up, START_S, "Prometheus reaches every node")
