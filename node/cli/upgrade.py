"""`starling upgrade-check`: report what this version can read of a node or a manifest that another version wrote."""

from __future__ import annotations

import os
from pathlib import Path

import click

from starling import __version__
from starling.node import versions
from starling.node.cli.common import PATH, console, json_option, result, table
from starling.node.cli.documents import ReadVersion, UpgradeCheck
from starling.node.cli.help import command
from starling.node.status import control
from starling.node.status.format import clean

STYLES = {"fail": "bold red", "warn": "yellow", "unknown": "dim", "ok": "green"}


@command(
    ("starling upgrade-check starling-2", "after an upgrade, before the node is started again"),
    ("starling upgrade-check examples/digits.toml", "of a manifest"),
    ("starling upgrade-check starling-2 --json", "for a program; it lists all versions that are read"),
)
@click.argument("path", metavar="DIR|MANIFEST", type=PATH)
@json_option
def upgrade_check(path: Path, as_json: bool) -> int:
    """Tell what this version can read of a run directory or a manifest, what an upgrade changes, and what to do.

    Nothing is changed. Exit code 1 if something cannot be read.
    """
    from starling.node import upgrade

    if not os.access(path, os.F_OK) or path.is_dir():
        checks, running = tuple(upgrade.of_directory(path)), _runs(path)
    else:
        checks, running = (upgrade.of_manifest(path),), False
    checks = (*checks, upgrade.summary(checks, running=running))
    read = tuple(ReadVersion(what=row.what, oldest=row.range.oldest, newest=row.range.newest) for row in versions.TABLE)
    found = UpgradeCheck(path=str(path.absolute()), program=__version__, reads=read, checks=checks)
    result(found, as_json, _print)
    return int(any(each.verdict == "fail" for each in checks))


def _runs(run_dir: Path) -> bool:
    """Return whether a node of any version answers there."""
    try:
        control.connect(run_dir).close()
    except control.ControlError:
        return False
    return True


def _print(found: UpgradeCheck) -> None:
    """Print what this version reads, a line for each check and one for its remedy."""
    from rich.text import Text

    out = console()
    read = ", ".join(f"{each.what} {versions.Range(each.oldest, each.newest)}" for each in found.reads)
    out.print(Text(f"starling {found.program} reads {read}\n"), soft_wrap=True)
    rows = [
        (Text(each.verdict, STYLES[each.verdict]), each.check, "\n→ ".join(filter(None, (clean(each.found), clean(each.todo)))))
        for each in found.checks
    ]
    out.print(table(("", "check", "what was found, and what to do"), rows, fold=True))
