"""`starling`: the table of commands, and what an error looks like from outside.

Only the module of the command that is called gets imported, so that `--help` answers at once.

    exit 0    fine (or what the command returned)
    exit 1    failed: the node is not running, the network or the engine gave up
    exit 2    wrong input: ConfigError, or options that click refuses
    exit 130  Ctrl-C
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli.help import Group, write_examples
from starling.node.status.control import ControlError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# group -> name -> where it is, and its line in --help
GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "Run a node": {
            "demo": ("starling.node.cli.demo:demo", "Run a local swarm of real nodes and watch it learn."),
            "join": ("starling.node.cli.run:join", "Join a swarm by its invite."),
            "run": ("starling.node.cli.run:run", "Run the node of a run directory again."),
            "leave": ("starling.node.cli.run:leave", "Leave the swarm in order and stop the running node."),
            "export": ("starling.node.cli.model:export", "Write the model to a safetensors file."),
        },
        "Look": {
            "status": ("starling.node.cli.look:status", "Show a node's state, problems first."),
            "peers": ("starling.node.cli.look:peers", "List the members a running node knows."),
            "tui": ("starling.node.cli.look:terminal", "Watch nodes, a demo or a recorded run in the terminal."),
            "logs": ("starling.node.cli.logs:logs", "Print a node's log; -f goes on as it grows."),
            "eval": ("starling.node.cli.model:evaluate", "Evaluate a node's model on held-out data."),
        },
        "Found and invite": {
            "found": ("starling.node.cli.run:found", "Found a swarm: sign a manifest and print the invite."),
            "invite": ("starling.node.cli.members:invite", "Print an invite to the running node's swarm."),
            "revoke": ("starling.node.cli.members:revoke", "Remove a member with all whom it invited."),
            "examples": ("starling.node.cli.examples:examples", "List, print or copy example files."),
            "manifest": ("starling.node.cli.config:manifest", "Show or check a swarm's manifest."),
            "task": ("starling.node.cli.task:task", "Check a task of your own before nodes run it."),
            "config": ("starling.node.cli.config:config", "Show every setting with its meaning."),
        },
        "Trust": {
            "ban": ("starling.node.cli.members:ban", "Refuse a peer."),
            "unban": ("starling.node.cli.members:unban", "Undo a ban, or trust."),
            "trust": ("starling.node.cli.members:trust", "Never refuse a peer."),
        },
        "Research": {
            "simulate": (
                "starling.node.cli.research.simulate:simulate",
                "Simulate swarms of thousands of nodes, and sweeps of them.",
            ),
            "overlay": ("starling.node.cli.research.overlay:overlay", "Draw, measure and compare overlays."),
            "bench": ("starling.node.cli.research.bench:bench", "Measure how fast this machine encodes and combines."),
        },
        "Your shell": {
            "completion": (
                "starling.node.cli.completion:completion",
                "Print the completion script of bash, zsh or fish.",
            ),
        },
    }
)
COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {name: entry for group in GROUPS.values() for name, entry in group.items()}
)
EXAMPLES = (
    ("starling demo", "eight nodes on this machine, watched while they learn"),
    ("starling found --example digits", "found a swarm; hand its invite to others"),
    ("starling join INVITE --data my-photos", "take part, learning from your own data"),
    ("starling status --dir starling-node", "how it does; a problem is the first line"),
)
EXIT_CODES: Mapping[int, str] = MappingProxyType(
    {
        0: "fine; also a node, logs -f or status --watch that Ctrl-C ended",
        1: "failed: no node is running, or the network, a file or a computation gave up",
        2: "wrong input: an option, a key, a file; nothing was changed",
        130: "Ctrl-C before it was finished; 143 and 129 are a demo that was terminated",
    }
)


class LazyGroup(Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the table's order: the order in which a person needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; None for a name that is not in the table."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, without importing what it names: the columns of all groups aligned."""
        widest = max(map(len, COMMANDS))
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(widest), text) for name, (_, text) in commands.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Where to begin, and what exit codes mean."""
        write_examples(EXAMPLES, formatter)
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names by the table, without importing every command."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        named = ((name, text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete))
        return [CompletionItem(name, help=text) for name, text in named]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    None, "-v", "-V", "--version", package_name="starling-swarm", prog_name="starling", message="%(prog)s %(version)s"
)
def starling() -> None:
    """Train a PyTorch model together with others, without a server.

    Each command has its own help: starling COMMAND --help, or starling help COMMAND.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: instead of the process's own.

    Returns:
        The exit code.
    """
    if "_STARLING_COMPLETE" in os.environ:
        from starling.node.cli import completion

        completion.register()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # a latin-1 pipe gets `?` for what it cannot hold, instead of a traceback
            stream.reconfigure(errors="replace")
    try:
        outcome = starling.main(
            args=None if arguments is None else list(arguments), prog_name="starling", standalone_mode=False
        )
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        return _misused(error)
    except (KeyboardInterrupt, click.Abort):
        return 130
    except (GossipError, ControlError) as error:
        return _failed(error)
    except BaseExceptionGroup as group:
        # A trio nursery wraps what ended it, Ctrl-C too.
        if group.subgroup(KeyboardInterrupt) is not None:
            return 130
        ours, others = group.split((GossipError, ControlError))
        if ours is None or others is not None:
            raise
        return max(_failed(error) for error in _leaves(ours))
    return outcome if isinstance(outcome, int) else 0


def _misused(error: click.ClickException) -> int:
    """One line: what click objects to, and where the options are explained."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    said = " ".join(error.format_message().split()).removesuffix(".")
    click.echo(f"starling: {said}; see `{context.command_path if context else 'starling'} --help`", err=True)
    return error.exit_code


def _failed(error: BaseException) -> int:
    click.echo(f"starling: {error}", err=True)
    return 2 if isinstance(error, ConfigError) else 1


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [
        leaf
        for error in group.exceptions
        for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]


if __name__ == "__main__":
    sys.exit(main())
