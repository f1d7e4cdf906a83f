"""Lightning's Trainer as a member: training, clipping, validation, saving and resuming around the ends of rounds."""

import math

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

lightning = pytest.importorskip("lightning", reason="needs lightning: pip install 'starling-swarm[lightning]'")

from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint  # noqa: E402

from starling.gossip.errors import ConfigError  # noqa: E402
from starling.gossip.mix.borne import correct, corrected, start  # noqa: E402
from starling.integrations.lightning import SwarmCallback  # noqa: E402
from starling.node.script.swarm import Swarm  # noqa: E402
from tests.integrations.nodes import Node, beside  # noqa: E402
from tests.node.script.loops import batches, flat, net  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning"),  # a warning of torch about how lightning iterates over batches
]
BATCHES = 4  # of an epoch


@pytest.fixture(autouse=True)
def _beside(monkeypatch):
    beside(monkeypatch)


class Fit(lightning.LightningModule):
    """A net that fits batches with AdamW or SGD."""

    def __init__(self, rate=0.05, kind=torch.optim.AdamW):
        super().__init__()
        self.net, self.rate, self.kind, self.real = net(), rate, kind, 0

    def training_step(self, batch, index):
        self.real += 1
        return mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("off", mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return self.kind(self.parameters(), lr=self.rate)


class Recorder(Callback):
    """Records the parameters after each batch."""

    def __init__(self):
        self.models = []

    def on_train_batch_end(self, trainer, module, *given):
        self.models.append(flat(module))


def made(count=BATCHES):
    data = TensorDataset(*(torch.cat(each) for each in zip(*batches(count), strict=True)))
    return DataLoader(data, batch_size=8)


def fit(folder, module, *callbacks, path=None, validates=False, loader=None, **keys):
    saves = any(isinstance(each, ModelCheckpoint) for each in callbacks)
    trainer = lightning.Trainer(
        **{
            "accelerator": "cpu",
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "max_epochs": 2,
            "enable_checkpointing": saves,
            "callbacks": [*callbacks],
            "default_root_dir": str(folder),
            "num_sanity_val_steps": 0,
        }
        | keys
    )
    trainer.fit(module, loader or made(), made(1) if validates else None, ckpt_path=path)
    return trainer


def test_the_swarm_s_end_ends_training_at_its_step(tmp_path):
    module, before, after = Fit(), Recorder(), Recorder()
    with Node(tmp_path, module, rounds=3, steps=2) as node:
        trainer = fit(tmp_path, module, before, SwarmCallback(tmp_path), after, max_epochs=100)
    assert trainer.global_step == 6
    for number in range(3):
        last = 2 * number + 1
        assert torch.equal(node.before[number], before.models[last])
        assert torch.equal(after.models[last], 0.5 * before.models[last])
    assert torch.equal(flat(module), node.after[-1])


def test_the_swarm_s_end_ends_training_in_the_first_epoch_too(tmp_path):
    module = Fit()
    with Node(tmp_path, module, rounds=1, steps=2):
        assert fit(tmp_path, module, SwarmCallback(tmp_path)).global_step == 2


def test_training_can_be_set_to_continue_after_the_swarm_s_end(tmp_path):
    module = Fit()
    with Node(tmp_path, module, rounds=1, steps=2) as node:
        trainer = fit(tmp_path, module, SwarmCallback(tmp_path), min_epochs=1, max_epochs=100)
    assert (trainer.global_step, node.steps) == (BATCHES, 2)


def test_a_member_begins_with_the_swarm_s_parameters(tmp_path):
    ends = []
    for place, own in (("equal", 0), ("other", 1)):
        module = Fit(kind=torch.optim.SGD)
        with Node(tmp_path / place, module, rounds=2, steps=2) as node:
            module.net.load_state_dict(net(own).state_dict())
            fit(tmp_path / place, module, SwarmCallback(tmp_path / place))
        ends.append(node.after)
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_a_swarm_that_has_already_finished_does_not_change_the_model(tmp_path):
    module = Fit()
    with Node(tmp_path, module, rounds=1, steps=2) as node:
        fit(tmp_path, module, callback := SwarmCallback(tmp_path))
    again = fit(tmp_path, module, SwarmCallback(lambda model, optimizer: callback.swarm))
    assert again.global_step == 0
    assert torch.equal(flat(module), node.after[-1])


def by_hand(c, steps, rate, clip):
    """Return a net after `steps` steps of SGD, whose gradients are clipped and then corrected by c (d,)."""
    model = net()
    state = corrected(start(flat(model)), c)
    optimizer = torch.optim.SGD(model.parameters(), rate)
    for batch in list(batches(BATCHES))[:steps]:
        mse_loss(model(batch[0]), batch[1]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        g, state = correct(state, torch.cat([each.grad.reshape(-1) for each in model.parameters()]))
        for each, part in zip(model.parameters(), g.split([each.numel() for each in model.parameters()]), strict=True):
            each.grad.copy_(part.view_as(each))
        optimizer.step()
        optimizer.zero_grad()
    return flat(model)


def test_gradients_are_corrected_after_they_were_clipped(tmp_path):
    """The bits equal those by hand: a hook before the clipping, as Lightning has it, would clip c too."""
    module = Fit(0.1, torch.optim.SGD)
    c = 0.01 * torch.randn(flat(module).numel(), generator=torch.Generator().manual_seed(0))
    with Node(tmp_path, module, rounds=1, steps=3, optimizer="sgd", mix="pet", c=c) as node:
        fit(tmp_path, module, SwarmCallback(tmp_path), gradient_clip_val=0.05)
    assert torch.equal(node.before[0], by_hand(c, 3, 0.1, 0.05))
    assert not torch.equal(node.before[0], by_hand(0.0 * c, 3, 0.1, 0.05))


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_batches_without_a_loss_do_not_count_as_local_steps(tmp_path):
    """Lightning counts them as steps of the optimizer."""

    class Skips(Fit):
        def training_step(self, batch, index):
            return None if index % 2 else super().training_step(batch, index)

    module = Skips()
    with Node(tmp_path, module, rounds=1, steps=3) as node:
        trainer = fit(tmp_path, module, SwarmCallback(tmp_path), max_epochs=100)
    assert node.steps == module.real == 3
    assert trainer.global_step == 5


@pytest.mark.filterwarnings("ignore:train_dataloader yielded None")
def test_batches_that_are_none_do_not_count_as_local_steps(tmp_path):
    module, data = Fit(), list(batches(BATCHES))
    with Node(tmp_path, module, rounds=1, steps=3) as node:
        loader = DataLoader([data[0], None, *data[1:]], batch_size=None)
        fit(tmp_path, module, SwarmCallback(tmp_path), loader=loader, max_epochs=100)
    assert node.steps == module.real == 3


def test_accumulated_batches_are_one_local_step_with_their_mean_loss(tmp_path):
    module, losses = Fit(0.0), []
    with Node(tmp_path, module, rounds=2, steps=1) as node:
        trainer = fit(tmp_path, module, SwarmCallback(tmp_path), accumulate_grad_batches=2, max_epochs=100)
    with torch.no_grad():
        losses = [float(mse_loss(net()(x), y)) for x, y in list(batches(BATCHES))[1::2]]
    assert trainer.global_step == node.steps == 2
    assert node.losses[0] == pytest.approx(losses[0])


def test_two_manually_stepped_optimizers_form_one_vector(tmp_path):
    class Two(Fit):
        def __init__(self):
            super().__init__()
            self.other, self.automatic_optimization = net(1, 6), False

        def training_step(self, batch, index):
            for each, optimizer in zip((self.net, self.other), self.optimizers(), strict=True):
                optimizer.zero_grad()
                self.manual_backward(mse_loss(each(batch[0]), batch[1]))
                optimizer.step()

        def configure_optimizers(self):
            return [torch.optim.AdamW(each.parameters()) for each in (self.net, self.other)]

    module, before = Two(), Recorder()
    with Node(tmp_path, module, rounds=2, steps=3) as node:
        trainer = fit(tmp_path, module, before, SwarmCallback(tmp_path), max_epochs=100)
    assert (trainer.global_step, node.steps) == (12, 6)
    assert torch.equal(node.before[1], before.models[5])


def test_early_stopping_leaves_the_swarm(tmp_path):
    module = Fit(rate=0.0)
    with Node(tmp_path, module, rounds=100, steps=3) as node:
        stops = EarlyStopping("off", patience=1, mode="max", check_finite=True, stopping_threshold=-1.0)
        callback = SwarmCallback(tmp_path)
        trainer = fit(tmp_path, module, callback, stops, validates=True, max_epochs=100)
        assert node.left()
    assert trainer.global_step == BATCHES
    assert len(node.after) == 1
    assert not callback.swarm.finished


def test_an_exception_leaves_the_swarm(tmp_path):
    class Fails(Fit):
        def training_step(self, batch, index):
            if index == 1:
                raise ZeroDivisionError
            return super().training_step(batch, index)

    module = Fails()
    with Node(tmp_path, module) as node:
        with pytest.raises(ZeroDivisionError):
            fit(tmp_path, module, SwarmCallback(tmp_path))
        assert node.left()


@pytest.mark.filterwarnings("ignore:.*AMP with fp16 is not supported on CPU:UserWarning")
def test_vectors_that_are_not_finite_are_not_sent(tmp_path):
    """On a CPU Lightning uses bfloat16 without a scaler, so such a step is not skipped."""

    class Infinite(Fit):
        def training_step(self, batch, index):
            loss = super().training_step(batch, index)
            return loss * math.inf if index == 2 else loss

    module = Infinite()
    with Node(tmp_path, module, steps=2) as node:
        with pytest.raises(ConfigError, match="no longer finite since a step of round 1: it is not sent to peers"):
            fit(tmp_path, module, SwarmCallback(tmp_path), precision="16-mixed")
        assert node.left()
    assert len(node.after) == 1
    assert torch.equal(node.x, node.after[0])


@pytest.mark.parametrize("first", [True, False], ids=["before ModelCheckpoint", "after it"])
def test_checkpoints_and_validations_at_a_round_s_end_are_of_the_mixed_model(tmp_path, first):
    class Validated(Recorder):
        def on_validation_end(self, trainer, module):
            self.models.append(flat(module))

        def on_train_batch_end(self, trainer, module, *given):
            pass

    module, seen = Fit(), Validated()
    saves = ModelCheckpoint(dirpath=tmp_path / "saved", every_n_train_steps=2, save_top_k=-1, filename="{step}")
    ours = SwarmCallback(tmp_path)
    with Node(tmp_path, module, rounds=2, steps=2) as node:
        order = (ours, saves) if first else (saves, ours)
        fit(tmp_path, module, *order, seen, validates=True, val_check_interval=2)
    for number in range(2):
        state = torch.load(tmp_path / "saved" / f"step={2 * number + 2}.ckpt", weights_only=True)["state_dict"]
        assert torch.equal(torch.cat([each.reshape(-1) for each in state.values()]), node.after[number])
        assert torch.equal(seen.models[number], node.after[number])


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_checkpoint_in_the_middle_of_a_round_is_resumed_with_the_same_bits(tmp_path):
    """The checkpoint is at an epoch's end, since Lightning restarts an epoch that was interrupted."""
    ends = []
    for place in ("whole", "resumed"):
        (folder := tmp_path / place).mkdir()
        module = Fit()
        saves = {"dirpath": folder / "saved", "every_n_train_steps": BATCHES, "save_top_k": -1, "filename": "{step}"}
        with Node(folder, module, rounds=2, steps=3) as node:
            if place == "resumed":
                fit(folder, module, SwarmCallback(folder), ModelCheckpoint(**saves), max_epochs=1)
                module, path = Fit(1.0), folder / "saved" / f"step={BATCHES}.ckpt"
                fit(folder, module, SwarmCallback(folder), path=path)
            else:
                fit(folder, module, SwarmCallback(folder), ModelCheckpoint(**saves))
        assert node.steps == 6
        ends.append(node.after)
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_a_checkpoint_s_position_applies_to_the_training_that_loads_it(tmp_path, monkeypatch):
    module, places = Fit(), []
    monkeypatch.setattr(Swarm, "load_state_dict", lambda swarm, place: places.append(place))
    callback = SwarmCallback(tmp_path)
    callback.load_state_dict({"round": 7, "steps": 1})
    with Node(tmp_path, module, rounds=2, steps=3):
        for _ in range(2):
            fit(tmp_path, module, callback, max_epochs=1)
    assert places == [{"round": 7, "steps": 1}]


def test_training_twice_corrects_each_step_once(tmp_path):
    module = Fit(0.1, torch.optim.SGD)
    c = 0.01 * torch.randn(flat(module).numel(), generator=torch.Generator().manual_seed(0))
    with Node(tmp_path, module, rounds=1, steps=3, optimizer="sgd", mix="pet", c=c) as node:
        callback = SwarmCallback(tmp_path)
        fit(tmp_path, module, callback, gradient_clip_val=0.05, max_steps=0)
        fit(tmp_path, module, callback, gradient_clip_val=0.05)
    assert torch.equal(node.before[0], by_hand(c, 3, 0.1, 0.05))
