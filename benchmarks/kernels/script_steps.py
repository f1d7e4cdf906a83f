"""Local steps of a plain loop that is a member by `starling.Swarm`, in a round that never ends.

    python -m starling.kernels.script_steps KEYS        as `starling.kernels.slices` says

The engine is called by hand, in a thread that has ended before the first step that is measured: some rounds of exchanges with another
engine, so that there is a correction to apply. At a round's end a script has copies to make besides, which `starling bench overlap` shows.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any

from starling.kernels import slices
from starling.kernels.engine_steps import EVER, ROUNDS, STEPS, Called
from starling.kernels.memory import exchange
from starling.kernels.plain import Both, Loop, agreed
from starling.node import platform
from starling.node.config.schema import Manifest
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from starling.node.script.member import Member
from starling.node.script.optimizers import unwrapped
from starling.node.script.parts import Parts


class Lasting:
    """A node that does not end. Satisfies `starling.node.script.member.Life`."""

    def check(self) -> None:
        """Do nothing."""

    def is_over(self) -> bool:
        """Return whether it has ended: no."""
        return False

    def doing(self) -> str:
        """Return "": nothing else runs."""
        return ""


class Scripted(Called):
    """An engine whose local steps are done by a script."""

    def __init__(self, manifest: Manifest, folder: Path) -> None:
        self.engine = Worker(work=time.thread_time)
        self.done(calls.Open(manifest, "", 0, "cpu", 1, str(folder / "checkpoint"), "hub", script=True))

    def done(self, call: calls.Request) -> calls.Reply:
        """Return the reply to a call, which a script may have to give."""
        engine = self.engine
        reply = engine.handle(call)
        while reply is None:
            platform.readable(*engine.sources, timeout_s=None)
            reply = engine.step()
        return reply


def _rounds(hub: Scripted, manifest: Manifest) -> None:
    peer = Called(manifest, 1, "peer")
    for number in range(ROUNDS):
        for each in (peer, hub):
            each.done(calls.Train(number, STEPS))
        exchange(hub, peer, "peer", number, leads=number % 2 == 0)
        for each in (hub, peer):
            each.done(calls.Mix(number))
    hub.engine.handle(calls.Train(ROUNDS, EVER))


def loop(keys: Mapping[str, Any]) -> tuple[slices.Step, int]:
    """Return what does a local step, and d."""
    manifest = agreed(keys)
    with tempfile.TemporaryDirectory(prefix="starling-script-") as place:  # until both have met: nothing is saved
        folder = Path(place)
        hub, plain = Scripted(manifest, folder), Loop(manifest)
        calling = Thread(target=_rounds, args=(hub, manifest), daemon=True)
        calling.start()
        made = plain.optimizer
        optimizers = [made.muon, made.adamw] if isinstance(made, Both) else [made]
        member = Member(folder, Parts(plain.model, unwrapped(optimizers)), Lasting())
    while member.grant.round < ROUNDS:
        member.step(plain.step())
    calling.join()
    return lambda: member.step(plain.step()), sum(each.numel() for each in plain.model.parameters())


if __name__ == "__main__":
    sys.exit(slices.main(sys.argv[1:], loop))
