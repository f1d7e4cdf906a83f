"""`starling completion`: the script a shell reads, and what may come next at a cursor.

click answers the script's questions. Two things are ours: bash breaks words at `:` and `=`, which our words contain (`3:alie`,
`mix=dsgd`), so here it is handed the line instead; and values are looked up where they are, without torch and without waiting for long.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from click import Context, Parameter
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from starling.node.cli.help import Command

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_STARLING_COMPLETE"
PEERS_S = 0.5  # to ask the running node for its peers: a person waits at the TAB key
RECORD = "record.jsonl"
NODE_FILES = ("node.toml", "control.sock", RECORD)

Lookup = Callable[[Context, Parameter, str], list[CompletionItem]]

BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' response type value
    response=$(env COMP_TYPED="${COMP_LINE:0:COMP_POINT}" COMP_BREAKS="$COMP_WORDBREAKS" %(complete_var)s=bash_complete "$1")
    COMPREPLY=()
    for completion in $response; do
        IFS=',' read type value <<< "$completion"
        case "$type" in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            open) compopt -o nospace; COMPREPLY+=("$value") ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class Bash(BashComplete):
    """Bash from 4.4 on."""

    source_template = BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Whole words of the line up to the cursor, and the one under it."""
        typed = os.environ["COMP_TYPED"]
        words = split_arg_string(typed)[1:]
        incomplete = words.pop() if words and not typed[-1:].isspace() else ""
        return words, incomplete

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Without what bash takes for words of their own, as it puts the answer behind those."""
        _, incomplete = self.get_completion_args()
        breaks = [
            at + 1
            for at, letter in enumerate(incomplete)
            if letter in ":=" and letter in os.environ.get("COMP_BREAKS", "")
        ]
        start = breaks[-1] if breaks and item.value.startswith(incomplete[: breaks[-1]]) else 0
        return f"{item.type},{item.value[start:]}"


def register() -> None:
    """Before click is asked: our bash in the place of its own."""
    add_completion_class(Bash)


@click.command(
    cls=Command,
    examples=(
        ('eval "$(starling completion bash)"', "in ~/.bashrc"),
        ("starling completion zsh > ~/.zfunc/_starling", "where ~/.zfunc is in fpath before compinit"),
        ("starling completion fish > ~/.config/fish/completions/starling.fish", ""),
    ),
)
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of your shell.

    It completes commands, options, run directories, presets, attacks, settings, and the peers that the running node knows.
    """
    register()
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(click.get_current_context().find_root().command, {}, "starling", VARIABLE).source(), nl=False)


# --- what may come ----------------------------------------------------------------------------------------------


class RunDirectory(click.Path):
    """A directory that holds a node; completed by those there are, below the one typed too."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def shell_complete(self, ctx: Context, param: Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Run directories, else any directory."""
        found = [str(path) for path in _directories(incomplete) if _holds_node(path)]
        return [*map(CompletionItem, sorted(found))] or [CompletionItem(incomplete, type="dir")]


class Watchable(click.Path):
    """What the terminal UI can show: run directories, folders of a demo, recorded runs."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def shell_complete(self, ctx: Context, param: Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Those that are here, else any file."""
        folders = list(_directories(incomplete))
        found = {str(path) for path in folders if _holds_node(path) or any(path.glob("node-*"))}
        found |= {str(path / RECORD) for path in folders if (path / RECORD).exists()}
        return [*map(CompletionItem, sorted(found))] or [CompletionItem(incomplete, type="file")]


def _directories(incomplete: str) -> Iterator[Path]:
    """Those that begin so, and what is in them."""
    head, _, tail = incomplete.rpartition("/")
    within = Path(head or ("/" if incomplete.startswith("/") else ".")).expanduser()
    try:
        for path in within.iterdir():
            if path.name.startswith(tail) and not (path.name.startswith(".") and not tail) and path.is_dir():
                yield path
                yield from (inner for inner in path.iterdir() if inner.is_dir())
    except OSError:
        return


def _holds_node(path: Path) -> bool:
    return any((path / name).exists() for name in NODE_FILES)


def _matching(values: Iterable[str], incomplete: str, kind: str = "plain") -> list[CompletionItem[str]]:
    return [CompletionItem(value, type=kind) for value in values if value.startswith(incomplete)]


def presets(_ctx: Context, _param: Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Names of presets."""
    from starling.node.config.presets import PRESETS

    return _matching(sorted(PRESETS), incomplete)


def attacks(_ctx: Context, _param: Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """N:ATTACK: the attacks, once a number stands there."""
    from starling.robust.attacks.catalogue import ATTACKS

    count, colon, _ = incomplete.partition(":")
    if not colon:
        return [CompletionItem(f"{count or 1}:", type=_OPEN)]
    return _matching((f"{count}:{name}" for name in sorted(ATTACKS)), incomplete)


def peers(ctx: Context, _param: Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Peers that the running node knows, by any part of their id: what tables show is its end."""
    from starling.node.status.control import ControlError, Watch

    try:
        place = ctx.params.get("run_dir") or ctx.params.get("directory") or "starling-node"
        with Watch(Path(place)) as watch:
            snapshot = watch.poll(PEERS_S)
    except (ControlError, OSError):
        return []
    known = () if snapshot is None else snapshot.peers
    return [CompletionItem(peer.peer, help=peer.state) for peer in known if incomplete.lstrip("…") in peer.peer]


def overlays(_ctx: Context, _param: Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Kinds of overlays."""
    from starling.gossip.overlay.catalogue import OVERLAYS

    return _matching(sorted(OVERLAYS), incomplete)


def tasks(_ctx: Context, _param: Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Built-in tasks."""
    from starling.node.tasks.catalogue import TASKS

    return _matching(sorted(TASKS), incomplete)


def keys(*parts: str) -> Lookup:
    """KEY= of the settings files that are named: manifest, node, scenario."""

    def look_up(_ctx: Context, _param: Parameter, incomplete: str) -> list[CompletionItem[str]]:
        from starling.node.config.schema import Manifest, NodeConfig, Section
        from starling.node.simulate.schema import Scenario

        kinds: dict[str, type[Section]] = {"manifest": Manifest, "node": NodeConfig, "scenario": Scenario}
        known = {key for part in parts for key in _dotted(kinds[part](), "")}
        return _matching((f"{key}=" for key in sorted(known)), incomplete, _OPEN)

    return look_up


def _dotted(section: Any, prefix: str) -> Iterator[str]:
    from starling.node.config.schema import Section

    for name in section.__struct_fields__:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield prefix + name


_OPEN = "open" if os.environ.get(VARIABLE, "").startswith("bash") else "plain"
"""A value to be continued: bash puts no space behind it."""
