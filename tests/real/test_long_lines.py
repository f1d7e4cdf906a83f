"""Messages over a round trip of 80 ms are as fast as TCP, and as iperf3 where it is installed: one command, and its figures.

pytest -s -m acceptance tests/real/test_long_lines.py
"""

import json
import shutil
import subprocess
from contextlib import contextmanager

import msgspec
import pytest

from starling.node.cli.documents import Links
from tests.harness.cables import Line
from tests.harness.namespaces import lan
from tests.harness.processes import ENVIRONMENT

LINES = [Line(100, delay_ms=20), Line(1000, delay_ms=20, mtu=9000)]  # a round trip crosses four lines
BUFFER_BYTES = 64 << 20  # several times what is in flight at 1 Gbit/s
SIZES = (1 << 20, 16 << 20)
SHARE = 0.85
RECEIVER = "10.96.0.2:4100"
IPERF = "iperf3 --client 10.96.0.2 --time 6 --omit 3 --json"

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.acceptance]


def bench(host, *words):
    command = ["ip", "netns", "exec", host, "starling", "bench", "link", *words]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def receiver(host):
    with bench(host, "--listen", RECEIVER) as process:
        try:
            assert process.stderr.readline().startswith("listening")
            yield
        finally:
            process.terminate()


def iperf(here, there):
    """Return MB/s that arrived, after the first three seconds; None without iperf3."""
    if shutil.which("iperf3") is None:
        return None
    serve = ["ip", "netns", "exec", there, "iperf3", "--server", "--one-off", "--forceflush"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            while "listening" not in server.stdout.readline():
                assert server.poll() is None
            words = ["ip", "netns", "exec", here, *IPERF.split()]
            said = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout
        finally:
            server.terminate()
    return json.loads(said)["end"]["sum_received"]["bits_per_second"] / 8e6


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.mbit} Mbit/s")
def test_long_messages_use_a_line_with_long_delay_like_tcp(line):
    cases = [f"--message-bytes={size}" for size in SIZES] + ["--transport=starling", "--transport=tcp"]
    words = ["--connect", RECEIVER, *cases, "--seconds", "4", "--repeat", "2", "--json"]
    with lan(2, line, BUFFER_BYTES) as (here, there):
        with receiver(there), bench(here, *words) as sender:
            said, complaint = sender.communicate()
        beside = iperf(here, there)
    assert sender.returncode == 0, complaint
    measured = {(each.message_bytes, each.transport): each for each in msgspec.json.decode(said, type=Links).cases}
    for (size, transport), case in measured.items():
        print(f"{size:>10,} bytes, {transport}: {case.mb_s:.1f} MB/s, {case.rtt_ms} ms")  # noqa: T201
        assert case.rtt_ms >= 80
        assert case.mb_s >= SHARE * measured[size, "tcp"].mb_s
        assert beside is None or case.mb_s >= SHARE * beside
    print("iperf3 is not installed" if beside is None else f"iperf3: {beside:.1f} MB/s")  # noqa: T201
