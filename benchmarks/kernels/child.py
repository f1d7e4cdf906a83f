"""The process that measures one case and prints it as JSON, for a parent that must not import torch."""

import sys
from collections.abc import Callable

import msgspec

from starling.gossip.errors import GossipError


def answer(measure: Callable[[], msgspec.Struct]) -> int:
    """Print what `measure` gives -> exit code: 0, 2 for what is not to be had with one line on standard error, 130 if interrupted."""
    try:
        case = measure()
    except GossipError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    sys.stdout.buffer.write(msgspec.json.encode(case))
    return 0
