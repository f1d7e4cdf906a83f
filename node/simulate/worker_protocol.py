"""The words between the command line and a worker process: one JSON object a line, each way. Torch-free.

    Check(cells)     -> Checked, or Refused
    Run(cell)        -> Advanced … , then Ended, or Refused, or Failed

A worker does one thing at a time and ends when its standard input does, whatever it is doing.
"""

from __future__ import annotations

import msgspec

from starling.node.simulate.results import Outcome
from starling.node.simulate.schema import Scenario


class Word(msgspec.Struct, frozen=True):
    """Base of all words."""


class Check(Word, frozen=True, tag="check"):
    """Look whether these runs can be had, as far as needs torch."""

    scenarios: tuple[Scenario, ...]


class Run(Word, frozen=True, tag="run"):
    """Do one run. `cell` is its number, for the answers."""

    cell: int
    scenario: Scenario


class Checked(Word, frozen=True, tag="checked"):
    """They can."""


class Refused(Word, frozen=True, tag="refused"):
    """The settings are wrong: `line` is a ConfigError's."""

    line: str


class Failed(Word, frozen=True, tag="failed"):
    """It cannot go on, though the settings are not to blame."""

    line: str


class Advanced(Word, frozen=True, tag="advanced"):
    """So many rounds are done, and one line about it. Not said after every round."""

    cell: int
    round: int
    line: str


class Ended(Word, frozen=True, tag="ended"):
    """The run's outcome."""

    cell: int
    outcome: Outcome


Request = Check | Run
Reply = Checked | Refused | Failed | Advanced | Ended

_ENCODER = msgspec.json.Encoder()
_REQUESTS = msgspec.json.Decoder(Request)
_REPLIES = msgspec.json.Decoder(Reply)


def line(word: Request | Reply) -> bytes:
    """A whole line. JSON has no numbers for infinity: they become null, so what may be infinite must allow None."""
    return _ENCODER.encode(word) + b"\n"


def request(data: bytes) -> Request:
    """A line read by a worker. Both ends are one program: what cannot be read is a bug and raises msgspec.DecodeError."""
    word: Request = _REQUESTS.decode(data)
    return word


def reply(data: bytes) -> Reply:
    """A line read by the command line."""
    word: Reply = _REPLIES.decode(data)
    return word
