"""What `--help` looks like: commands in groups, examples under each.

class of click                      here
click.Command                       Command: takes examples
click.Group                         Group: its commands are such
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

Example = tuple[str, str]
"""A command line as one types it, and what it is for."""


class Command(click.Command):
    """A command whose help ends with examples.

    Args:
        examples: command lines, each with what it is for.
        arguments: click's own.
    """

    def __init__(self, *, examples: Sequence[Example] = (), **arguments: Any) -> None:
        super().__init__(**arguments)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples, as they are typed: never wrapped."""
        super().format_epilog(ctx, formatter)
        write_examples(self.examples, formatter)


class Group(click.Group):
    """A group of such commands."""

    command_class = Command


def write_examples(examples: Sequence[Example], formatter: click.HelpFormatter) -> None:
    """A section of its own; nothing if there is none."""
    if not examples:
        return
    formatter.write("\nExamples:\n")
    for line, purpose in examples:
        formatter.write(f"  {line}\n      {purpose}\n" if purpose else f"  {line}\n")
