"""Names of built-in tasks, for programs without torch."""

from __future__ import annotations

import difflib

from starling.gossip.errors import ConfigError

BUILT_IN_TASKS = ("digits", "images", "quadratic", "diagonal", "logistic", "text", "synthetic")
"""The keys of `starling.node.tasks.catalogue.TASKS`."""


def check_name(kind: str) -> None:
    """Raises ConfigError unless `kind` is a built-in task or looks like `module:function`."""
    if ":" in kind or kind in BUILT_IN_TASKS:
        return
    close = difflib.get_close_matches(kind, BUILT_IN_TASKS, n=1)
    raise ConfigError(
        f"task.kind: must be one of {', '.join(BUILT_IN_TASKS)} or module:function, got {kind!r}; "
        f"try `--set task={close[0] if close else 'digits'}`"
    )
