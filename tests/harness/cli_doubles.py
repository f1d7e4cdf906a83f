"""Replacements for what commands start: a demo with one result, and a daemon that ends when the test requests it."""

from pathlib import Path

import click
import msgspec
from click.testing import CliRunner

from starling.node.admission.invite import Invite, encode
from starling.node.cli.main import main
from starling.node.demo.summary import DemoSummary

DONE = {
    "peer": "12D3KooWabcdefg",
    "state": "done",
    "rounds": 30,
    "local_steps": 600,
    "value": 0.97,
    "bytes_sent": 123_456,
    "bytes_received": 654_321,
    "exchanges": {"committed": 28, "aborted": 1, "busy": 0, "timeout": 2},
    "rejoined": False,
    "joined_late": False,
    "byzantine": False,
}


TABLE = {
    "swarm": "s",
    "wall_s": 12.345,
    "rounds": 30,
    "metric": "accuracy",
    "mean": 0.97,
    "min": 0.96,
    "max": 0.98,
    "consensus_distance": 0.0123,
    "bytes_per_exchange": 2400.0,
    "dense_bytes": 19_240,
    "ban": None,
    "alone": None,
    "nodes": [DONE, {**DONE, "peer": "12D3KooWlateone", "joined_late": True, "rejoined": True}],
}


class Canned:
    """Stands in for `starling.node.demo.swarm.Demo`: starts no process, has one result."""

    def __init__(self, plan):
        self.plan = plan
        self.folder = plan.folder or Path("made-up")
        self.members = []
        self.gone = False
        self.table = TABLE
        self.during = lambda: None
        self.after = lambda: None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.after()
        self.gone = True

    def run(self, progress):
        progress(0.0, "starting 8 nodes: 0 training")
        progress(0.5, "8 nodes, round 15, accuracy 0.9")
        self.during()
        return msgspec.convert({"version": 1, **self.table}, DemoSummary)


PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
ADDRESS = f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}"


SWARM = "szqrpi3amiarlozqhdswsbdg7m5ou3swn"


INVITE = encode(Invite(SWARM, (ADDRESS,)))


class Daemon:
    """Stands in for `starling.node.daemon.main.run`: listens at once, then ends as the test chooses."""

    def __init__(self):
        self.runs = []
        self.refusal = None
        self.lived = False

    def __call__(self, run_dir, *, until_stdin_closes=False, on_listening=None, seconds=None):
        self.runs.append((run_dir.path, until_stdin_closes))
        if on_listening is not None:
            on_listening((ADDRESS,))
        if self.lived:
            run_dir.checkpoint.touch()
        if self.refusal is not None:
            raise self.refusal


def refused(capsys, arguments, *words, code=2):
    """Assert that a command is refused: one line on standard error with these words, nothing on standard output."""
    capsys.readouterr()
    assert main(list(map(str, arguments))) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("starling: ")
    for word in words:
        assert word in err
    return err


def leaves(command, name=()):
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in command.list_commands(context):
            yield from leaves(command.get_command(context, inner), (*name, inner))
    else:
        yield "-".join(name), command


def invoked(command, executor, *arguments):
    """Run a command with the given executor; return (exit code, standard output, standard error)."""
    result = CliRunner().invoke(command, [str(each) for each in arguments], obj=executor, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value, result.stdout, result.stderr
