"""Newcomers to a swarm with a dead creator, on hosts of their own: through the local network, or another member's invite."""

import time

import pytest

from tests.harness.namespaces import lan, unplug
from tests.harness.processes import ENDLESS, starling, status_of, terminals, training, until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.usefixtures("warm_engines")]

MEMBER_S = 10.0


def member(folder):
    now = status_of(folder)
    return now is not None and now.members >= 2


@pytest.mark.acceptance
def test_with_the_creator_dead_a_newcomer_is_a_member_within_ten_seconds(tmp_path):
    """By an old invite that names nobody alive, on the same local network; and by one that another member makes."""
    with lan(4) as (first, second, third, fourth), terminals() as terminal:
        creator = terminal(f"ip netns exec {first} starling create {ENDLESS} --shard 0 --dir a", tmp_path, "a")
        old = creator.until(creator.first_line)
        other = terminal(f"ip netns exec {second} starling join {old} --shard 1 --dir b", tmp_path, "b")
        other.until(lambda: training(tmp_path / "b", beyond=2))
        unplug(first)  # as with a machine that is switched off, which refuses no connection
        until("it is not missed", lambda: (now := status_of(tmp_path / "b")) is not None and now.members == 1)

        invite = starling("invite", "--dir", "b", cwd=tmp_path).strip()
        took = {}
        for name, host, given in (("old", third, old), ("new", fourth, f"{invite} --no-lan")):
            began = time.monotonic()
            newcomer = terminal(f"ip netns exec {host} starling join {given} --dir {name}", tmp_path, name)
            newcomer.until(lambda name=name: member(tmp_path / name))
            took[name] = time.monotonic() - began
        assert max(took.values()) <= MEMBER_S, took
