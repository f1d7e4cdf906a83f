"""Common parts of these scripts: the command line, the swarm that they create or join, and their last line of output.

    FOLDER PART            create the swarm with the data of PART, 0 to 3, and write the invite next to FOLDER
    FOLDER PART --joins    join by that invite
    FOLDER PART --alone    no swarm: all data, and as many local steps in this one process

While a file `slow` exists next to FOLDER, steps take SLOW_S longer, so that others have time to start.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from starling.integrations import distributed
from starling.node.config.schema import OptimizerSection
from starling.node.engine import schedules

PARTS = 4
LOCAL = {"listen": "/ip4/127.0.0.1/tcp/0", "config": {"lan": False, "linger_s": 3}}
INVITE, SLOW, BEGUN = "invite", "slow", "begun"
SLOW_S = 0.2


class Alone:
    """Replaces a Swarm in a single process without others.

    Args:
        rounds: rounds of the run.
        local_steps: local steps of a round.
        rate: initial rate of the schedule.
    """

    def __init__(self, rounds, local_steps, rate):
        self._rounds, self._local_steps, self._done = rounds, local_steps, 0
        self._schedule = schedules.schedule(OptimizerSection(lr=rate), rounds)

    @property
    def finished(self):
        return self._done >= self._rounds * self._local_steps

    def lr(self):
        return self._schedule.at(self._done // self._local_steps)

    def epochs(self, loader):
        while not self.finished:
            for batch in loader:
                yield batch
                if self.finished:
                    return

    def step(self, loss=None):
        self._done += 1

    def close(self, **given):
        pass


class Given:
    """Parsed command line.

    Attributes:
        part: number of the data's part; None: all.
        alone: whether there is no swarm.
        steps: local steps of the run.
        seed: seed of the script's random numbers.
        other: further arguments.
    """

    def __init__(self, *, rounds, local_steps, **agreed):
        """Parse the command line; keyword arguments are for `starling.Swarm.create`."""
        parser = argparse.ArgumentParser()
        parser.add_argument("folder", type=Path)
        parser.add_argument("part", type=int)
        parser.add_argument("--joins", action="store_true")
        parser.add_argument("--alone", action="store_true")
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--quorum", type=int, default=3)
        parser.add_argument("other", nargs="*")
        self._asked = asked = parser.parse_intermixed_args()
        self.alone, self.seed, self.other, self.folder = asked.alone, asked.seed, asked.other, asked.folder
        self.part = None if asked.alone else asked.part
        self.steps = rounds * local_steps
        self._keys = {"rounds": rounds, "local_steps": local_steps, "quorum": asked.quorum, **agreed}
        self._first = 0
        torch.set_num_threads(1)
        torch.manual_seed(1000 * asked.seed + asked.part)

    def swarm(self, model, optimizer, **keys):
        """Create or join the swarm; of several ranks, each calls this."""
        if self.alone:
            rate = (optimizer[0] if isinstance(optimizer, list) else optimizer).param_groups[0]["lr"]
            return Alone(self._keys["rounds"], self._keys["local_steps"], rate)
        keys.update(model=model, optimizer=optimizer)
        invite = self.folder.with_name(INVITE)
        if self._asked.joins:
            made = distributed.join(self.folder, invite.read_text(), **keys, **LOCAL)
        else:
            made = distributed.create(self.folder, **self._keys, **keys, **LOCAL)
            if rank() == 0:
                fresh = invite.with_suffix(".new")
                fresh.write_text(made.invite())
                fresh.rename(invite)
        self._first = made.round
        if rank() == 0:
            sys.stdout.write(f"{BEGUN} {self._first}\n")
            sys.stdout.flush()
        return made

    def callbacks(self, kind):
        """Return a trainer's callbacks: one of this kind, or none."""
        return [] if self.alone else [kind(self.swarm)]

    def pause(self):
        """Wait before a local step, if that is requested."""
        if self.folder.with_name(SLOW).exists():
            time.sleep(SLOW_S)

    def say(self, figure):
        """Print the final figure of the model, and the round in which this process began."""
        if rank() == 0:
            sys.stdout.write(json.dumps({"figure": figure, "first": self._first}) + "\n")


def rank():
    """Return the rank of this process in a distributed training."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
