"""Hosts on lines of 20 Mbit/s that lose one packet in a hundred, most of them behind home routers: one command, and its figures.

    pytest -s -m acceptance tests/real/test_routers.py

From host to host a packet takes 40 ms. Of eight hosts, two are public and relay small exchanges, four are behind NATs that keep one port
for all destinations, two behind symmetric ones; of three, one and two.
"""

import time

import pytest

from tests.harness.cables import Line
from tests.harness.namespaces import homes
from tests.harness.processes import ROOT, status_of, terminals, until

OPEN, RESTRICTED, SYMMETRIC = 2, 4, 2
LINE = Line(20, delay_ms=20, loss=0.005)  # a packet crosses two lines
ROUNDS = 200
ACCURACY, COMMITTED = 0.95, 0.95
PATIENCE_S = 400.0

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.acceptance,
    pytest.mark.usefixtures("warm_engines"),
    pytest.mark.timeout(PATIENCE_S + 200),
]


def trained(tmp_path, *, opens, behind, symmetric=(), rounds=ROUNDS):
    """Let nodes on public hosts, which relay, and behind routers train; return their last status and the seconds taken."""
    count = opens + behind
    folders = [tmp_path / str(number) for number in range(count)]
    what = f"create {ROOT}/examples/digits.toml --set pace.rounds={rounds}"
    what += f" --set partition.shards={count} --set pace.quorum={count}"
    with homes(behind, opens=opens, symmetric=symmetric, line=LINE) as hosts, terminals() as terminal:
        for number, host in enumerate(hosts):
            relay = "--relay small" if number < opens else ""
            line = f"ip netns exec {host} starling {what} {relay} --shard {number} --no-lan --set linger_s=60 --dir {number}"
            node = terminal(line, tmp_path, str(number))
            if not number:
                what = f"join {node.until(node.first_line)}"
        began = time.monotonic()
        until("they do not end", lambda: all((now := status_of(it)) and now.state == "finished" for it in folders), PATIENCE_S)
        return [status_of(it) for it in folders], time.monotonic() - began


def test_eight_hosts_mostly_behind_routers_learn_and_complete_exchanges(tmp_path):
    behind = RESTRICTED + SYMMETRIC
    ended, took_s = trained(tmp_path, opens=OPEN, behind=behind, symmetric=range(RESTRICTED, behind))
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


def test_two_hosts_behind_routers_train_together_with_one_relay(tmp_path):
    """Their exchanges use a simultaneous open, or the relay."""
    (relay, *hidden), took_s = trained(tmp_path, opens=1, behind=2, rounds=60)
    for one, other in (hidden, hidden[::-1]):
        (seen,) = [it for it in one.peers if it.peer not in {relay.peer, one.peer}]
        print(f"{took_s:.0f} s: accuracy {one.value:.3f}, {one.exchanges}, {seen.committed} with the other, {seen.way}")  # noqa: T201
        assert seen.peer == other.peer
        assert seen.committed > 0
        assert one.value >= ACCURACY
