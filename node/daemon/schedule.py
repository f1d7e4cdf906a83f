"""Pause a node outside of its owner's hours, and while the machine runs on battery."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import trio

from starling.node.config import schedule_hours
from starling.node.config.schema import NodeConfig

CHECK_S = 15.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Calls `pause` with the reason when a pause begins, with "" when it ends, and never in between.

    So what the owner commands in between holds until the next of these. `unix_time` gives seconds since 1970.
    """

    config: NodeConfig
    pause: Callable[[str], object]
    unix_time: Callable[[], float]
    on_battery: Callable[[], bool]

    async def serve(self) -> None:
        """Check clock and battery until cancelled."""
        rests = False
        while True:
            why = self._why()
            if bool(why) != rests:
                rests = bool(why)
                self.pause(why)
            await trio.sleep(CHECK_S)

    def _why(self) -> str:
        now = time.localtime(self.unix_time())
        if not schedule_hours.inside(schedule_hours.parse(self.config.active), 60 * now.tm_hour + now.tm_min):
            return f"it is not in its active hours, {self.config.active}"
        return "the machine runs on battery" if self.config.pause_on_battery and self.on_battery() else ""
