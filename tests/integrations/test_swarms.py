"""Whole swarms of realistic training loops: four members with different data, one of which is killed and restarted, and one joins late.

The mean of the four members' figures is at most `within` worse than that of one process with all data and as many local steps.
"""

import importlib.util
import json
import sys
from dataclasses import dataclass

import pytest
import torch.distributed as dist

from tests.integrations.swarm_of_scripts import Run

pytestmark = [pytest.mark.acceptance, pytest.mark.real, pytest.mark.timeout(1800)]
KILLED = 1


@dataclass(frozen=True)
class Kind:
    """A kind of swarm.

    Attributes:
        members: arguments of each member; the second is killed, the last joins late.
        alone: arguments of the single process.
        rounds: number of rounds.
        within: how much worse the swarm's mean may be.
        apart: largest difference between members' figures.
        needs: required libraries.
        higher: whether higher figures are better.
    """

    members: tuple[str, str, str, str]
    alone: str
    within: float
    apart: float
    rounds: int = 150
    needs: tuple[str, ...] = ()
    higher: bool = True

    @property
    def ranks(self):
        """Return the number of processes of each member."""
        return tuple(2 if each.startswith("ranks") else 1 for each in self.members)


KINDS = {
    "plain": Kind(("plain",) * 4, "plain 0", 0.03, 0.02),
    "sgd": Kind(("plain sgd",) * 4, "plain 0 sgd", 0.03, 0.02),
    "lightning": Kind(("lightning_fit", "lightning_fit", "plain", "lightning_fit"), "plain 0", 0.03, 0.02, needs=("lightning",)),
    "accelerate": Kind(("accelerated", "accelerated", "plain", "accelerated"), "plain 0", 0.03, 0.02, needs=("accelerate",)),
    "ranks": Kind(("plain", "ranks fsdp", "ranks ddp", "plain"), "plain 0", 0.03, 0.02),
    "trainer_lora": Kind(
        ("lora_trainer", "lora_trainer", "lora_plain", "lora_trainer"),
        "lora_trainer 0",
        0.1,
        0.05,
        100,
        ("transformers", "peft", "accelerate"),
        higher=False,
    ),
    "sft_qlora": Kind(
        ("lora_sft quantised", "lora_sft quantised", "lora_sft whole", "lora_plain"),
        "lora_sft 0 quantised",
        0.1,
        0.05,
        100,
        ("trl", "peft", "bitsandbytes"),
        higher=False,
    ),
    "gan": Kind(("gan",) * 4, "gan 0", 0.03, 0.02, 400, higher=False),
    "gru": Kind(("gru",) * 4, "gru 0", 0.03, 0.02, 600),
    "graphs": Kind(("graphs",) * 4, "graphs 0", 0.1, 0.03, 600),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_swarm_reaches_what_one_process_with_all_data_reaches(tmp_path, name):
    kind = KINDS[name]
    for each in kind.needs:
        if importlib.util.find_spec(each) is None:
            pytest.skip(f"needs {each}")
    if max(kind.ranks) > 1 and not dist.is_gloo_available():
        pytest.skip("needs gloo")
    words = [each.split() for each in kind.members]
    run = Run(tmp_path, words, kills=KILLED, ranks=kind.ranks, alone=kind.alone.split())
    shown = {"swarm": name, "figures": run.figures, "alone": run.alone, "killed": run.reached, "began": run.began, "took_s": run.took_s}
    sys.stdout.write(json.dumps(shown) + "\n")
    assert run.rounds() == [("finished", kind.rounds)] * 4
    assert run.reached - 2 <= run.began[0]
    assert run.began[1] >= run.reached
    assert max(run.figures) - min(run.figures) <= kind.apart
    mean = sum(run.figures) / 4
    worse = run.alone - mean if kind.higher else mean - run.alone
    assert worse <= kind.within, (run.figures, run.alone)
