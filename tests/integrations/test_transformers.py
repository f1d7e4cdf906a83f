"""A Trainer as a member: training, evaluation, saving and resuming around the ends of rounds."""

import json
import math
import os
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'starling-swarm[transformers]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'starling-swarm[accelerate]'")

from starling.gossip.errors import ConfigError  # noqa: E402
from starling.integrations.transformers import SwarmCallback  # noqa: E402
from starling.node.script.swarm import Swarm  # noqa: E402
from tests.integrations.gpt import Recorder, flat, gpt, rows, trainer  # noqa: E402
from tests.integrations.nodes import Node, beside  # noqa: E402

pytestmark = [pytest.mark.slow]


@pytest.fixture(autouse=True)
def _beside(monkeypatch):
    beside(monkeypatch)


def gradient(model):
    """Return a gradient of a model (d,)."""
    row = {name: tensor[None] for name, tensor in rows(1)[0].items()}
    return torch.cat([each.reshape(-1) for each in torch.autograd.grad(model(**row).loss, list(model.parameters()))])


def saved(folder, step):
    """Return the parameters of a checkpoint (d,), in the model's order."""
    model = gpt()
    model.load_state_dict(load_file(folder / "out" / f"checkpoint-{step}" / "model.safetensors"), strict=False)
    return flat(model)


def test_rounds_are_counted_by_optimizer_steps_of_uneven_accumulation(tmp_path):
    """7 batches accumulated by 3 are 3 steps per epoch, of 3, 3 and 1 batches with differing numbers of labels."""
    model, before, after = gpt(), Recorder(), Recorder()
    with Node(tmp_path, model, rounds=3, steps=2) as node:
        trainer(tmp_path, model, before, SwarmCallback(tmp_path), after, gradient_accumulation_steps=3, max_steps=100).train()
    assert sorted(before.models) == [1, 2, 3, 4, 5, 6]
    for number in range(3):
        step = 2 * number + 2
        assert torch.equal(node.before[number], before.models[step])
        assert torch.equal(after.models[step], 0.5 * before.models[step])
    assert node.steps == 6


def test_the_swarm_s_end_ends_training_at_its_step(tmp_path):
    model = gpt()
    with Node(tmp_path, model, rounds=2, steps=3) as node:
        used = trainer(tmp_path, model, SwarmCallback(tmp_path), max_steps=100)
        used.train()
    assert used.state.global_step == 6
    assert torch.equal(flat(used.model), node.after[-1])


def test_the_mixed_model_is_evaluated_and_saved_at_a_round_s_end(tmp_path):
    class Evaluated(Recorder):
        def on_evaluate(self, args, state, control, **given):
            self.models[f"evaluated {state.global_step}"] = flat(given["model"])

    model, seen = gpt(), Evaluated()
    often = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    with Node(tmp_path, model) as node:
        used = trainer(tmp_path, model, seen, SwarmCallback(tmp_path), **often)
        used.train()
    losses = {each["step"]: each["eval_loss"] for each in used.state.log_history if "eval_loss" in each}
    for step in (2, 4, 6):
        mixed = node.after[step // 2 - 1]
        assert torch.equal(seen.models[f"evaluated {step}"], mixed)
        assert torch.equal(saved(tmp_path, step), mixed)
        assert not torch.equal(seen.models[step], mixed)
    assert torch.equal(saved(tmp_path, 5), seen.models[5])
    used.model.load_state_dict(load_file(tmp_path / "out" / "checkpoint-2" / "model.safetensors"), strict=False)
    assert used.evaluate()["eval_loss"] == losses[2]


@pytest.mark.parametrize(("optimizer", "mix"), [("adamw", "dsgd"), ("sgd", "pet"), ("adamw", "pet")])
@pytest.mark.parametrize("restores", [False, True])
def test_a_checkpoint_in_the_middle_of_a_round_is_resumed_with_the_same_bits(tmp_path, restores, optimizer, mix):
    """Also if the Trainer recreates other callbacks from its checkpoint, which is impossible for this one."""
    ends = []
    for place, stop in (("whole", 8), ("resumed", 3)):
        (tmp_path / place).mkdir()
        keys = {"save_strategy": "steps", "save_steps": 3, "restore_callback_states_from_checkpoint": restores}
        keys["optim"] = {"adamw": "adamw_torch"}.get(optimizer, optimizer)
        model = gpt()
        c = 8.0 * gradient(model) if optimizer == "sgd" else None  # a correction that local steps confirm in part
        with Node(tmp_path / place, model, rounds=4, steps=2, optimizer=optimizer, mix=mix, c=c) as node:
            trainer(tmp_path / place, model, SwarmCallback(tmp_path / place), max_steps=stop, **keys).train()
            if stop == 3:
                used = trainer(tmp_path / place, gpt(1), SwarmCallback(tmp_path / place), max_steps=8, **keys)
                used.train(resume_from_checkpoint=str(tmp_path / place / "out" / "checkpoint-3"))
                assert used.state.global_step == 8
        assert node.steps == 8
        ends.append(node.after)
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


@pytest.mark.parametrize("steps", [6, 5], ids=["at a round's end", "in the middle of a round"])
def test_a_best_model_loaded_at_the_end_is_not_sent_to_peers(tmp_path, steps):
    """It is loaded before the callback leaves; the node keeps the last mix."""
    model = gpt()
    often = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": steps == 6}
    with Node(tmp_path, model, rounds=3, steps=2) as node:
        callback = SwarmCallback(tmp_path)
        used = trainer(tmp_path, model, callback, learning_rate=1.0, max_steps=steps, **often, **best)
        used.train()
        if steps == 6:
            node.join()
        else:
            assert node.left()
        loaded = int(used.state.best_model_checkpoint.rpartition("-")[2])
        assert torch.equal(node.x, node.after[-1])
        assert torch.equal(flat(used.model), node.after[loaded // 2 - 1])
        assert len(node.after) == steps // 2
    assert loaded < len(node.after) * 2


class Corrections(Recorder):
    """Records what correction was subtracted from the clipped gradients of sgd's steps."""

    def __init__(self, rate):
        super().__init__()
        self.rate, self.taken = rate, []

    def on_pre_optimizer_step(self, args, state, control, **given):
        self.gradient = torch.cat([each.grad.reshape(-1).clone() for each in given["model"].parameters()])
        self.x = flat(given["model"])

    def on_optimizer_step(self, args, state, control, **given):
        self.taken.append(self.gradient - (self.x - flat(given["model"])) / self.rate)


def test_training_twice_corrects_each_step_once(tmp_path):
    """Both trainings use the same optimizer, so the first Swarm's hooks must be removed. A short c is applied in full."""
    model, rate = gpt(), 0.1
    c = 1e-4 * torch.randn(flat(model).numel(), generator=torch.Generator().manual_seed(3))
    seen = Corrections(rate)
    with Node(tmp_path, model, rounds=2, steps=3, optimizer="sgd", mix="pet", c=c) as node:
        used = trainer(tmp_path, model, seen, SwarmCallback(tmp_path), optim="sgd", learning_rate=rate, max_steps=3)
        used.train()
        first = used.optimizer.optimizer
        used.train()
        assert used.optimizer.optimizer is first
    assert node.steps == len(seen.taken) == 6
    for taken in seen.taken:
        torch.testing.assert_close(taken, c, atol=2e-5, rtol=0.0)


def test_a_swarm_that_has_already_finished_does_not_change_the_model(tmp_path):
    """A Trainer takes at least one step."""
    model = gpt()
    with Node(tmp_path, model, rounds=1, steps=2) as node:
        used = trainer(tmp_path, model, callback := SwarmCallback(tmp_path), max_steps=100)
        used.train()
        swarm = callback.swarm
        used.remove_callback(callback)
        swarm.load_state_dict = lambda place: None
        used.add_callback(SwarmCallback(lambda model, optimizer: swarm))
        used.train()
    assert used.state.global_step == 1
    assert torch.equal(flat(used.model), node.after[-1])


def test_training_that_ends_in_the_middle_of_a_round_leaves_the_swarm(tmp_path):
    model = gpt()
    with Node(tmp_path, model, rounds=3, steps=4) as node:
        trainer(tmp_path, model, SwarmCallback(tmp_path), max_steps=6).train()
        assert node.left()
    assert len(node.after) == 1


def test_after_an_interruption_training_resumes(tmp_path):
    """A Trainer does not report interruptions; the callback leaves when training starts again."""

    class Interrupts(Recorder):
        def on_step_begin(self, args, state, control, **given):
            if sorted(self.models) == [1, 2, 3]:
                self.models[4] = None
                raise KeyboardInterrupt

    model = gpt()
    with Node(tmp_path, model, rounds=3, steps=2) as node:
        used = trainer(tmp_path, model, Interrupts(), SwarmCallback(tmp_path), max_steps=100)
        with pytest.raises(KeyboardInterrupt):
            used.train()
        used.train()
    assert node.steps == 6
    assert torch.equal(flat(used.model), node.after[-1])


def test_vectors_that_are_not_finite_are_not_sent(tmp_path):
    """On a CPU the Trainer uses fp16 without a scaler, and would continue with a model without finite numbers."""
    model, calls = gpt(), []

    def infinite(_model, _inputs, output):
        calls.append(output)
        if len(calls) == 4:
            output.loss = output.loss * math.inf

    model.register_forward_hook(infinite)
    with Node(tmp_path, model, rounds=3, steps=2) as node:
        callback = SwarmCallback(tmp_path)
        used = trainer(tmp_path, model, callback, fp16=True)
        with pytest.raises(ConfigError, match="no longer finite since a step of round 1: it is not sent to peers"):
            used.train()
        callback.swarm.close()
        assert node.left()
    assert len(node.after) == 1
    assert torch.equal(node.x, node.after[0])


def test_evaluations_for_the_swarm_do_not_change_training(tmp_path):
    """`evaluate` may be the Trainer's own evaluation, of the mixed model."""
    ends = []
    for place in ("plain", "evaluates"):
        (tmp_path / place).mkdir()
        model = gpt()
        with Node(tmp_path / place, model, evaluates=place == "evaluates") as node:
            made = []
            callback = SwarmCallback(tmp_path / place, evaluate=lambda made=made: made[0].evaluate()["eval_loss"])
            made.append(used := trainer(tmp_path / place, model, callback))
            used.train()
        ends.append(flat(used.model))
    assert torch.equal(*ends)
    assert [figures.value for figures in node.figures] == [each["eval_loss"] for each in used.state.log_history if "eval_loss" in each]


def test_each_logged_loss_is_reported_once(tmp_path):
    """The callback runs before the log, so a loss is reported with the next step."""
    model = gpt()
    with Node(tmp_path, model, rounds=2, steps=2) as node:
        keys = {"logging_first_step": True, "logging_steps": 100}
        used = trainer(tmp_path, model, SwarmCallback(tmp_path), max_steps=4, **keys)
        used.train()
    (logged,) = (each["loss"] for each in used.state.log_history if "loss" in each)
    assert node.losses[0] == pytest.approx(logged, rel=1e-3)
    assert math.isnan(node.losses[1])


def test_a_member_begins_with_the_swarm_s_parameters(tmp_path):
    ends = []
    for place, own in (("equal", 0), ("other", 1)):
        with Node(tmp_path / place, gpt(), rounds=2, steps=2) as node:
            trainer(tmp_path / place, gpt(own), SwarmCallback(tmp_path / place)).train()
        ends.append(node.after)
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_callback_arguments_and_functions(monkeypatch, tmp_path):
    """Arguments are those of a Swarm; a function gets its arguments, the model and the optimizer by name."""
    asked, made = beside(monkeypatch), []

    def make(*given, **keys):
        made.append((given, keys))
        return Swarm(tmp_path / "function", **keys)

    for place, given, keys in (("arguments", (tmp_path / "arguments", "INVITE"), {"listen": "x"}), ("function", (partial(make, 1), 2), {})):
        (tmp_path / place).mkdir()
        model = gpt()
        with Node(tmp_path / place, model, rounds=1):
            trainer(tmp_path / place, model, SwarmCallback(*given, **keys)).train()
    assert asked[0] == (tmp_path / "arguments", "INVITE", "x", None)
    assert made[0][0] == (1, 2)
    assert set(made[0][1]) == {"model", "optimizer"}


def test_a_state_file_has_its_position_in_a_round(tmp_path):
    model = gpt()
    with Node(tmp_path, model, rounds=2, steps=2):
        trainer(tmp_path, model, SwarmCallback(tmp_path), max_steps=3, save_strategy="steps", save_steps=3).train()
    state = json.loads((tmp_path / "out" / "checkpoint-3" / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["starling.Swarm"].items() >= {("round", 1), ("steps", 1)}
