"""All that is known about one peer, over the screen that opened it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from starling.node.status import format as show
from starling.node.status.snapshot import PeerStatus
from starling.tui.clipboard import copy
from starling.tui.drawing.palette import PEER_SIGNS
from starling.tui.widgets.titles import entitle


class PeerScreen(ModalScreen[None]):
    """One peer, as it was when this was opened.

    Args:
        peer: its status.
        label: peer id -> what it is called on the screen.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss", "close", key_display="esc"),
        Binding("y", "copy", "copy its id"),
    ]

    def __init__(self, peer: PeerStatus, label: Callable[[str], str] = show.short) -> None:
        super().__init__()
        self.peer = peer
        self._label = label

    def compose(self) -> ComposeResult:
        """One text."""
        with VerticalScroll(id="details") as box:
            entitle(box, f"peer {self._label(self.peer.peer)}")
            yield Static(_text(self.peer), markup=False)
        yield Footer(show_command_palette=False)

    def action_copy(self) -> None:
        """Put the whole id on the clipboard."""
        copy(self.app, self.peer.peer)


def _text(peer: PeerStatus) -> str:
    sign, _ = PEER_SIGNS[peer.state]
    shut_out = f", for {show.duration(peer.shut_out_s)} more" if peer.shut_out_s is not None else ""
    rows = (
        ("id", show.clean(peer.peer)),
        ("state", f"{sign} {peer.state}, {'with' if peer.edge else 'without'} an edge"),
        ("standing", f"{peer.standing}{', trusted by you' if peer.trusted else ''}{shut_out}"),
        ("reason", show.clean(peer.why)),
        ("score", f"{peer.score:.1f}, faults {show.count(peer.faults)}"),
        ("contribution", f"{peer.contribution:.1f} of 20"),
        ("staleness", f"{show.share(peer.staleness)} of recent exchanges not answered"),
        ("clipped", f"{show.share(peer.clipped)} of recent exchanges"),
        ("round", show.count(peer.round)),
        ("exchanges", f"{show.count(peer.committed)} committed"),
        ("bytes", f"{show.size(peer.bytes_sent)} sent, {show.size(peer.bytes_received)} received"),
        ("round trip", show.latency(peer.rtt_s)),
        ("last seen", f"{show.duration(peer.last_seen_s)} ago" if peer.last_seen_s is not None else show.MISSING),
        ("invited by", show.clean(peer.inviter)),
        ("addresses", "\n             ".join(show.clean(each) for each in peer.addresses) or show.MISSING),
    )
    return "\n".join(f"{name:<12} {words}" for name, words in rows if words)
