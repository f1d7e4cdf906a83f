"""Names of a model's parameters, which members compare: the same whatever wraps the model."""

from collections.abc import Iterable

WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Names under which wrappers (DistributedDataParallel, torch.compile, FSDP, checkpointing) keep what they wrap."""


def plain_names(names: Iterable[str]) -> list[str]:
    """Return names without the prefixes of wrappers and without peft's `default`; unchanged if two would become one."""
    whole = list(names)
    plain = [_plain(name) for name in whole]
    return plain if len(set(plain)) == len(plain) else whole


def _plain(name: str) -> str:
    *path, last = name.split(".")
    return ".".join([*(each for each in path if each not in WRAPPERS), last]).replace(".default.", ".")
