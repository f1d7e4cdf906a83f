"""The internet: TCP, Noise and Yamux as libp2p speaks them. The only package that imports py-libp2p."""

from starling.node.net.libp2p import bare  # noqa: F401  before anything that imports libp2p
from starling.node.net.libp2p.host import Libp2pNetwork, open_network

__all__ = ["Libp2pNetwork", "open_network"]
