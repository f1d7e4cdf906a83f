"""click's Command and Group with examples at the end of `--help`, `help` as a word, and suggestions for unknown names."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from starling.gossip.errors import closest

Example = tuple[str, str]  # (a command line as one types it, what it does)


class Command(click.Command):
    """A command whose help ends with examples: command lines, each with what it is for."""

    def __init__(self, *, examples: Sequence[Example] = (), **arguments: Any) -> None:
        super().__init__(**arguments)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are typed, never wrapped."""
        super().format_epilog(ctx, formatter)
        write_examples(self.examples, formatter)


def command(*examples: Example, name: str | None = None, **options: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator like `click.command` that makes a `Command` with these examples."""
    return click.command(name, cls=Command, examples=examples, **options)


class Group(click.Group):
    """A group of such commands. `GROUP help COMMAND` is `GROUP COMMAND --help`."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments with a leading word `help` replaced by `--help` at the end."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command named by `args[0]`; an unknown name is a usage error with the closest one."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"no such command {args[0]!r}{meant(args[0], known, f'{ctx.command_path} ')}")
        return super().resolve_command(ctx, args)


def meant(word: str, known: Iterable[str], before: str = "") -> str:
    """Return `, did you mean …?` with the closest of `known`; "" if none is close."""
    close = closest(word, known)
    return f", did you mean `{before}{close}`?" if close else ""


def write_examples(examples: Sequence[Example], formatter: click.HelpFormatter) -> None:
    """Write examples in a section of their own; nothing if there are none."""
    if not examples:
        return
    formatter.write("\nExamples:\n")
    for line, purpose in examples:
        formatter.write(f"  {line}\n      {purpose}\n" if purpose else f"  {line}\n")
