"""Thirty that join within ten seconds, on real sockets: one command, and its figures.

    pytest -s -m acceptance tests/real/test_join_storm.py

Members without engines, a process each (`tests/harness/light_members.py`): sixty processes that train are too many for two cores. Even
so they take some twenty seconds of processor, most of it for two handshakes of each pair; a machine with less to spare shows itself.
"""

import os
import subprocess
import sys

import msgspec
import pytest

from tests.harness.light_members import Seen
from tests.harness.processes import ENVIRONMENT, ROOT

JOINS, JOINING_S, LASTING_S = 30, 10.0, 20.0
KNOWN_S = 10.0

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.acceptance]


def test_thirty_joiners_in_ten_seconds_are_known_to_all_within_ten_more():
    words = [sys.executable, "-m", "tests.harness.light_members", str(JOINS + 1), str(JOINING_S), str(LASTING_S)]
    done = subprocess.run(words, cwd=ROOT, env=ENVIRONMENT, capture_output=True, check=False, timeout=120)
    assert not done.returncode, done.stderr.decode()
    seen = [msgspec.json.decode(line, type=Seen) for line in done.stdout.splitlines()]
    assert len(seen) == JOINS + 1, done.stderr.decode()
    last = max(it.began for it in seen)
    assert all(it.known and it.known[-1][1] == JOINS + 1 for it in seen), [it.known[-1:] for it in seen]
    late = sorted(it.known[-1][0] - last for it in seen)
    sent, worked = sum(it.bytes_sent for it in seen) / len(seen) / 1e3, sum(it.seconds for it in seen)
    print(  # noqa: T201
        f"{JOINS} joined; after the last all are known to half of them in {late[len(late) // 2]:.2f} s, to all in {late[-1]:.2f} s; "
        f"{sum(it.died for it in seen)} declared dead; {sent:.0f} kB sent each in all, {worked:.1f} s of processor, load {os.getloadavg()}"
    )
    assert late[-1] <= KNOWN_S
