"""`starling`: the table of commands, and how errors are printed.

Only the module of the command that is called gets imported, so that `--help` answers at once.

    exit 0    fine (or what the command returned)
    exit 1    failed: the node is not running, the network or the engine gave up
    exit 2    wrong input: ConfigError, or options that click refuses
    exit 130  Ctrl-C
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from starling import __version__
from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli.exit_codes import INTERRUPTED
from starling.node.cli.help import Group, write_examples
from starling.node.status.control import ControlError, WrongInput

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# group -> name -> (place in starling.node.cli, line in --help)
GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "Run a node": {
            "demo": ("demo:demo", "Run a local swarm of real nodes and watch it learn."),
            "join": ("run:join", "Join a swarm by its invite."),
            "run": ("run:run", "Run the node of a run directory again."),
            "pause": ("run:pause", "Do no local steps for now; peers are still answered."),
            "resume": ("run:resume", "Do local steps again."),
            "limits": ("run:limits", "Show or change what a running node may use."),
            "leave": ("run:leave", "Leave the swarm in order and stop the running node."),
            "export": ("model:export", "Write the model to a safetensors file."),
        },
        "Look": {
            "doctor": ("doctor:doctor", "Check this machine and its network before joining, or later."),
            "upgrade-check": ("upgrade:upgrade_check", "Tell what this version reads of a node or a manifest."),
            "status": ("inspect_node:status", "Show a node's state, problems first."),
            "peers": ("inspect_node:peers", "List the members a running node knows."),
            "tui": ("inspect_node:terminal", "Watch nodes, a demo or a recorded run in the terminal."),
            "web": ("web:web", "Watch nodes or a demo in a browser on this machine."),
            "track": ("track:track", "Write a node's figures to a file or an experiment tracker."),
            "logs": ("logs:logs", "Print a node's log; -f goes on as it grows."),
            "eval": ("model:evaluate", "Evaluate a node's model on held-out data."),
            "ask": ("model:ask", "Let a model of text go on from a prompt."),
        },
        "Create and invite": {
            "create": ("run:create", "Create a swarm: sign a manifest and print the invite."),
            "invite": ("members:invite", "Print an invite to the running node's swarm."),
            "revoke": ("members:revoke", "Remove a member with all members below it."),
            "plan": ("plan:plan", "Tell which machines can train a model, and how fast."),
            "examples": ("examples:examples", "List, print or copy example files."),
            "manifest": ("config:manifest", "Show or check a swarm's manifest."),
            "task": ("task:task", "Check a task of your own before nodes run it."),
            "config": ("config:config", "Show every setting with its meaning."),
        },
        "Trust": {
            "ban": ("members:ban", "Refuse a peer."),
            "unban": ("members:unban", "Undo a ban, or trust."),
            "trust": ("members:trust", "Never refuse a peer."),
        },
        "Research": {
            "simulate": ("research.simulate:simulate", "Simulate swarms of thousands of nodes, and sweeps of them."),
            "overlay": ("research.overlay:overlay", "Draw, measure and compare overlays."),
            "bench": ("research.bench:bench", "Measure how fast this machine encodes and combines."),
        },
        "Your shell": {"completion": ("completion:completion", "Print the completion script of bash, zsh or fish.")},
    }
)
COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType({name: entry for group in GROUPS.values() for name, entry in group.items()})
EXAMPLES = (
    ("starling demo", "eight nodes on this machine, watched while they learn"),
    ("starling create --example digits", "create a swarm; hand its invite to others"),
    ("starling join INVITE --data my-photos", "take part, learning from your own data"),
    ("starling status --dir starling-node", "how it does; a problem is the first line"),
)
EXIT_CODES: Mapping[int, str] = MappingProxyType(
    {
        0: "fine; also a node, logs -f or status --watch that Ctrl-C ended",
        1: "failed: no node is running, or the network, a file or a computation gave up",
        2: "wrong input: an option, a key, a file; nothing was changed",
        130: "Ctrl-C before it was finished; 143 and 129 are a demo or a bench that was terminated",
    }
)


FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
FORMER: Mapping[str, str] = MappingProxyType({"found": "create"})
"""Names of an earlier release, which work for one more, by today's."""


class LazyGroup(Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the table's order, in which a person needs them."""
        return list(COMMANDS)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command named by `args[0]`; for a former name, print today's on standard error."""
        if (today := FORMER.get(args[0])) is not None:
            if not ctx.resilient_parsing:
                click.echo(f"starling: {args[0]} is called {today} now; the old name works in this release only", err=True)
            args = [today, *args[1:]]
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; None for a name that is not in the table."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(f"starling.node.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands without importing them, the columns of all groups aligned."""
        widest = max(map(len, COMMANDS))
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(widest), text) for name, (_, text) in commands.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write where to begin, and what exit codes mean."""
        write_examples(EXAMPLES, formatter)
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names from the table, without importing every command."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        named = ((name, text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete))
        return [CompletionItem(name, help=text) for name, text in named]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, "-v", "-V", "--version", prog_name="starling", message="%(prog)s %(version)s")
def starling() -> None:
    """Train a PyTorch model together with others, without a server.

    Each command has its own help: starling COMMAND --help, or starling help COMMAND.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by default of the process's own arguments -> the exit code."""
    if "_STARLING_COMPLETE" in os.environ:
        importlib.import_module("starling.node.cli.completion")  # registers the bash that click then uses
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a latin-1 pipe gets `?` instead of a traceback
            stream.reconfigure(errors="replace")
    try:
        outcome = starling.main(args=None if arguments is None else list(arguments), prog_name="starling", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        return _misused(error)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except (GossipError, ControlError) as error:
        return _failed(error)
    except OSError as error:
        if error.errno not in FULL:
            raise
        from starling.node.cli.common import discard_output

        discard_output()  # what is left of it would be a second error at exit
        click.echo(f"starling: standard output or a file cannot be written: {error.strerror}; look with `df -h`", err=True)
        return 1
    except BaseExceptionGroup as group:
        # A trio nursery wraps the exception that ended it, Ctrl-C too.
        leaves = _leaves(group)
        if any(isinstance(error, KeyboardInterrupt) for error in leaves):
            return INTERRUPTED
        if not all(isinstance(error, GossipError | ControlError) for error in leaves):
            raise
        return max(map(_failed, leaves))
    return outcome if isinstance(outcome, int) else 0


def _open_closed_streams() -> None:
    """Open the null device where a standard stream is closed, so that no file or socket gets its number and what is printed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # by number: the lowest free is taken
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _misused(error: click.ClickException) -> int:
    """Print click's objection and where the options are explained, in one line -> exit code."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    objection = " ".join(error.format_message().split()).removesuffix(".")
    click.echo(f"starling: {objection}; see `{context.command_path if context else 'starling'} --help`", err=True)
    return error.exit_code


def _failed(error: BaseException) -> int:
    click.echo(f"starling: {error}", err=True)
    return 2 if isinstance(error, ConfigError | WrongInput) else 1


def _leaves(error: BaseException) -> list[BaseException]:
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [leaf for each in inner for leaf in _leaves(each)] or [error]


if __name__ == "__main__":
    sys.exit(main())
