"""`starling examples`: list, print or copy the example files of the package."""

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from starling.gossip.errors import ConfigError, GossipError, closest
from starling.node.cli.common import PATH, say
from starling.node.cli.help import command
from starling.node.status.control import typed

SUFFIX = ".toml"


@command(
    ("starling examples", "their names, and what each shows"),
    ("starling examples digits", "print one"),
    ("starling examples simulate-digits --copy my-scenario.toml", "a file to edit"),
)
@click.argument("name", required=False, shell_complete=lambda _c, _p, begun: [each for each in names() if each.startswith(begun)])
@click.option("--copy", "target", metavar="FILE", type=PATH, help="Write it to this new file.")
def examples(name: str | None, target: Path | None) -> None:
    """List the example files, or print one.

    `starling create --example NAME` takes a manifest as it is, `starling simulate` a copy of a scenario, `starling plan` one of a plan.
    """
    if name is None:
        if target is not None:
            raise ConfigError("--copy: needs the name of an example; try `starling examples digits --copy digits.toml`")
        width = max(map(len, names()))
        for each in names():
            click.echo(f"{each.ljust(width)}  {purpose(each)}")
        return
    text = find(name).read_text()
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
    command = next((each for each in ("simulate", "plan") if name.startswith(each)), "create")
    say(f"wrote {target}; try `starling {command} {typed(target)}`")


def names() -> list[str]:
    """Return the names of all examples, without their suffix."""
    files = resources.files("starling").joinpath("examples").iterdir()
    return sorted(file.name.removesuffix(SUFFIX) for file in files if file.name.endswith(SUFFIX))


def find(name: str) -> Traversable:
    """Return the file of an example. Raises ConfigError: there is none of that name."""
    known, wanted = names(), name.removesuffix(SUFFIX)
    if wanted not in known:
        close = closest(wanted, known)
        hint = f", did you mean {close}?" if close else ""
        raise ConfigError(f"example {name!r} is unknown{hint}; there are {', '.join(known)}; see `starling examples`")
    return resources.files("starling").joinpath("examples", wanted + SUFFIX)


def purpose(name: str) -> str:
    """Return the first line of the example, which says what it shows."""
    return find(name).read_text().partition("\n")[0].removeprefix("#").strip()
