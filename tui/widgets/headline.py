"""The node in three lines: its state and figures, its health, what it trains and how."""

from collections.abc import Callable

from rich.text import Text

from starling.node.status import format as show
from starling.node.status.snapshot import StatusSnapshot
from starling.tui.drawing.palette import NODE_SIGNS
from starling.tui.view import View
from starling.tui.widgets.lines import Panel

RECENT_S = 60.0
OTHER_STATES = {
    "starting": "starting",
    "joining": "looking for members of its swarm",
    "waiting": "waiting for its quorum; nothing is wrong",
    "leaving": "saying goodbye and saving",
    "failed": "stopped by an error; its log.jsonl says which",
}

Line = tuple[str, str, str]  # a sign, the role of its color, and words


class Headline(Panel):
    """Draws the chosen node."""

    def update_from(self, view: View) -> None:
        """Draw this node; dashes where nothing is known."""
        self.show(_unknown(view) if view.snapshot is None else _lines(view.snapshot, view))


def _unknown(view: View) -> Text:
    name = show.clean(view.reading.name) if view.reading is not None else show.MISSING
    return Text(
        f"{name}  state {show.MISSING}  round {show.MISSING}  value {show.MISSING}  loss {show.MISSING}", no_wrap=True
    )


def _lines(snapshot: StatusSnapshot, view: View) -> Text:
    sign, role = NODE_SIGNS[snapshot.state]
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{sign} {snapshot.state}", style=f"bold {view.style(role)}")
    text.append(f"  round {show.rounds(snapshot.round, snapshot.rounds)}", style="bold")
    text.append(f"  {value(snapshot)}  loss {show.figure(snapshot.loss)}", style="bold")
    text.append(f"  {_members(snapshot.members)}\n")
    sign, role, words = health(snapshot, view.label)
    text.append(f"{sign} {words}\n", style=view.style(role))
    labelled = (
        ("swarm", snapshot.name), ("task", snapshot.task), ("mix", snapshot.algorithm), ("overlay", snapshot.overlay),
    )  # fmt: skip
    for number, (name, words) in enumerate(labelled):
        text.append(f"{'  ' if number else ''}{name} ", style=view.style("dim"))
        text.append(show.clean(words) or show.MISSING)
    text.append(f"  {show.count(snapshot.parameters)}")
    text.append(" parameters", style=view.style("dim"))
    return text


def value(snapshot: StatusSnapshot) -> str:
    """The last evaluation, with its name and round."""
    name = show.metric(snapshot.metric) or "value"
    at = f" (round {show.count(snapshot.value_round)})" if snapshot.value_round is not None else ""
    return f"{name} {show.figure(snapshot.value)}{at}"


def _members(members: int) -> str:
    return "1 member" if members == 1 else f"{members:,} members"


def health(snapshot: StatusSnapshot, label: Callable[[str], str] = show.short) -> Line:
    """The health of a node; `label` gives peer ids their labels on the screen."""
    if snapshot.state == "failed":
        return ("✗", "bad", OTHER_STATES["failed"])
    if snapshot.state in OTHER_STATES:
        words = _model(snapshot, label) or show.clean(snapshot.activity) or OTHER_STATES[snapshot.state]
        return ("…", "warn", words)
    if snapshot.state == "finished":
        return ("✓", "good", f"finished after {_exchanges(snapshot.exchanges.committed)}")
    return _training(snapshot, label)


def _training(snapshot: StatusSnapshot, label: Callable[[str], str]) -> Line:
    recent = [each for each in snapshot.transactions if snapshot.time_s - each.time_s <= RECENT_S]
    done = [each for each in recent if each.outcome == "committed"]
    if done:
        span_s = max(1.0, snapshot.time_s - recent[0].time_s)
        peers = len({each.peer for each in done})
        with_whom = "a peer" if peers == 1 else f"{peers} peers"
        return ("✓", "good", f"helping: {_exchanges(len(done))} with {with_whom} in the last {show.duration(span_s)}")
    if words := _model(snapshot, label) or _exchange(snapshot, label):
        return ("⇄", "warn", words)
    if recent:
        return ("○", "warn", f"{_exchanges(len(recent))} in the last minute and none committed; training alone")
    if snapshot.transactions:
        silent_s = snapshot.time_s - snapshot.transactions[-1].time_s
        return ("○", "warn", f"no exchange for {show.duration(silent_s)}; training alone")
    if snapshot.exchanges.committed:
        return ("✓", "good", f"helping: {_exchanges(snapshot.exchanges.committed)} so far")
    return ("○", "warn", "no exchange yet; training alone")


def _model(snapshot: StatusSnapshot, label: Callable[[str], str]) -> str:
    models = (each for each in snapshot.transfers if each.kind == "model")
    if (most := max(models, key=lambda each: each.done_bytes, default=None)) is None:
        return ""
    return f"fetching the swarm's model from {label(most.peer)}: {show.progress(most)}"


def _exchange(snapshot: StatusSnapshot, label: Callable[[str], str]) -> str:
    """The exchange that takes longest: models of many megabytes need minutes on a slow line."""
    exchanges = (each for each in snapshot.transfers if each.kind == "exchange")
    if (longest := max(exchanges, key=lambda each: each.seconds, default=None)) is None:
        return ""
    return f"exchange with {label(longest.peer)} for {show.duration(longest.seconds)}: {show.progress(longest)}"


def _exchanges(number: int) -> str:
    return "1 exchange" if number == 1 else f"{number:,} exchanges"
