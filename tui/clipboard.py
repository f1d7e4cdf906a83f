"""Peer ids on the terminal's clipboard."""

from __future__ import annotations

from typing import Any

from textual.app import App

from starling.node.status import format as show


def copy(app: App[Any], peer: str) -> None:
    """Put a peer id on the clipboard, and show it whole for terminals that have none."""
    app.copy_to_clipboard(peer)
    app.notify(show.clean(peer), title="copied", markup=False)
