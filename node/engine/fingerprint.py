"""Fingerprint of a custom task, by which nodes compare theirs: version, metric, loss, and the parameters of its model.

A creator's node writes it into the manifest as lines of text (`task.fingerprint`), and every other compares its own when it makes the
model:

    version 2                                   only where the task has one
    metric mae, lower is better
    loss mse_loss                               only where the task names it
    frozen 2 e1a0…                              tensors, and a digest of the values of all frozen parameters; not with `task.any_base`
    model 321 6 9c1185a5c5e9fc54612808977ee8f548    numbers, tensors, and a digest of all lines that follow, also of those left out
    float32 trained 16x8 layers.0.weight        dtype, trained or frozen, shape, name; in the order of their definition

    python -P -m starling.node.engine.fingerprint FOLDER    prints that of the task of the manifest in standard input, as JSON

Wrong input: exit 2 and one line on standard error.
"""

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor, nn

from starling.gossip.errors import ConfigError
from starling.node.catalogues import task
from starling.node.config import consent
from starling.node.config.parts import convert, shown
from starling.node.config.schema import FINGERPRINT_CHARACTERS, FINGERPRINT_LINES, Manifest
from starling.node.engine.quantised import pieces, quantised
from starling.node.engine.task_smoke_test import calling, fresh_model
from starling.node.tasks.api import Task

_ALL_CHARACTERS = 24 << 10  # most characters of a fingerprint, to fit a manifest
_FACTS = ("version", "metric", "loss")
_FROZEN = "frozen"
_BLOCK = 16 << 20  # bytes of frozen values that are hashed at a time
_HASHING = 4  # threads


@dataclass(frozen=True, slots=True)
class _Tensor:
    dtype: str
    learned: str
    shape: str
    name: str

    def line(self) -> str:
        return f"{self.dtype} {self.learned} {self.shape} {self.name}"


def of(task: Task, model: nn.Module, *, frozen: bool = False) -> tuple[str, ...]:
    """Return the fingerprint of a task, for a model that it makes; `frozen`: with the values of parameters that are not trained."""
    better = "higher" if task.higher_is_better else "lower"
    facts = {
        "version": _word(task, "version"),
        "metric": f"{task.metric}, {better} is better",
        "loss": _word(task, "loss_name"),
        _FROZEN: base(model) if frozen else "",
    }
    tensors = [each.line() for each in _tensors(model)]
    numbers = sum(parameter.numel() * (1 + parameter.is_complex()) for parameter in model.parameters())
    digest = hashlib.blake2b("\n".join(tensors).encode(), digest_size=16).hexdigest()
    lines = [f"{name} {_plain(value)}"[:FINGERPRINT_CHARACTERS] for name, value in facts.items() if value]
    lines.append(f"model {numbers} {len(tensors)} {digest}")
    left = _ALL_CHARACTERS - sum(map(len, lines))
    for line in tensors:
        left -= len(line)
        if left < 0 or len(line) > FINGERPRINT_CHARACTERS or len(lines) == FINGERPRINT_LINES:
            break
        lines.append(line)
    return tuple(lines)


def base(model: nn.Module) -> str:
    """Return how many parameters of a model are not trained, and a digest of their values; "" if all are.

    Packed ones (`starling.node.engine.quantised`) count by their packed values. Blocks are hashed by a few threads, about 1.8 GB a
    second each.
    """
    frozen = [each for each in model.parameters() if not each.requires_grad and not each.is_meta and not nn.parameter.is_lazy(each)]
    if not frozen:
        return ""
    blocks = (block for each in frozen for part in pieces(each) for block in _blocks(part))
    with ThreadPoolExecutor(_HASHING) as threads:
        digest = hashlib.blake2b(b"".join(threads.map(_hashed, blocks)), digest_size=16)
    return f"{len(frozen)} {digest.hexdigest()}"


def _blocks(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the bytes of a tensor, as views where it is contiguous."""
    raw = tensor.contiguous().reshape(-1).view(torch.uint8)
    for start in range(0, raw.numel(), _BLOCK):
        yield raw[start : start + _BLOCK]


def _hashed(block: Tensor) -> bytes:
    return hashlib.sha256(block.cpu().numpy().data).digest()  # processors have instructions for SHA-256


def compares_base(manifest: Manifest, model: nn.Module) -> bool:
    """Return whether frozen values must be equal at all nodes: not with `task.any_base`, nor where `task.start` gives them to each."""
    return not manifest.task.any_base and (not manifest.task.start or bool(quantised(model)))


def check(manifest: Manifest, made: Task, model: nn.Module) -> None:
    """Compare a task and its model with the manifest's fingerprint, where it has one.

    Raises ConfigError: they differ; one line that says which part does first.
    """
    swarm = manifest.task.fingerprint
    frozen = any(line.startswith(f"{_FROZEN} ") for line in swarm)  # none with task.any_base
    if swarm and (why := _difference(of(made, model, frozen=frozen), swarm)):
        kind = manifest.task.kind
        module = kind.partition(":")[0]
        raise ConfigError(
            f"task.kind: {kind!r} is not what this swarm was created with: {why}; ask the creator for its {module}, then `starling run`"
        )


def _difference(ours: Sequence[str], swarm: Sequence[str]) -> str:
    """Return the first difference, in a few words; "" if there is none. Lines of the swarm come from a creator: they are shown escaped."""
    if tuple(ours) == tuple(swarm):
        return ""
    (mine, own, tensors), (theirs, count, wanted) = _parsed(ours), _parsed(swarm)
    for fact in _FACTS:
        if mine.get(fact) != theirs.get(fact):
            return f"its {fact} is {_said(mine.get(fact))}, the swarm's is {_said(theirs.get(fact))}"
    foreign = next((each.name for each in tensors if each.name not in {other.name for other in wanted}), None)
    by_name = {each.name: each for each in tensors}
    for other in wanted:
        each = by_name.get(other.name)
        if each is None:
            return f"the model has no {_said(other.name)}, the swarm's has"
        for what, here, there in (("shape", _shape(each.shape), _shape(other.shape)), ("dtype", each.dtype, other.dtype)):
            if here != there:
                return f"{_said(each.name)} has {what} {_said(here)}, the swarm's has {_said(there)}"
        if each.learned != other.learned:
            return f"{_said(each.name)} is {each.learned}, the swarm's is {_said(other.learned)}"
    if foreign is not None and len(wanted) == count[1]:
        return f"the model has {_said(foreign)}, the swarm's has not"
    if own[:2] != count[:2]:
        return f"the model has {own[0]:,} numbers in {own[1]:,} tensors, the swarm's {count[0]:,} in {count[1]:,}"
    if own != count:
        if len(wanted) == count[1]:
            return "the parameters of the model stand in another order"
        return f"a tensor after the first {len(wanted)} has another name, shape, dtype or order"
    return (
        "its frozen parameters have other values than the swarm's, as of another base model or download (a swarm created with `--set "
        "task.any_base=true` lets each have its own)"
    )


def _parsed(lines: Sequence[str]) -> tuple[Mapping[str, str], tuple[int, int, str], list[_Tensor]]:
    """Parse the lines -> facts by name; numbers, tensors and digest; the tensors that are listed. Raises ConfigError: no fingerprint."""
    facts: dict[str, str] = {}
    count: tuple[int, int, str] | None = None
    tensors: list[_Tensor] = []
    for line in lines:
        words = line.split(" ", 3)
        if count is not None and len(words) == 4:
            tensors.append(_Tensor(*words))
        elif words[0] == "model" and len(words) == 4 and words[1].isdecimal() and words[2].isdecimal():
            count = int(words[1][:18]), int(words[2][:18]), words[3]
        elif words[0] in (*_FACTS, _FROZEN) and count is None:
            facts[words[0]] = line.partition(" ")[2]
        else:
            raise ConfigError(f"task.fingerprint: has a line {shown(line)}, which says nothing here; upgrade starling")
    if count is None:
        raise ConfigError("task.fingerprint: has no line about the model; create the swarm again with `starling create`")
    return facts, count, tensors


def _tensors(model: nn.Module) -> list[_Tensor]:
    return [
        _Tensor(
            str(parameter.dtype).removeprefix("torch."),
            "trained" if parameter.requires_grad else "frozen",
            "x".join(map(str, parameter.shape)) or "()",
            _plain(name),
        )
        for name, parameter in model.named_parameters()
    ]


def _word(task: Task, name: str) -> str:
    """Return an attribute that a task may have: text or a whole number."""
    given = getattr(task, name, "")
    return str(given) if isinstance(given, str | int) else ""


def _shape(text: str) -> str:
    """Format a shape as torch does: "16x8" as (16, 8)."""
    sizes = text.split("x")
    return text if text == "()" else f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"


def _plain(text: str) -> str:
    """Return printable ASCII, whatever a module calls its parts."""
    return "".join(each if " " <= each <= "~" else ascii(each)[1:-1] for each in text)


def _said(text: str | None) -> str:
    return "not given" if text is None else text if len(text) <= 80 else f"{text[:79]}…"


def main() -> None:
    """Run the child process that computes a fingerprint at a swarm's creation."""
    answer = os.dup(1)
    os.dup2(2, 1)  # output of the task goes to standard error
    consent_to, plain = sys.argv[1], msgspec.json.decode(sys.stdin.buffer.read())
    manifest = convert(plain, Manifest, trusted=False)
    consent.find_module("task.kind", manifest.task.kind, consent_to)
    kind = manifest.task.kind
    made = calling(kind, "making the task", lambda: task(kind, manifest.task.params()))
    model = fresh_model(kind, made, manifest.seed)
    os.write(answer, msgspec.json.encode(of(made, model, frozen=compares_base(manifest, model))))


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
