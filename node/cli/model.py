"""`starling eval`, `ask` and `export`: the model of a running node, or the one that a finished or stopped node left behind."""

from pathlib import Path
from typing import get_args

import click

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli.common import PATH, dir_and_json, emit, force_option, refuse_existing, result, say
from starling.node.cli.documents import Exported
from starling.node.cli.help import command
from starling.node.cli.progress import slow
from starling.node.cli.run import existing
from starling.node.node_handle import SUFFIXES, TEMPERATURE, TOKENS, Attached, Form, Written
from starling.node.status import format as show
from starling.node.status.control import typed


@command(
    ("starling eval --dir starling-2 --json", ""),
    ("starling eval --dir starling-2 --data my-test.npz", "on your own test data"),
    name="eval",
)
@click.option(
    "--data", metavar="PATH", help="Evaluate on this: its test split, or all of an .npz file that has none. Default: held-out data."
)
@dir_and_json
def evaluate(data: str | None, run_dir: Path, as_json: bool) -> None:
    """Evaluate the model of a running, finished or stopped node."""
    measured = None if data is None else existing("--data", data)
    with slow("evaluating"):
        found = Attached(run_dir).evaluate(measured)
    if as_json:
        emit(found)
        return
    if found.value is None:
        raise GossipError(f"the node in {run_dir} has not evaluated its model yet; try again")
    click.echo(f"{found.metric or 'value'} {found.value:.6g}{show.others(found.others.items())} in round {found.round}")


@command(
    ("starling ask 'To be, or' --dir starling-2", ""),
    ("starling ask 'To be, or' --temperature 0 --tokens 50", "the likeliest continuation"),
    ("starling ask 'To be, or' --best --seed 7 --json", "the best model so far, other chance"),
)
@click.argument("prompt", metavar="PROMPT")
@click.option("--tokens", type=click.IntRange(1, 100_000), default=TOKENS, help="To write; bytes where there is no tokenizer.")
@click.option(
    "--temperature",
    type=click.FloatRange(0.0, 100.0),
    default=TEMPERATURE,
    help="0 takes the likeliest token, 1 draws by the model's probabilities.",
)
@click.option("--seed", type=click.IntRange(0, 2**62), default=0, help="Of what is drawn: equal seeds, equal texts.")
@click.option("--best", is_flag=True, help="Ask the model with the best evaluation so far, not that of now.")
@dir_and_json
def ask(prompt: str, tokens: int, temperature: float, seed: int, best: bool, run_dir: Path, as_json: bool) -> None:
    """Let the model of a text task go on from PROMPT. Works on a running, finished or stopped node."""
    with slow("writing"):
        found = Attached(run_dir).write(prompt, tokens=tokens, temperature=temperature, seed=seed, best=best)
    result(found, as_json, _print)


def _print(written: Written) -> None:
    """Print the prompt and its continuation with their line breaks; characters that control a terminal are replaced."""
    whole = written.prompt + written.text
    click.echo("".join(each if each.isprintable() or each in "\n\t" else "·" for each in whole))


@command(
    ("starling export mine.safetensors --dir starling-2", ""),
    ("starling export mine.safetensors --dir starling-2 --force", "replace an older one"),
    ("starling export mine.onnx --format onnx --card", "for another program, with a model card, mine.md"),
    ("starling export best.safetensors --best", "as it was in the evaluation with the best value"),
    ("starling export adapters --format peft", "a folder, for a task of starling.adapters.lora"),
)
@click.argument("file", metavar="FILE", type=PATH)
@click.option(
    "--format",
    "form",
    type=click.Choice(get_args(Form)),
    default="safetensors",
    show_default=True,
    help="torch: a state_dict. hf, peft: a folder of those libraries.",
)
@click.option("--card", is_flag=True, help="Write a model card beside it, FILE.md; hf and peft folders always have one.")
@click.option("--best", is_flag=True, help="The model with the best evaluation so far, not that of now.")
@force_option
@dir_and_json
def export(file: Path, form: Form, card: bool, best: bool, force: bool, run_dir: Path, as_json: bool) -> None:
    """Write the model of a running, finished or stopped node, for Starling or for another library."""
    target = file.expanduser().resolve()
    suffix = SUFFIXES.get(form, "")
    chosen = ("" if form == "safetensors" else f" --format {form}") + " --best" * best
    if suffix and target.suffix != suffix:
        raise ConfigError(f"export: {str(file)!r} must end in {suffix}; try `starling export {typed(file.with_suffix(suffix))}{chosen}`")
    if not target.parent.is_dir():
        raise ConfigError(f"export: {target.parent} is not a folder; try `mkdir -p {typed(target.parent)}`")
    refuse_existing("export", file.expanduser(), force=force, folder=not suffix)
    with slow(f"writing {target.name}"):
        Attached(run_dir).export(target, format=form, card=card, best=best)
    size = sum(each.stat().st_size for each in ([target] if suffix else target.iterdir()))
    result(Exported(file=str(target), bytes=size), as_json, lambda _: say(f"wrote {target} ({size:,} bytes)"))
