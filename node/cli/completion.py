"""`starling completion`: print a shell's completion script, and complete a command line.

click answers the script's questions. Two things are ours: bash breaks words at `:` and `=`, which our words contain (`3:alie`,
`mix=dsgd`), so its script passes the whole line; and values are looked up without torch and without waiting for long.
"""

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from click import Context, Parameter
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class, split_arg_string

from starling.node.cli.help import command
from starling.node.status import demo_folder

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_STARLING_COMPLETE"
PEERS_S = 0.5  # seconds for the running node to list its peers: a person waits at the TAB key
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


@add_completion_class
class Bash(BashComplete):
    """Bash from 4.4 on, in the place of click's own."""

    source_template = BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the whole words of the line up to the cursor, and the one under it."""
        typed = os.environ["COMP_TYPED"]
        words = split_arg_string(typed)[1:]
        incomplete = words.pop() if words and not typed[-1:].isspace() else ""
        return words, incomplete

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return the completion less the part that bash takes for separate words, as it appends the answer to those."""
        _, incomplete = self.get_completion_args()
        breaks = os.environ.get("COMP_BREAKS", "")
        start = max((incomplete.rfind(letter) + 1 for letter in ":=" if letter in breaks), default=0)
        return f"{item.type},{item.value[start if item.value.startswith(incomplete[:start]) else 0 :]}"


@command(
    ('eval "$(starling completion bash)"', "in ~/.bashrc"),
    ("starling completion zsh > ~/.zfunc/_starling", "where ~/.zfunc is in fpath before compinit"),
    ("starling completion fish > ~/.config/fish/completions/starling.fish", ""),
)
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of your shell.

    It completes commands, options, run directories, presets, attacks, settings, and the peers that the running node knows.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(click.get_current_context().find_root().command, {}, "starling", VARIABLE).source(), nl=False)


class RunDirectory(click.Path):
    """Type of an argument that names a directory with a node; completes existing ones, also within the typed one, else any directory."""

    otherwise = "dir"

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def shell_complete(self, ctx: Context, param: Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Return the paths that begin with `incomplete`."""
        found = {str(path) for folder in _directories(incomplete) for path in self.candidates(folder)}
        return [*map(CompletionItem, sorted(found))] or [CompletionItem(incomplete, type=self.otherwise)]

    def candidates(self, folder: Path) -> Iterator[Path]:
        """Yield the paths in and of `folder` that hold a node."""
        if any((folder / name).exists() for name in NODE_FILES):
            yield folder


class RunDirectories(RunDirectory):
    """Type of an argument that names one or more nodes: a run directory or the folder of a demo."""

    def candidates(self, folder: Path) -> Iterator[Path]:
        yield from super().candidates(folder)
        if demo_folder.nodes(folder):
            yield folder


class Watchable(RunDirectories):
    """Type of an argument that the terminal UI can show: run directories, folders of a demo, recorded runs; else completed as any file."""

    otherwise = "file"

    def candidates(self, folder: Path) -> Iterator[Path]:
        yield from super().candidates(folder)
        if (folder / RECORD).exists():
            yield folder / RECORD


def _directories(incomplete: str) -> Iterator[Path]:
    """Yield the directories that begin so, and their subdirectories."""
    head, _, tail = incomplete.rpartition("/")
    within = Path(head or ("/" if incomplete.startswith("/") else ".")).expanduser()
    try:
        for path in within.iterdir():
            if path.name.startswith(tail) and not (path.name.startswith(".") and not tail) and path.is_dir():
                yield path
                yield from (inner for inner in path.iterdir() if inner.is_dir())
    except OSError:
        return


def _matching(values: Iterable[str], incomplete: str, kind: str = "plain") -> list[CompletionItem[str]]:
    return [CompletionItem(value, type=kind) for value in sorted(values) if value.startswith(incomplete)]


def names(table: str, but: tuple[str, ...] = ()) -> Lookup:
    """Return the completion of names in a "module:TABLE", imported when needed, without those in `but`."""

    def look_up(_ctx: Context, _param: Parameter, incomplete: str) -> list[CompletionItem[str]]:
        module, _, attribute = table.partition(":")
        known = getattr(importlib.import_module(module), attribute)
        return _matching((name for name in known if name not in but), incomplete)

    return look_up


def attacks(_ctx: Context, _param: Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Complete the attacks of N:ATTACK after a number and its colon."""
    from starling.robust.attacks.catalogue import ATTACKS

    count, colon, _ = incomplete.partition(":")
    if not colon:
        return [CompletionItem(f"{count or 1}:", type=_OPEN)]
    return _matching((f"{count}:{name}" for name in ATTACKS), incomplete)


def peers(ctx: Context, _param: Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Complete peers that the running node knows, by any part of their id: tables show its end."""
    from starling.node.status.control import ControlError, Watch

    try:
        place = ctx.params.get("run_dir") or ctx.params.get("directory") or "starling-node"
        with Watch(Path(place)) as watch:
            snapshot = watch.poll(PEERS_S)
    except (ControlError, OSError):
        return []
    known = () if snapshot is None else snapshot.peers
    return [CompletionItem(peer.peer, help=peer.state) for peer in known if incomplete.lstrip("…") in peer.peer]


def keys(*parts: str) -> Lookup:
    """Return the completion of KEY= of the named settings files: manifest, node, scenario."""

    def look_up(_ctx: Context, _param: Parameter, incomplete: str) -> list[CompletionItem[str]]:
        from starling.node.config.parts import Section
        from starling.node.config.schema import Manifest, NodeConfig
        from starling.node.simulate.schema import Scenario

        kinds: dict[str, type[Section]] = {"manifest": Manifest, "node": NodeConfig, "scenario": Scenario}
        known = {key for part in parts for key in _dotted(kinds[part](), "")}
        return _matching((f"{key}=" for key in known), incomplete, _OPEN)

    return look_up


def _dotted(section: Any, prefix: str) -> Iterator[str]:
    from starling.node.config.parts import PartSection, Section, catalogue_of

    for name in section.__struct_fields__:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield prefix + name
    for part in section.PARTS if isinstance(section, PartSection) else ():
        catalogue = catalogue_of(section.BASE, part)
        yield from (prefix + key.name for name in catalogue.built_in for key in catalogue.keys_of(name) or ())


_OPEN = "open" if os.environ.get(VARIABLE, "").startswith("bash") else "plain"
"""Type of a completion that is continued: bash adds no space after it."""
