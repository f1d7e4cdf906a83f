"""Events as text, and which of them pass a filter."""

import re
from collections.abc import Iterable
from types import MappingProxyType

from starling.node.status import format as show
from starling.node.status.snapshot import Event
from starling.tui.view import View

LEVELS = MappingProxyType({"all": ("info", "warning", "error"), "warnings": ("warning", "error"), "errors": ("error",)})
PEER_ID = re.compile(r"(/p2p/)?(12D3Koo\w{40,})")


def events_of(view: View, *, all_nodes: bool) -> list[tuple[str, Event]]:
    """Return (node, event) of the chosen node, or of all nodes, in the order of time."""
    readings = view.readings if all_nodes else filter(None, (view.reading,))
    events = [(r.name, event) for r in readings if r.snapshot is not None for event in r.snapshot.events]
    return sorted(events, key=lambda each: each[1].time_s)


def passed(events: Iterable[tuple[str, Event]], level: str, filter_text: str) -> list[tuple[str, Event]]:
    """Return the (node, event) pairs that have a level of LEVELS and match the filter."""
    return [(node, each) for node, each in events if each.level in LEVELS[level] and _matches(each, node, filter_text)]


def _matches(event: Event, node: str, words: str) -> bool:
    """Return whether every word is in the line or the event's name, ignoring case."""
    line = f"{node} {event.name} {show.clean(event.text)}".casefold()
    return all(word in line for word in words.casefold().split())


def words(event: Event, view: View) -> str:
    """Return the line of one event, peers by their labels."""
    return PEER_ID.sub(lambda match: _named(match, view), show.clean(event.text or event.name))


def _named(match: re.Match[str], view: View) -> str:
    """Return a label for the peer; within an address the end of its id, as a label there would look like part of the address."""
    return f"{match[1]}{show.short(match[2])}" if match[1] else view.label(match[2])
