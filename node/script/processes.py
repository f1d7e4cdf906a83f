"""Which process of a user's script may be a member: the one that joined, not its forks, and no worker that imports the script."""

import multiprocessing
import os

from starling.gossip.errors import ConfigError


def refuse_workers() -> None:
    """Raises ConfigError: this process was spawned by multiprocessing and is importing the user's script again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError('a worker imports this script again: put it under `if __name__ == "__main__":`')


class Joined:
    """The process that joined a swarm, which made this."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def refuse_forks(self) -> None:
        """Raises ConfigError: this is another process, a fork."""
        if os.getpid() != self._process:
            raise ConfigError(
                "this process is a fork of the one that joined: train and call swarm.step() in the parent only"
            )
