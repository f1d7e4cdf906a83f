"""Costly drawings are made again only when their input has changed, and at most once every INTERVAL_S."""

from __future__ import annotations

import math

from starling.tui.view import View

INTERVAL_S = 2.0


class Throttle:
    """Remembers the input of the last drawing, and when it was made."""

    def __init__(self) -> None:
        self._drawn: object = None
        self._drawn_at = -math.inf

    def due(self, wanted: object, view: View) -> bool:
        """Whether to draw now; if so, this is remembered as drawn. A person's action is never held up.

        Args:
            wanted: all that the drawing depends on; compared by ==.
            view: of this moment.
        """
        if wanted == self._drawn or (0 <= view.now - self._drawn_at < INTERVAL_S and not view.asked):
            return False
        self._drawn, self._drawn_at = wanted, view.now
        return True
