"""Every exception Starling raises on purpose.

    GossipError
    ├── ConfigError           the person's input is wrong: names the key, the value and what is allowed
    ├── BreakdownExceeded     a robust rule was asked to survive more Byzantine peers than it can
    ├── LocalProtocolError    we broke our own protocol: a bug here
    ├── RemoteProtocolError   a peer broke the protocol: penalise it and go on
    ├── EngineError           the engine process died, hung or refused
    └── TransportError        the network did not do it
        └── PeerUnreachable   no connection could be made, or it broke

Constructors of algorithm objects raise ValueError; `starling.gossip.catalogue.construct` turns that into ConfigError.
"""

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str]) -> str:
    """Return the known name that an unknown one was probably meant to be, compared without case; "" if none is similar."""
    by_lower = {each.lower(): each for each in sorted(known)}
    similar = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[similar[0]] if similar else ""


class GossipError(Exception):
    """Root of all errors that this package raises on purpose."""


class ConfigError(GossipError):
    """Wrong user input. The message is one line: key, value, what is allowed, the next command to try."""


class BreakdownExceeded(GossipError):
    """More Byzantine peers requested than the rule's breakdown point allows."""


class LocalProtocolError(GossipError):
    """A bug on this side: an event that the state machine's own rules forbid."""


class _PeerError(GossipError):
    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(f"{peer}: {reason}")
        self.peer = peer
        self.reason = reason


class RemoteProtocolError(_PeerError):
    """A fault of `peer`; `reason` in short, stable, snake_case words: they are counted and shown."""


class EngineError(GossipError):
    """The engine process died, hung past its deadline or answered with an error.

    `place`: step and line of code that raised, "" if none. `refused`: it is for the owner to mend, and would come again.
    """

    def __init__(self, text: str, place: str = "", *, refused: bool = False) -> None:
        super().__init__(text)
        self.place, self.refused = place, refused


class TransportError(_PeerError):
    """The network did not carry a message to `peer`, an id or address, for a `reason` in a few words."""


class PeerUnreachable(TransportError):
    """No connection could be made, or it broke."""


class OtherVersion(PeerUnreachable):
    """The peer answers, but supports no common version of the protocol; `reason` says which of the two is older."""
