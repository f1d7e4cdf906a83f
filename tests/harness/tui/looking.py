"""A user at the screen: what is shown after each key."""

import asyncio
import time
from pathlib import Path

import pytest

from starling.node.status.check import Check
from starling.node.status.snapshot import PeerStatus
from starling.tui.app import StarlingApp
from starling.tui.source import Reading
from tests.harness.snapshots import NOW, full, snapshot

SMALL = (80, 24)
LARGE = (160, 48)
BOTH = pytest.mark.parametrize(
    "size", [pytest.param(SMALL, id="80x24"), pytest.param(LARGE, id="160x48", marks=pytest.mark.acceptance)]
)  # test_snapshots.py draws each page in both sizes; keys on the large one are tested in acceptance only


class CannedSource:
    """Fixed readings: the first poll gets the first tuple, and the last one is repeated.

    Args:
        polls: the result of each poll.
        name: of the source.
    """

    def __init__(self, polls, name="canned"):
        self.name = name
        self._polls = list(polls)
        self.closed = False

    def poll(self):
        return self._polls.pop(0) if len(self._polls) > 1 else self._polls[0]

    def close(self):
        self.closed = True


def swarm(count=8, **changes):
    names = [f"node-{number}" for number in range(count)]
    return tuple(Reading(name, full(at, count, **changes), run_dir=Path(name)) for at, name in enumerate(names))


CHECKS = (
    Check("port", "fail", "/ip4/0.0.0.0/tcp/4001: Address already in use", "choose another: `--listen /ip4/0.0.0.0/tcp/PORT`"),
    Check("clock", "unknown", "2026-11-25 10:00 UTC; no other machine was asked"),
    Check("memory", "ok", "12 GB available"),
)


async def examined(run_dir):
    """Return verdicts without the seconds that real checks take."""
    return CHECKS


def strips(app):
    """Return the lines of the screen with their styles, which textual does not offer."""
    return app.screen._compositor.render_strips()


def screen_text(app):
    return "\n".join(strip.text for strip in strips(app))


def look(
    polls, size=SMALL, keys=(), *, then=None, playback=None, clock=lambda: NOW, folder=Path(), examine=examined, welcome=lambda: False
):
    """Show readings, press keys, and return the app and its screen after each key (first: before any).

    Args:
        polls: the result of each poll, or a list of sources.
        size: columns and lines.
        keys: names of keys; a string of several characters in braces is typed.
        folder: for written files.
        then: called afterwards with the pilot, the app and the screens.
        examine: the doctor.
        welcome: whether it is the first run.
    """
    sources = polls if hasattr(polls[0], "poll") else [CannedSource(polls)]
    app = StarlingApp(sources, playback, clock=clock, poll_s=0.2, folder=folder, examine=examine, welcome=welcome)
    app.animation_level = "none"
    seen = []

    async def person():
        async with app.run_test(size=size, notifications=True) as pilot:
            await settle(pilot, app)
            seen.append(screen_text(app))
            for key in keys:
                await pilot.press(*(key[1:-1] if key.startswith("{") else [key]))
                await settle(pilot, app)
                seen.append(screen_text(app))
            if then is not None:
                await then(pilot, app, seen)

    asyncio.run(person())
    assert all(getattr(source, "closed", True) for source in sources)
    return app, seen


async def settle(pilot, app):
    before, same = None, 0
    for _ in range(50):
        await pilot.pause()
        if not app.is_running:
            return
        now = screen_text(app)
        ready = app.screen.has_class("-tiny") or app.screen.has_class("-low") or now.splitlines()[-1].strip()
        same = same + 1 if now == before and ready else 0
        if same == 2:
            return
        before = now


def one(**changes):
    return [(Reading("node-0", snapshot(**changes)),)]


def until(words):
    async def wait(pilot, app, seen):
        deadline = time.monotonic() + 20
        while words not in seen[-1]:
            assert time.monotonic() < deadline, f"{words!r} never came:\n{seen[-1]}"
            await pilot.pause(0.1)
            seen.append(screen_text(app))

    return wait


def rows(screen, *signs):
    return [line for line in screen.splitlines() if all(sign in line for sign in signs)]


def reports(peer, *rows, **changes):
    peers = tuple(PeerStatus(peer=of, state=state, **more) for of, state, more in rows)
    return Reading(peer, snapshot(peer=peer, peers=peers, **changes))


def many(number, edges=2):
    peers = [f"peer-{each:03}" for each in range(number)]
    return [
        reports(peer, *((peers[(at + step) % number], "alive", {"edge": True}) for step in range(1, edges + 1)))
        for at, peer in enumerate(peers)
    ]
