"""The internet: TCP, Noise and Yamux as libp2p speaks them. The only package that imports py-libp2p.

It imports `libp2p` part by part, without running its `__init__`, which loads every transport, discovery and relay: half a node's memory and
two thirds of its time to listening. Code that needs all of py-libp2p must not import this package. If the parts cannot be imported alone
(another version), the whole is loaded as usual.
"""

import importlib
import importlib.util
import sys

BARE = ("libp2p.relay", "libp2p.relay.circuit_v2", "libp2p.identity", "libp2p.identity.identify")
"""Packages of which only the messages are used."""


def _load() -> None:
    if "libp2p" in sys.modules:
        return
    spec = importlib.util.find_spec("libp2p")
    assert spec is not None, "a dependency of this package"
    sys.modules["libp2p"] = importlib.util.module_from_spec(spec)
    for package in BARE:
        if (inner := importlib.util.find_spec(package)) is not None:
            sys.modules[package] = importlib.util.module_from_spec(inner)
    try:
        importlib.import_module("libp2p.transport")  # imported first: parts of py-libp2p import one another in circles
    except ImportError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "libp2p"]:
            del sys.modules[name]


_load()

from starling.node.net.libp2p.host import Libp2pNetwork  # noqa: E402
from starling.node.net.libp2p.open_host import open_network  # noqa: E402

__all__ = ["Libp2pNetwork", "open_network"]
