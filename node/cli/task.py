"""`starling task check`: check that a person's own task does what a node needs."""

import json
import subprocess
import sys
from pathlib import Path

import click

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli.help import Group


@click.group(cls=Group)
def task() -> None:
    """Check a task of your own."""


@task.command(
    "check",
    examples=(
        ("starling task check my_task:MyTask", "a class in my_task.py of this folder, or in an installed package"),
        ("starling task check my_task:MyTask --data photos", "with data of your own"),
    ),
)
@click.argument("kind", metavar="MODULE:CLASS")
@click.option("--data", metavar="PATH", help="Your own data; default: the task's built-in ones.")
def check(kind: str, data: str | None) -> None:
    """Run a task as a node would: model, batches, local steps, score, export, reload.

    The code runs on this machine, in a process of its own. Exit 2 if a step fails.
    """
    from starling.node.config import script

    if kind == script.KIND:
        raise script.refused(kind, "try the script by itself, and then with `starling.Swarm(DIR, model=…, optimizer=…)`")
    if data is not None and not Path(data).exists():
        raise ConfigError(f"--data: {data} is not there")
    words = [str(Path.cwd()), kind, *([] if data is None else [str(Path(data).resolve())])]
    command = [sys.executable, "-P", "-m", "starling.node.engine.task_check", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise GossipError(f"the process that ran the task ended with exit status {done.returncode}; its last words are above")
    findings = json.loads(done.stdout)
    for finding in findings:
        click.echo(f"{finding['step']:<8}{'ok' if finding['fine'] else 'FAILED':<8}{finding['text']}")
    if not all(finding["fine"] for finding in findings):
        raise click.exceptions.Exit(2)
