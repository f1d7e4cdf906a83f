"""Drawings that cost much are made again when they would be another one, and not more often than need be."""

from __future__ import annotations

import math

from starling.tui.view import View

REST_S = 2.0


class Rest:
    """Remembers what was drawn, and when."""

    def __init__(self) -> None:
        self._drawn: object = None
        self._drawn_at = -math.inf

    def over(self, wanted: object, view: View) -> bool:
        """Draw now? At once if a person did something.

        Args:
            wanted: all that the drawing depends on; compared by ==.
            view: of this moment.
        """
        if wanted == self._drawn or (0 <= view.now - self._drawn_at < REST_S and not view.asked):
            return False
        self._drawn, self._drawn_at = wanted, view.now
        return True
