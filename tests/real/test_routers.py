"""Eight hosts on lines of 20 Mbit/s that lose one packet in a hundred, six of them behind home routers: one command, and its figures.

    pytest -s -m acceptance tests/real/test_routers.py

Two are in the open and relay small exchanges, four are behind NATs that keep a port for all destinations, two behind symmetric ones. From
host to host a packet takes 40 ms.
"""

import time

import pytest

from tests.harness.cables import Line
from tests.harness.namespaces import homes
from tests.harness.processes import ROOT, status_of, terminals, until

OPEN, RESTRICTED, SYMMETRIC = 2, 4, 2
NODES = OPEN + RESTRICTED + SYMMETRIC
LINE = Line(20, delay_ms=20, loss=0.005)  # a packet crosses two
ROUNDS = 200
AGREED = (
    f"{ROOT}/examples/digits.toml --set partition.shards={NODES} --set pace.quorum={NODES} --set pace.rounds={ROUNDS}"
)
ACCURACY, COMMITTED = 0.95, 0.95
PATIENCE_S = 400.0

pytestmark = [
    pytest.mark.real, pytest.mark.slow, pytest.mark.acceptance, pytest.mark.usefixtures("warm_engines"),
    pytest.mark.timeout(PATIENCE_S + 200),
]  # fmt: skip


def test_eight_hosts_most_of_them_behind_routers_learn_and_commit_what_they_begin(tmp_path):
    folders = [tmp_path / str(number) for number in range(NODES)]
    behind = RESTRICTED + SYMMETRIC
    with homes(behind, opens=OPEN, symmetric=range(RESTRICTED, behind), line=LINE) as hosts, terminals() as terminal:
        what = f"found {AGREED}"
        for number, host in enumerate(hosts):
            relay = "--relay small" if number < OPEN else ""
            line = f"ip netns exec {host} starling {what} {relay} --shard {number} --no-lan --set linger_s=60 --dir {number}"
            node = terminal(line, tmp_path, str(number))
            if not number:
                what = f"join {node.until(node.first_line)}"
        began = time.monotonic()
        until(
            "they do not end",
            lambda: all((now := status_of(it)) and now.state == "finished" for it in folders),
            PATIENCE_S,
        )
        took_s = time.monotonic() - began
        ended = [status_of(it) for it in folders]
    begun = [it.exchanges.committed + it.exchanges.aborted + it.exchanges.timeout for it in ended]
    committed = [it.exchanges.committed for it in ended]
    for number, (it, of) in enumerate(zip(ended, begun, strict=True)):
        print(f"host {number}: accuracy {it.value:.3f}, {it.exchanges} of {of} begun")  # noqa: T201
    share = sum(committed) / sum(begun)
    worst = min(it.value for it in ended)
    print(f"{took_s:.0f} s, {share:.1%} of exchanges begun committed, accuracy {worst:.3f} or more")  # noqa: T201
    assert worst >= ACCURACY
    assert min(committed) > 0
    assert share >= COMMITTED
