"""`starling examples`: list, print or copy the example files of the package."""

from __future__ import annotations

from pathlib import Path

import click

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli.common import say
from starling.node.cli.help import Command
from starling.node.status.control import typed


@click.command(
    cls=Command,
    examples=(
        ("starling examples", "their names, and what each shows"),
        ("starling examples digits", "print one"),
        ("starling examples simulate-digits --copy my-scenario.toml", "a file to edit"),
    ),
)
@click.argument("name", required=False, shell_complete=lambda _c, _p, begun: _names(begun))
@click.option("--copy", "target", metavar="FILE", type=click.Path(path_type=Path), help="Write it to this new file.")
def examples(name: str | None, target: Path | None) -> None:
    """List the example files, or print one.

    `starling found --example NAME` takes a manifest as it is, `starling simulate` a copy of a scenario.
    """
    from starling.node import examples as shipped

    if name is None:
        if target is not None:
            raise ConfigError("--copy: needs the name of an example; try `starling examples digits --copy digits.toml`")
        width = max(map(len, shipped.names()))
        for each in shipped.names():
            click.echo(f"{each.ljust(width)}  {shipped.purpose(each)}")
        return
    text = shipped.find(name).read_text()
    if target is None:
        click.echo(text, nl=False)
        return
    try:
        with target.open("x") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"--copy: {target} exists; name another file") from error
    except OSError as error:
        raise GossipError(f"--copy: cannot write {target}: {error.strerror}") from error
    command = "simulate" if name.startswith("simulate") else "found"
    say(f"wrote {target}; try `starling {command} {typed(target)}`")


def _names(begun: str) -> list[str]:
    from starling.node import examples as shipped

    return [name for name in shipped.names() if name.startswith(begun)]
