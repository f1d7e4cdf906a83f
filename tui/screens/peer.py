"""Everything that is known about one peer, over the screen it was asked on."""

from __future__ import annotations

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
    """One peer, as it was when it was asked for.

    Args:
        peer: what its node says of it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss", "close", key_display="esc"),
        Binding("y", "copy", "copy its id"),
    ]

    def __init__(self, peer: PeerStatus) -> None:
        super().__init__()
        self.peer = peer

    def compose(self) -> ComposeResult:
        """One text."""
        with VerticalScroll(id="details") as box:
            entitle(box, f"peer {show.short(self.peer.peer)}")
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
        ("why", show.clean(peer.why) or show.MISSING),
        ("score", f"{peer.score:.1f} of faults, {show.count(peer.faults)} in all; merit {peer.contribution:.1f} of 20"),
        ("late", f"let {show.share(peer.staleness)} of recent exchanges pass"),
        ("clipped", f"in {show.share(peer.clipped)} of recent exchanges"),
        ("round", show.count(peer.round)),
        ("exchanges", f"{show.count(peer.committed)} done"),
        ("bytes", f"{show.size(peer.bytes_sent)} sent, {show.size(peer.bytes_received)} received"),
        ("round trip", show.latency(peer.rtt_s)),
        ("heard", f"{show.duration(peer.last_seen_s)} ago" if peer.last_seen_s is not None else show.MISSING),
        ("invited by", show.clean(peer.inviter) or show.MISSING),
        ("addresses", "\n            ".join(show.clean(each) for each in peer.addresses) or show.MISSING),
    )
    return "\n".join(f"{name:<11} {words}" for name, words in rows)
