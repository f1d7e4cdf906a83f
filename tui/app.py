"""The Textual application: polls its sources and draws the open page. It holds no state of any node and may be killed at any time."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.widgets import Input

from starling.node.status import format as show
from starling.node.status.snapshot import encode
from starling.tui.commands import StarlingCommands, curves_csv, save
from starling.tui.doctor import examine
from starling.tui.replay import Playback
from starling.tui.screens.doctor import DoctorScreen, Examine
from starling.tui.screens.edge import EdgeScreen
from starling.tui.screens.events import EventsScreen
from starling.tui.screens.help import HelpScreen
from starling.tui.screens.node import NodeScreen
from starling.tui.screens.over import Over, agreed
from starling.tui.screens.page import Page
from starling.tui.screens.peers import PeerScreen, PeersScreen
from starling.tui.screens.picker import NodePicker
from starling.tui.screens.swarm import SwarmScreen
from starling.tui.screens.tour import TourScreen
from starling.tui.source import Reading, StatusSource
from starling.tui.text.tour import STOPS
from starling.tui.view import View, labels_of
from starling.tui.widgets.frame import Clicked
from starling.tui.widgets.lines import Panel

POLL_S = 1.0  # a node publishes once a second, and drawing is most of what the terminal UI costs
REPLAY_S = 0.25
DARK, LIGHT = "textual-dark", "textual-light"
REPLAY_KEYS = (
    ("space", "'toggle'"),
    ("x", "'faster'"),
    ("left", "'step', -1"),
    ("right", "'step', 1"),
    ("home", "'seek', 0"),
    ("end", "'seek', 1"),
)


class StarlingApp(App[None]):
    """Shows one or several nodes, running or recorded.

    `playback` is the time axis of those sources that are records, None if none is; `clock` gives unix time in seconds, for the age of what
    is shown; a `poll_s` of None is POLL_S, or REPLAY_S where records are replayed. Screenshots and exports go to `folder`; `examine` asks
    for the verdicts of the doctor; `welcome` says whether this is the first run, which opens the tour.
    """

    TITLE = "starling"
    CSS_PATH = "style.tcss"
    COMMANDS = {StarlingCommands}  # noqa: RUF012 - Textual declares it without ClassVar
    MODES = {  # noqa: RUF012
        "node": NodeScreen,
        "swarm": SwarmScreen,
        "peers": PeersScreen,
        "events": EventsScreen,
        "edge": EdgeScreen,
    }
    DEFAULT_MODE = "node"
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow"), (120, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (16, "-high"), (32, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),  # Textual would say which other key quits
        Binding("n", "select(1)", "node"),
        Binding("p", "select(-1)", "previous node", show=False),
        Binding("t", "toggle_theme", "theme"),
        Binding("y", "copy_peer", "copy"),
        Binding("question_mark", "open('help')", "help", key_display="?"),
        Binding("o", "pick", "all nodes", show=False),
        Binding("m", "agreed", "method", show=False),
        Binding("d", "doctor", "doctor", show=False),
        *(Binding(key, f"open('{name}')", show=False) for key, name in zip("12345", MODES, strict=True)),
        *(Binding(key, f"replay({act})", priority=True, show=False) for key, act in REPLAY_KEYS),
    ]

    def __init__(
        self,
        sources: Sequence[StatusSource],
        playback: Playback | None = None,
        clock: Callable[[], float] = time.time,
        poll_s: float | None = None,
        folder: Path = Path(),
        examine: Examine = examine,
        welcome: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self._poll_s = poll_s if poll_s is not None else REPLAY_S if playback is not None else POLL_S
        self._sources = tuple(sources)
        self._playback = playback
        self._clock = clock
        self._folder = folder
        self._examine = examine
        self._welcome = welcome
        self._readings: tuple[Reading, ...] = ()
        self._selected = 0
        self._due = False

    def on_mount(self) -> None:
        self.poll()
        self.set_interval(self._poll_s, self.poll)
        if self._playback is None and self._welcome():
            self.action_tour()

    def on_unmount(self) -> None:
        for source in self._sources:
            source.close()

    @property
    def replays(self) -> bool:
        """Return whether records are replayed."""
        return self._playback is not None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of a replay work on pages alone, and not while text is typed."""
        if action == "replay":
            return self.replays and isinstance(self.screen, Page) and not isinstance(self.focused, Input)
        if action in {"select", "pick"}:
            return len(self._readings) > 1
        return super().check_action(action, parameters)

    def action_select(self, step: int) -> None:
        """Show the next (1) or the previous (-1) node, around the end."""
        if self._readings:
            self._selected = (self._selected + step) % len(self._readings)
            self.draw()

    def action_open(self, name: str) -> None:
        """Open a screen by its name."""
        if name == "help":
            if not isinstance(self.screen, HelpScreen):
                self.push_screen(HelpScreen())
        elif name != self.current_mode:
            self.switch_mode(name)

    def action_pick(self) -> None:
        """Open the list of nodes to choose one."""
        self.push_screen(NodePicker(self._view(asked=True)), self._picked)

    def _picked(self, place: int | None) -> None:
        if place is not None and place < len(self._readings):
            self._selected = place
        self.draw()

    def action_agreed(self) -> None:
        """Describe the swarm's manifest."""
        self.push_screen(Over("what this swarm agreed on", agreed(self._view(asked=True))))

    def action_doctor(self) -> None:
        """Have the machine and the network of the chosen node checked."""
        view = self._view(asked=True)
        run_dir = view.reading.run_dir if view.reading is not None else None
        if run_dir is None:
            self.notify("a record has no machine to check", severity="warning", markup=False)
        else:
            self.push_screen(DoctorScreen(run_dir, view, self._examine))

    def action_tour(self, number: int = 0) -> None:
        """Open a stop of the tour, on its page."""
        self.call_later(self._tour, number)

    async def _tour(self, number: int) -> None:
        if STOPS[number].page != self.current_mode:
            await self.switch_mode(STOPS[number].page)  # otherwise the tour's step could open on the previous page and be hidden with it
        await self.push_screen(TourScreen(number, self.action_tour))

    def action_toggle_theme(self) -> None:
        self.theme = LIGHT if self.current_theme.dark else DARK
        self.draw()

    def action_copy_peer(self) -> None:
        """Put the peer id under the cursor on the clipboard, and show it whole for terminals that have none."""
        page, peer = self._page, None
        if isinstance(self.screen, PeerScreen):
            peer = self.screen.peer.peer
        elif page is not None:
            peer = page.peer_to_copy(self._view(asked=True))
        if peer:
            self.copy_to_clipboard(peer)
            self.notify(show.clean(peer), title="copied", markup=False)

    def action_save(self, kind: str) -> None:
        """Write a file into the current directory: this screen (svg), the chosen node's status (json) or its curves (csv)."""
        if kind == "svg":  # once the palette is closed, and the screen below it drawn
            self.set_timer(0.1, lambda: self._save(self.current_mode, "svg", self.export_screenshot()))
            return
        reading = self._view(asked=True).reading
        if reading is None or reading.snapshot is None:
            self.notify("no status is known yet", severity="warning", markup=False)
            return
        text = encode(reading.snapshot).decode() if kind == "json" else curves_csv(reading.snapshot)
        self._save(reading.name, kind, text)

    def _save(self, name: str, kind: str, text: str) -> None:
        try:
            path = save(self._folder, name, f".{kind}", text, self._clock())
        except OSError as error:
            self.notify(f"{self._folder} cannot be written: {error.strerror}", severity="error", markup=False)
        else:
            self.notify(show.clean(str(path)), title="saved", markup=False)

    def action_replay(self, command: str, *arguments: float) -> None:
        """Toggle, go faster, step or seek (0: the beginning, 1: the end) in the replay."""
        if self._playback is not None:
            getattr(self._playback, command)(*arguments)
            self.poll(asked=bool(arguments))

    def on_clicked(self, event: Clicked) -> None:
        getattr(self, f"action_{event.action}")(*event.arguments)

    def on_page_shown(self, _event: Page.Shown) -> None:
        self.draw()

    def on_panel_resized(self, _event: Panel.Resized) -> None:
        """Draw once all of them have their size."""
        if not self._due:
            self._due = True
            self.call_after_refresh(self._draw_due)

    def _draw_due(self) -> None:
        self._due = False
        self.draw()

    def draw(self, *, asked: bool = True) -> None:
        """Draw the open page; `asked`: after a user's action, without delay."""
        page = self._page
        if page is not None and page.is_mounted:
            page.draw(self._view(asked=asked))

    def poll(self, *, asked: bool = False) -> None:
        """Read all sources, and draw what has changed."""
        if not self.is_running:  # the timer may fire once more while the app shuts down
            return
        before = len(self._readings)
        self._readings = tuple(reading for source in self._sources for reading in source.poll())
        self._selected = min(self._selected, max(0, len(self._readings) - 1))
        if len(self._readings) != before:
            self.refresh_bindings()
        self.draw(asked=asked)

    @property
    def _page(self) -> Page | None:
        """The open page, also while a modal screen covers it."""
        pages = [screen for screen in self.screen_stack if isinstance(screen, Page)] if self.is_running else []
        return pages[-1] if pages else None

    def _view(self, *, asked: bool) -> View:
        return View(
            self._readings,
            self._selected,
            waiting_for=", ".join(source.name for source in self._sources),
            now=self._clock(),
            dark=self.current_theme.dark,
            position=self._playback.position() if self._playback is not None else None,
            asked=asked,
            labels=labels_of(self._readings),
        )
