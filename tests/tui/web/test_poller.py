"""Nodes are polled while a page is open, at most once a second, and released afterwards; one doctor at a time."""

import asyncio
from pathlib import Path

import pytest

from starling.tui.web import poller
from starling.tui.web.pages import PageRequest
from starling.tui.web.poller import IDLE_S, KEPT_S, Poller
from tests.harness.snapshots import NOW
from tests.harness.tui.looking import CHECKS, CannedSource, examined, swarm


class Counting(CannedSource):
    """Counts polls."""

    polled = 0

    def poll(self):
        self.polled += 1
        self.closed = False
        return super().poll()


@pytest.fixture(autouse=True)
def _first(monkeypatch):
    monkeypatch.setattr(poller, "FIRST_S", 0.0)


def watched(examine=examined):
    source, now = Counting([swarm(2)]), [100.0]
    return source, now, Poller([source], examine, clock=lambda: NOW, monotonic=lambda: now[0])


def test_pages_share_a_poll_and_an_idle_page_costs_nothing():
    source, now, nodes = watched()

    async def ask():
        await nodes.document(PageRequest())
        first = source.polled
        for _ in range(5):
            await nodes.document(PageRequest(page="peers"))
        assert source.polled == first
        now[0] += 1.0
        await nodes.document(PageRequest())
        assert source.polled == first + 1
        nodes.let_go()
        assert not source.closed
        now[0] += IDLE_S
        nodes.let_go()
        assert source.closed
        assert (await nodes.document(PageRequest(node="node-1"))).nodes[1].chosen

    asyncio.run(ask())


def test_the_doctor_is_asked_once_at_a_time_and_again_after_a_while():
    asked, answer = [], asyncio.Event()

    async def doctor(run_dir):
        asked.append(run_dir)
        await answer.wait()
        if len(asked) == 3:
            raise ValueError("no verdicts")
        return CHECKS

    async def ask():
        _, now, nodes = watched(doctor)

        async def page(node):
            shown = await nodes.document(PageRequest(page="doctor", node=node))
            await asyncio.sleep(0)
            return shown.blocks[0]

        for node in ("node-0", "node-0", "node-1"):
            assert "checking" in (await page(node)).text
        assert asked == [Path("node-0")]
        answer.set()
        await asyncio.sleep(0)
        assert len((await page("node-0")).rows) == len(CHECKS)
        await page("node-1")
        assert asked == [Path("node-0"), Path("node-1")]
        now[0] += KEPT_S
        await page("node-0")
        await asyncio.sleep(0)
        assert (await page("node-0")).rows[0][1] == "no verdicts"

    asyncio.run(ask())
