"""A model is sent to a joiner by three peers, each a host with a line of 100 Mbit/s: at line rate, across a restart, despite a liar.

STARLING_STATE_MB sets its size, for instance 1000; 100 by default. A round trip takes 40 ms.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest

from tests.harness.cables import Line
from tests.harness.libp2p_nodes import peer_of
from tests.harness.namespaces import lan
from tests.harness.processes import ENVIRONMENT, ROOT

SIZE = int(os.environ.get("STARLING_STATE_MB", "100")) * 1_000_000
LINE = Line(100, delay_ms=10, mtu=9000)  # larger packets than usual, which cost this machine less
LINE_BYTES_PER_S = LINE.mbit * 1e6 / 8
SHARE = 0.85  # of the line
UNDER_WAY = 3 * 4 << 20  # bytes that three peers may have sent when the joiner is killed: four chunks each

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.acceptance]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path, chance = tmp_path_factory.mktemp("state") / "model", random.Random(1)
    with path.open("wb") as file:
        for at in range(0, SIZE, 1 << 20):
            file.write(chance.randbytes(min(1 << 20, SIZE - at)))
    return path


def on(host, *words, **options):
    command = ["ip", "netns", "exec", host, sys.executable, "-m", "tests.harness.state_hosts", *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, **options)


@contextmanager
def holders(hosts, model, kinds):
    """Start processes that have the model; return their addresses."""
    with ExitStack() as stack:
        started = []
        for number, (host, kind) in enumerate(zip(hosts, kinds, strict=True)):
            process = stack.enter_context(on(host, kind, model, f"{kind}{number}", stdin=subprocess.PIPE))
            stack.callback(process.kill)
            started.append(process)
        yield [process.stdout.readline().strip() for process in started]


def fetched(host, model, kept, addresses, until=2.0):
    """Return the joiner's output: at the end, or when it is killed with this share of the model."""
    with on(host, "fetch", model, kept, *addresses) as process:
        for line in process.stdout:
            now = json.loads(line)
            if "seconds" in now:
                return now
            if now["received"] >= until * SIZE:
                process.kill()
                return now
    raise AssertionError("it ended before")


def test_a_model_download_uses_the_full_line_and_resumes_after_a_kill(model, tmp_path):
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    with lan(4, LINE) as (*hosts, joiner), holders(hosts, model, ["hold"] * 3) as addresses:
        whole = fetched(joiner, model, tmp_path / "first.part", addresses)
        assert whole["digest"] == digest
        assert (whole["before"], whole["faults"]) == (0, [])
        share = SIZE / whole["seconds"] / LINE_BYTES_PER_S
        assert share >= SHARE, f"{share:.3f} of the line"

        cut = fetched(joiner, model, tmp_path / "second.part", addresses, until=0.5)
        rest = fetched(joiner, model, tmp_path / "second.part", addresses)
        assert rest["digest"] == digest
        assert rest["before"] >= cut["received"] - UNDER_WAY
        assert rest["came"] <= 1.02 * (SIZE - rest["before"]) + UNDER_WAY
        share_of_rest = (SIZE - rest["before"]) / rest["seconds"] / LINE_BYTES_PER_S
        assert share_of_rest >= 0.8 * SHARE, f"{share_of_rest:.3f} of the line, the first look at what is here included"
    figures = f"{share:.3f} of the line; {cut['received']} received when killed, {rest['before']} kept, {rest['came']} fetched then"
    print(figures)  # noqa: T201 - what a large run is for


def test_a_wrong_chunk_blames_its_peer_and_costs_almost_nothing(model, tmp_path):
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    with lan(4, LINE) as (*hosts, joiner), holders(hosts, model, ["hold", "lie", "hold"]) as addresses:
        whole = fetched(joiner, model, tmp_path / "third.part", addresses)
    assert whole["digest"] == digest
    assert whole["faults"] == [[peer_of("lie1"), "state_digest_mismatch"]]
    assert whole["came"] <= 1.02 * SIZE + UNDER_WAY
