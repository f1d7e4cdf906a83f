"""Messages over a round trip of 80 ms come as fast as TCP brings them: one command, and its figures.

pytest -s -m acceptance tests/real/test_long_lines.py
"""

import subprocess
from contextlib import contextmanager

import msgspec
import pytest

from starling.node.cli.documents import Links
from tests.harness.cables import Line
from tests.harness.namespaces import lan
from tests.harness.processes import ENVIRONMENT

LINES = [Line(100, delay_ms=20), Line(1000, delay_ms=20, mtu=9000)]  # a round trip crosses four
BUFFER_BYTES = 64 << 20  # some times what is under way at 1 Gbit/s
SIZES = (1 << 20, 16 << 20)
SHARE = 0.85
RECEIVER = "10.96.0.2:4100"

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


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.mbit} Mbit/s")
def test_long_messages_fill_a_long_line_as_tcp_does(line):
    cases = [f"--message-bytes={size}" for size in SIZES] + ["--transport=starling", "--transport=tcp"]
    words = ["--connect", RECEIVER, *cases, "--seconds", "4", "--repeat", "2", "--json"]
    with lan(2, line, BUFFER_BYTES) as (here, there), receiver(there), bench(here, *words) as sender:
        said, complaint = sender.communicate()
    assert sender.returncode == 0, complaint
    measured = {(each.message_bytes, each.transport): each for each in msgspec.json.decode(said, type=Links).cases}
    for (size, transport), case in measured.items():
        print(f"{size:>10,} bytes, {transport}: {case.mb_s:.1f} MB/s, {case.rtt_ms} ms")  # noqa: T201
        assert case.rtt_ms >= 80
        assert case.mb_s >= SHARE * measured[size, "tcp"].mb_s
