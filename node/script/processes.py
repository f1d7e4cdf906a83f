"""Decide which process of a user's script may be a member: the one that joined, not its forks, no worker that imports it, and no
rank alone.
"""

import multiprocessing
import os

import torch.distributed as dist

from starling.gossip.errors import ConfigError


def refuse_workers() -> None:
    """Raise ConfigError: this process was spawned by multiprocessing and is importing the user's script again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError('a worker imports this script again: put it under `if __name__ == "__main__":`')


def refuse_ranks() -> None:
    """Raise ConfigError: this process is one of several ranks of a training, as `torchrun` starts them, and each would be a member."""
    if dist.is_available() and dist.is_initialized():
        rank, size = str(dist.get_rank()), str(dist.get_world_size())
    else:
        rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if size not in {"", "1"}:
        raise ConfigError(
            f"this is rank {rank} of {size}, which together are one member: in every rank make starling.integrations.distributed.Swarm "
            "instead, after torch.distributed.init_process_group()"
        )


class Joined:
    """The process that joined a swarm."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_elsewhere(self) -> bool:
        """Tell if this is another process, a fork."""
        return os.getpid() != self._process

    def refuse_forks(self) -> None:
        """Raise ConfigError: this is another process, a fork."""
        if self.is_elsewhere:
            raise ConfigError("this process is a fork of the one that joined: train and call swarm.step() in the parent only")
