"""What the keys do and what the signs and words mean."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

HELP = """\
KEYS
1 2 3 4 5    Node, Swarm, Peers, Events, Edge
?            this page; ? esc q close it
n  p         next and previous node, where there are several
↑ ↓          move and scroll; tab goes to the next list
y            copy the peer id under the cursor, or the node's own
t            dark and light
ctrl+p       all commands by name
q            quit (the node goes on)
enter        on Peers: everything about a peer
s  r         on Peers: sort by the next column, reverse; or click it
/  l  a      on Events: look for words, choose the level, all nodes
space        in a replay: play and pause
← → home end in a replay: back, on, to the beginning, to the end
x            in a replay: 1x, 4x, 16x

SIGNS
–            not known (never 0)
!            a problem, a warning, or a peer in quarantine
● ○ …        training, waiting, starting or joining
✓ ← ✗        finished or done, leaving or left, failed or dead
?  ⊘         suspected, banned
[ ]          the node that is shown
━  ┄         pairs that meet in this round; edges that rest

WORDS
round        some local steps, then an exchange
alone        local steps per second without waiting for anybody
edge         a peer this node exchanges with, again and again
exchange     both ends apply it (committed), or neither
aborted      begun and given up; busy: the peer was in another one;
             timeout: no answer. The round goes on without
distance     how far models differ, root mean square per parameter
standing     probation, active, quarantine, ban; trusted is your word
score        faults, halved every five minutes; merit the opposite
late         share of recent exchanges that the peer let pass
clip         on Peers: share of exchanges that were clipped;
             on Edge: what was left of the difference
ε            what our data have told so far (docs/privacy.md)
known by     attached nodes that know this member\
"""


class HelpScreen(ModalScreen[None]):
    """Over any screen; closed by the key that opened it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,escape,q", "dismiss", "close"),
    ]

    def compose(self) -> ComposeResult:
        """One text."""
        with VerticalScroll(id="help"):
            yield Static(HELP, markup=False)
