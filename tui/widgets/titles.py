"""Titles on borders: plain text, and drawn only when they change."""

from __future__ import annotations

from rich.text import Text
from textual.content import Content
from textual.widget import Widget


def entitle(widget: Widget, title: str, subtitle: str = "") -> None:
    """Write these on a widget's border, as plain text and only when changed: Textual redraws a widget for every title and parses markup.

    Args:
        widget: with a border.
        title: at the top.
        subtitle: at the bottom; "" keeps the present one.
    """
    if widget.border_title != Content(title).markup:
        widget.border_title = Text(title)
    if subtitle and widget.border_subtitle != Content(subtitle).markup:
        widget.border_subtitle = Text(subtitle)
