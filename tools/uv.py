"""uv where pip finds packages: `build/tools/bin/python tools/uv.py pip install …` runs uv with the indexes that pip is configured with.

uv reads neither pip's variables nor its files, and a machine may have set up nothing else. What is configured for uv itself comes first.
Of PyTorch there are several builds: where nothing but the ordinary index is configured, and PyTorch's own index answers, uv chooses the
build for this machine's GPU there, the small one without a GPU; else the ordinary index's is taken. Hashes are of the ordinary index alone.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

TORCH_INDEX = "https://download.pytorch.org/whl/cpu/torch/"
PATIENCE_S = 3.0
_SAME = {  # pip's option -> uv's variables for it, of which the first is set if none is, and the separator of several values
    "index-url": (("UV_DEFAULT_INDEX", "UV_INDEX_URL"), " "),
    "extra-index-url": (("UV_INDEX", "UV_EXTRA_INDEX_URL"), " "),
    "find-links": (("UV_FIND_LINKS",), ","),
    "no-index": (("UV_NO_INDEX",), " "),
    "trusted-host": (("UV_INSECURE_HOST",), " "),
    "cert": (("SSL_CERT_FILE",), " "),
    "proxy": (("ALL_PROXY", "HTTPS_PROXY"), " "),
    "default-timeout": (("UV_HTTP_TIMEOUT",), " "),
    "timeout": (("UV_HTTP_TIMEOUT",), " "),
}
_FURTHER = ("extra-index-url", "find-links")
_ORDER = ("global", "install", ":env:")  # the later wins


def configured(lines: Iterable[str]) -> dict[str, list[str]]:
    """Return pip's options and their values, of the lines that `pip config list` prints."""
    places: dict[str, dict[str, list[str]]] = {place: {} for place in _ORDER}
    for line in lines:
        name, _, value = line.partition("=")
        place, _, option = name.rpartition(".")
        if place in places:
            places[place][option] = ast.literal_eval(value).split()
    return {option: values for place in _ORDER for option, values in places[place].items()}


def hashes(words: Sequence[str]) -> bool:
    """Return whether a command of uv writes hashes or checks them, so that every machine must see the same files."""
    return list(words[:2]) == ["pip", "compile"] or "--require-hashes" in words


def variables(pip: Mapping[str, Sequence[str]], environment: Mapping[str, str], *, alone: bool) -> dict[str, str]:
    """Return the variables that uv needs in addition to `environment` to use pip's index; `alone`: the ordinary index only."""
    added: dict[str, str] = {}
    for option, (names, between) in _SAME.items():
        if pip.get(option) and not (environment.keys() & set(names) or (alone and option in _FURTHER)):
            added[names[0]] = between.join(pip[option])
    if "UV_INDEX" in added and "UV_INDEX_STRATEGY" not in environment:
        added["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # pip treats all indexes as one
    return added


def answers(url: str) -> bool:
    """Return whether an index gives this page within some seconds."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PATIENCE_S) as reply:  # noqa: S310
            return bool(reply.status == 200)
    except (OSError, ValueError):
        return False


def asks_torch(words: Sequence[str], environment: Mapping[str, str], platform: str) -> bool:
    """Return whether PyTorch's own index is used: to install, without hashes, if only the default index is configured.

    Args:
        words: of uv's command.
        environment: with the additions of `variables`.
        platform: `sys.platform`; elsewhere than on Linux the default index has the right build.
    """
    chosen = {"UV_TORCH_BACKEND", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX"}
    installs = list(words[:2]) == ["pip", "install"] and not hashes(words)
    return installs and platform == "linux" and not chosen & environment.keys()


def main(words: Sequence[str]) -> int:
    """Run uv, which is installed next to this interpreter."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    environment = {"UV_PYTHON_DOWNLOADS": "never", **os.environ}
    environment |= variables(configured(listed), environment, alone=hashes(words))
    if asks_torch(words, environment, sys.platform) and answers(TORCH_INDEX):
        environment["UV_TORCH_BACKEND"] = "auto"
    uv = Path(sys.executable).with_name("uv")
    return subprocess.run([uv, *words], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
