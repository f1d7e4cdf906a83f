"""Unmodified Lightning modules: a node calls their hooks as the real Trainer does, and refuses by name what it would ignore."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import starling
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.node.engine.measured_model import MeasuredModel
from starling.node.rpc import calls
from starling.node.tasks.adapters import hooks
from starling.node.tasks.api import Metered, Stepped
from starling.node.tasks.evaluate import evaluate
from tests.harness.engines import done, manifest, opened
from tests.harness.tasks import built_in

lightning = pytest.importorskip("lightning", reason="needs lightning: pip install 'starling-swarm[lightning]'")
torchmetrics = pytest.importorskip("torchmetrics")
pytestmark = pytest.mark.slow  # the library alone takes seconds to import

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(50, 4, generator=GENERATOR)
Y = (X[:, 0] + 0.3 * torch.randn(50, generator=GENERATOR) > 0).long()
TEST = torch.randn(22, 4, generator=GENERATOR), torch.arange(22) % 2


class Net(lightning.LightningModule):
    """The base of all modules here."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(3))

    def cost(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch, batch_idx):
        return self.cost(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.cost(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return DataLoader(TensorDataset(X, Y), batch_size=10)

    def val_dataloader(self):
        return DataLoader(TensorDataset(*TEST), batch_size=8)


def trained(task, steps, *, size=10, parts=1, model=None, first=0):
    """Return a model after a node's local steps, through the task's own methods."""
    model = model or task.model(generator(1, "model"))
    data = task.data(built_in(), "cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(first, first + steps):
        model.train()
        optimizer.zero_grad()
        task.begin_step(model, step, size)
        batch = data.batch(size, generator(step, "batch"))
        losses = [task.loss(model, tuple(each[begin : begin + size // parts] for each in batch)) for begin in range(0, size, size // parts)]
        losses = [loss for loss in losses if loss is not None]
        for loss in losses:
            (loss / parts).backward()
        if losses:
            task.gradient_ready(model)
            optimizer.step()
        task.end_step(model)
    return model


def measured(task, model, size=8):
    """Return the figures that a node measures; the model does not change."""
    *_, result = MeasuredModel(model).slices(evaluate(task, model, task.data(built_in(), "cpu"), size))
    return result


def real(module, *, validate=False, **settings):
    """Return Lightning's own Trainer after its run."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(accelerator="cpu", num_sanity_val_steps=0, **quiet, **settings)
        if validate:
            trainer.validate(module, verbose=False)
        else:
            trainer.fit(module)
    return trainer


# Which hooks are called, and in which order


def recording(events, **own):
    """Return a module that records each hook called, with global_step, epoch, batch index and phase."""

    def noting(name, then):
        def hook(self, *given, **named):
            index = next((each for each in given[1:] if isinstance(each, int)), None) if "transfer" not in name else None
            trainer = self.trainer
            events.append((name, trainer.global_step, trainer.current_epoch, index, trainer.training, trainer.validating))
            return then(self, *given, **named)

        return hook

    names = [*hooks.AROUND_STEPS, *hooks.AROUND_VALIDATION, *hooks.TRANSFERS, "training_step", "validation_step"]
    return type("Recorded", (Net,), {name: noting(name, own.get(name, getattr(Net, name))) for name in names})


def skipping(self, batch, batch_idx):
    return None if batch_idx == 2 else Net.training_step(self, batch, batch_idx)


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"training_step": skipping},
        {"on_train_batch_start": lambda self, batch, index: -1 if index == 3 else None},
        {"training_step": lambda self, batch, batch_idx: {"loss": self.cost(batch), "more": 1}},
    ],
    ids=["plain", "None for a batch", "the rest of an epoch is left out", "a dict"],
)
def test_hooks_are_called_in_the_order_of_the_real_trainer(own):
    """With the same global_step, current_epoch, batch_idx and phase.

    Two differences: a node takes no optimiser step without a loss, and counts a step that on_train_batch_start skips.
    """
    theirs, ours = [], []
    real(recording(theirs, **own)(), max_epochs=2, limit_val_batches=0)
    trained(starling.adapters.lightning(recording(ours, **own)), 2 * (4 if "on_train_batch_start" in own else 5))
    if "on_train_batch_start" in own:
        theirs, ours = ([(each[0], *each[2:]) for each in events] for events in (theirs, ours))
    if own.get("training_step") is skipping:
        without = [at for at, each in enumerate(theirs) if each[0] == "training_step" and each[3] == 2]
        theirs = [each for at, each in enumerate(theirs) if at - 2 not in without]
        assert len(without) == 2
    assert ours == theirs


def test_an_evaluation_calls_the_hooks_of_the_real_trainer():
    theirs, ours = [], []
    real(recording(theirs)(), max_epochs=1)
    names = [event[0] for event in theirs]
    theirs = theirs[names.index("on_validation_start") : names.index("on_validation_end") + 1]
    task = starling.adapters.lightning(recording(ours))
    model = trained(task, 5)
    ours.clear()
    measured(task, model)
    assert [(each[0], *each[3:]) for each in ours] == [(each[0], *each[3:]) for each in theirs]
    assert {each[1] for each in ours} == {5}


def test_a_batch_in_parts_has_the_hooks_of_a_batch_for_each_and_one_step():
    events = []
    trained(starling.adapters.lightning(recording(events)), 1, parts=2)
    names = [event[0] for event in events if event[0] in hooks.AROUND_STEPS]
    part = ["on_train_batch_start", "on_before_backward", "on_train_batch_end"]
    assert names == [
        "on_fit_start",
        "on_train_start",
        "on_train_epoch_start",
        "on_train_batch_start",
        "on_before_zero_grad",
        "on_before_backward",
        "on_train_batch_end",
        *part[:2],
        "on_after_backward",
        "on_before_optimizer_step",
        "on_train_batch_end",
    ]


def test_every_name_that_lightning_gives_a_module_is_called_or_harmless_or_refused():
    """A hook of a later Lightning version fails here, and is refused until it is handled."""
    for kind in (lightning.LightningModule, lightning.LightningDataModule):
        for name in hooks.library_names(kind):
            known = [name in each for each in (hooks.CALLED, hooks.HARMLESS, hooks.REFUSED | hooks.OF_DATA_MODULES)]
            assert sum(known) == 1, name


@pytest.mark.parametrize("name", sorted(hooks.REFUSED))
def test_a_hook_that_no_node_calls_is_refused_by_name(name):
    module = type("Own", (Net,), {name: lambda self, *_, **__: 1})
    with pytest.raises(ConfigError, match=rf"module: Own.{name} is not called by a node: .+; remove it"):
        starling.adapters.lightning(module)


def test_hooks_of_instances_and_base_classes_are_refused_unless_empty():
    def assigned():
        module = Net()
        module.optimizer_step = lambda *_: module.zero_grad()
        return module

    class Base(Net):
        def on_train_end(self):
            self.seen += 1

    class Empty(Net):
        def teardown(self, stage):
            """Do nothing."""

        def on_train_end(self):
            pass

    for made in (assigned, type("Derived", (Base,), {})):
        with pytest.raises(ConfigError, match="is not called by a node"):
            starling.adapters.lightning(made)
    starling.adapters.lightning(Empty)


@pytest.mark.parametrize("name", sorted({"teardown", *hooks.OF_DATA_MODULES}))
def test_hooks_of_a_data_module_are_refused_by_name(name):
    own = type("Own", (lightning.LightningDataModule,), {name: lambda self, *_: {"a": 1}, "train_dataloader": Net.train_dataloader})
    with pytest.raises(ConfigError, match=f"Own.{name} is not called by a node"):
        starling.adapters.lightning(Net, own())


def scheduled(module):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"configure_optimizers": scheduled}, "configure_optimizers: returns a tuple, .*optimizer.schedule"),
        (
            {"configure_optimizers": lambda self: [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]},
            "configure_optimizers: returns a list, a manifest can express one optimiser",
        ),
        ({"training_step": lambda self, dataloader_iter: None}, "takes a dataloader_iter"),
        ({"validation_step": nn.Module.forward}, "has no validation_step"),
        ({"train_dataloader": lambda self: [1, 2]}, "train_dataloader: returns several loaders"),
        ({"val_dataloader": lambda self: {"a": 1}}, "val_dataloader: returns several loaders"),
        ({"setup": lambda self, stage: setattr(self, "automatic_optimization", False)}, "manual optimisation"),
    ],
)
def test_trainer_features_that_a_node_lacks_are_refused(own, said):
    module = type("Own", (Net,), own)
    if "validation_step" in own:
        module = type("Own", (lightning.LightningModule,), {"training_step": Net.training_step})
    with pytest.raises(ConfigError, match=said):
        starling.adapters.lightning(module)


def test_missing_attributes_of_the_trainer_are_refused_where_used():
    model = trained(starling.adapters.lightning(Net), 1)
    with pytest.raises(AttributeError, match=r"trainer\.max_epochs: there is no Trainer on a node"):
        model.trainer.max_epochs  # noqa: B018
    with pytest.raises(AttributeError, match=r"trainer\.should_stop: a node trains until"):
        model.trainer.should_stop = True
    with pytest.raises(AttributeError):
        model.trainer.limit_val_batches = 1
    with pytest.raises(AttributeError, match="_lightning_optimizers: there is no Trainer"):
        model.optimizers()
    assert model.trainer.is_global_zero
    assert model.trainer.world_size == 1
    assert torch.equal(model.all_gather(torch.ones(2)), torch.ones(2))
    model.print("")


# Steps and epochs


def test_global_step_rises_in_training_and_is_available_in_an_evaluation():
    class Steps(Net):
        def training_step(self, batch):
            self.seen[0] = self.global_step
            return self.cost(batch)

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.cost(batch))
            self.log("step", float(self.global_step))

    task = starling.adapters.lightning(Steps)
    assert isinstance(task, Stepped)
    assert isinstance(task, Metered)
    model = trained(task, 7)
    assert float(model.seen[0]) == 6
    assert measured(task, model).others["step"] == 7


def test_a_resumed_node_continues_global_step_and_epoch():
    task = starling.adapters.lightning(Net)
    model = trained(task, 1, first=13)
    assert (model.global_step, model.current_epoch) == (14, 2)
    trained(task, 2, first=14, model=model)
    assert (model.global_step, model.current_epoch) == (16, 3)


def test_a_weight_that_follows_the_epoch_is_the_same_in_training_and_evaluation():
    """Numbers that hooks store in attributes are those at the moment of the evaluation."""

    class Annealed(Net):
        weight = 0.0

        def on_train_epoch_start(self):
            self.weight = 0.5**self.current_epoch
            self.net.scale = self.weight

        def training_step(self, batch, batch_idx):
            self.seen[0] = self.weight
            return self.weight * self.cost(batch)

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.cost(batch))
            self.log_dict({"weight": self.weight, "scale": self.net.scale})

    task = starling.adapters.lightning(Annealed)
    model = trained(task, 12)
    assert float(model.seen[0]) == 0.25
    assert measured(task, model).others == {"weight": 0.25, "scale": 0.25, "val_loss": pytest.approx(measured(task, model).loss)}


def test_losses_computed_outside_steps_have_no_side_effects():
    """Robust rules compare losses and statistics are estimated: neither is a step of the module."""

    class Counts(Net):
        def __init__(self):
            super().__init__()
            self.acc = torchmetrics.Accuracy(task="multiclass", num_classes=2)
            self.several = torchmetrics.MetricCollection([torchmetrics.CatMetric()])

        def training_step(self, batch, batch_idx):
            self.seen[0] += 1
            self.acc.update(self.net(batch[0]), batch[1])
            self.several.update(batch[1].float())
            self.log("train_acc", self.acc)
            return self.cost(batch)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.seen[1] += 1

    task = starling.adapters.lightning(Counts)
    model = trained(task, 3)
    before = [each.clone() for each in model.acc.metric_state.values()]
    with torch.no_grad():
        loss = task.loss(model, (X, Y))
    assert loss == model.cost((X, Y))
    assert model.seen.tolist() == [3, 3, 0]
    assert all(torch.equal(one, other) for one, other in zip(before, model.acc.metric_state.values(), strict=True))
    assert len(model.several["CatMetric"].value) == 3
    assert float(model.trainer.callback_metrics["train_acc"]) == float(model.acc.compute())


# Hooks that change training


def test_an_average_of_weights_after_each_batch_sees_the_weights_after_the_step():
    class Averaged(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("average", torch.zeros(2, 4))

        def on_train_batch_end(self, outputs, batch, batch_idx):
            assert outputs["loss"].requires_grad is False
            self.average += self.net.weight.detach()

    task = starling.adapters.lightning(Averaged)
    model, total = None, torch.zeros(2, 4)
    for step in range(4):
        model = trained(task, 1, model=model, first=step)
        total += model.net.weight.detach()
    assert torch.equal(model.average, total)


def test_a_gradient_changed_by_a_hook_is_used_for_the_step():
    class Halved(Net):
        def on_after_backward(self):
            self.net.bias.grad.zero_()

        def on_before_optimizer_step(self, optimizer):
            self.log("norm", self.net.bias.grad.norm())

    task = starling.adapters.lightning(Halved)
    before = task.model(generator(1, "model"))
    model = trained(task, 3)
    assert torch.equal(before.net.bias, model.net.bias)
    assert not torch.equal(before.net.weight, model.net.weight)
    assert float(model.trainer.callback_metrics["norm"]) == 0.0


def test_hooks_that_request_the_optimiser_are_refused_by_name():
    class Curious(Net):
        def on_before_zero_grad(self, optimizer):
            self.lr = optimizer.param_groups[0]["lr"]

    with pytest.raises(AttributeError, match=r"optimizer\.param_groups: the swarm's optimiser"):
        trained(starling.adapters.lightning(Curious), 1)


# Batches on their way to the device


def test_transfer_hooks_are_called_in_training_and_evaluation():
    class Scaled(Net):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            return [batch[0] * 10, batch[1]]

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch[0] * 10, batch[1]

        def training_step(self, batch, batch_idx):
            self.seen[0] = batch[0].abs().mean()
            return self.cost(batch)

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.cost(batch))
            self.log("size", batch[0].abs().mean())

    task = starling.adapters.lightning(Scaled)
    model = trained(task, 1)
    assert float(model.seen[0]) > 50
    assert measured(task, model).others["size"] == pytest.approx(100 * float(TEST[0].abs().mean()), rel=1e-4)


def test_a_data_module_s_transfers_come_before_the_module_s_and_know_the_phase():
    class Data(lightning.LightningDataModule):
        train_dataloader, val_dataloader = Net.train_dataloader, Net.val_dataloader

        def prepare_data(self):
            self.prepared = True

        def setup(self, stage):
            assert self.prepared
            self.classes = 2

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch[0] * (10 if self.trainer.training else 1), batch[1]

    class Sized(Net):
        def setup(self, stage):
            assert stage == "fit"
            self.net = nn.Linear(4, self.trainer.datamodule.classes)

        def on_after_batch_transfer(self, batch, dataloader_idx):
            raise AssertionError

        def training_step(self, batch, batch_idx):
            self.seen[0] = batch[0].abs().mean()
            return self.cost(batch)

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.cost(batch))
            self.log("size", batch[0].abs().mean())

    task = starling.adapters.lightning(Sized, Data())
    model = trained(task, 1)
    assert float(model.seen[0]) > 4
    assert measured(task, model).others["size"] == pytest.approx(float(TEST[0].abs().mean()), rel=1e-4)


def test_a_module_moves_batches_of_its_own_kind():
    class Moved(Net):
        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            assert device == self.device
            return {"x": batch[0].to(device), "y": batch[1].to(device)}

        def cost(self, batch):
            return nn.functional.cross_entropy(self.net(batch["x"]), batch["y"])

    task = starling.adapters.lightning(Moved)
    assert measured(task, trained(task, 1)).samples == 22


# What is logged


class Logs(Net):
    """Logs in every way that Lightning offers."""

    def __init__(self):
        super().__init__()
        self.acc = torchmetrics.Accuracy(task="multiclass", num_classes=2)
        self.auroc = torchmetrics.AUROC(task="binary")
        self.several = torchmetrics.MetricCollection([torchmetrics.F1Score(task="multiclass", num_classes=2)], prefix="val_")
        self.kept = []

    def training_step(self, batch, batch_idx):
        output = self.net(batch[0])
        self.acc(output, batch[1])
        self.auroc(output.softmax(-1)[:, 1], batch[1])
        self.several(output, batch[1])
        self.log("train_acc", self.acc, on_epoch=True)
        self.log("train_loss", self.cost(batch))
        return self.cost(batch)

    def on_validation_epoch_start(self):
        self.log("begun", 1.0)

    def validation_step(self, batch, batch_idx):
        output, loss = self.net(batch[0]), self.cost(batch)
        self.log("val_acc", self.acc, on_step=True, on_epoch=True)
        self.acc(output, batch[1])
        self.auroc.update(output.softmax(-1)[:, 1], batch[1])
        self.log("val_auroc", self.auroc)
        self.log_dict(self.several)
        self.several.update(output, batch[1])
        self.log("val_loss", loss)
        self.log("largest", loss, reduce_fx="max")
        self.log("least", loss, reduce_fx=torch.min)
        self.log("rows", len(batch[1]), reduce_fx="sum")
        self.log("weighted", loss, batch_size=1)
        self.log("for_steps", loss, on_step=True, on_epoch=False)
        self.kept.append(output)
        return loss

    def on_validation_batch_end(self, outputs, batch, batch_idx, dataloader_idx=0):
        self.log("outputs", outputs * 2)

    def on_validation_epoch_end(self):
        self.log("spread", torch.cat(self.kept).std())
        self.log("same", self.trainer.callback_metrics["val_loss"])
        self.kept.clear()


@pytest.mark.filterwarnings("ignore:.*needs to be floating:UserWarning")
def test_figures_of_an_evaluation_are_those_of_the_real_trainer():
    """Means weighted by batch size, with a smaller last batch; metric objects over all samples; figures of the whole epoch."""
    task = starling.adapters.lightning(Logs, metric="val_acc", higher_is_better=True)
    model = trained(task, 3)
    result = measured(task, model)
    module = Logs()
    module.load_state_dict(model.state_dict())
    theirs = {name: float(value) for name, value in real(module, validate=True).callback_metrics.items()}
    theirs = {name.removesuffix("_epoch"): value for name, value in theirs.items()}
    assert {"val_acc": result.value, **result.others} == pytest.approx(theirs, rel=1e-6)
    assert result.samples == 22
    assert result.loss == pytest.approx(theirs["val_loss"])
    assert measured(task, model) == result


def test_training_and_evaluation_do_not_share_metric_objects():
    """Counts of training_step do not enter a concurrent evaluation, nor does an evaluation lose them."""
    task = starling.adapters.lightning(Logs, metric="val_auroc", higher_is_better=True)
    model = trained(task, 1)
    expected = measured(task, model)
    other = trained(starling.adapters.lightning(Logs), 1)
    slices = MeasuredModel(model).slices(evaluate(task, model, task.data(built_in(), "cpu"), 8))
    for at, result in enumerate(slices, 1):  # noqa: B007 — the last one
        if at <= 3:
            trained(task, 1, model=model, first=at)
            trained(task, 1, model=other, first=at)
    assert result == expected
    assert model.acc.metric_state == other.acc.metric_state
    assert len(model.auroc.preds) == len(other.auroc.preds) == 4
    assert all(map(torch.equal, model.auroc.preds, other.auroc.preds))
    assert model.several.compute() == other.several.compute()
    assert "val_acc" not in vars(model)
    assert model.global_step == 4


def test_training_metrics_are_reset_each_epoch():
    """Otherwise metrics that store all outputs would fill the memory, and a figure would cover all epochs."""

    class Kept(Net):
        def __init__(self):
            super().__init__()
            self.outputs = torchmetrics.CatMetric()

        def training_step(self, batch, batch_idx):
            self.outputs.update(batch[1].float())
            self.log("largest", self.outputs.compute().max(), reduce_fx="max", on_epoch=True, on_step=False)
            self.log("train_outputs", self.outputs)
            return self.cost(batch)

    model = trained(starling.adapters.lightning(Kept), 5)
    assert not model.outputs.value


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda self, batch, i: self.log("a", torch.ones(2)), r"self.log\('a'\): must be one number or a metric object, got a tensor"),
        (lambda self, batch, i: self.log("a", "b"), "got a str"),
        (lambda self, batch, i: self.log("a", 1.0, reduce_fx="median"), "must be mean, sum, min or max, got 'median'"),
        (lambda self, batch, i: [self.log("a", 1.0, on_epoch=i) for i in (True, False)], "is called twice with other arguments"),
        (lambda self, batch, i: self.log("acc", 1.0), "must return the loss, or log it as val_loss"),
    ],
)
def test_unloggable_values_are_reported(step, said):
    task = starling.adapters.lightning(type("Wrong", (Net,), {"validation_step": step}))
    with pytest.raises(ConfigError, match=said):
        measured(task, task.model(generator(1, "model")))


def test_logging_where_lightning_forbids_it_is_refused():
    task = starling.adapters.lightning(type("Wrong", (Net,), {"on_fit_start": lambda self: self.log("a", 1.0)}))
    with pytest.raises(ConfigError, match=r"on_fit_start: self.log\('a'\) has no place here"):
        trained(task, 1)


@pytest.mark.parametrize("name", ["val_loss", "loss", "val/loss"])
def test_a_loss_that_is_only_logged_is_used(name):
    task = starling.adapters.lightning(type("Named", (Net,), {"validation_step": lambda self, batch, i: self.log(name, self.cost(batch))}))
    model = task.model(generator(1, "model"))
    with torch.no_grad():
        assert measured(task, model).loss == pytest.approx(float(model.cost(TEST)), rel=1e-5)


# Steps without a loss


def test_an_invalid_training_step_result_is_explained():
    for returned, said in ((1.0, "got float"), ({"los": 1}, "got a dict with los")):
        task = starling.adapters.lightning(type("Wrong", (Net,), {"training_step": lambda *_, it=returned: it}))
        with pytest.raises(ConfigError, match=said):
            trained(task, 1)


def test_steps_without_a_loss_are_counted_and_change_nothing():
    class Skips(Net):
        def training_step(self, batch, batch_idx):
            return None if self.global_step % 2 else self.cost(batch)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.seen[0] += 1
            self.seen[1] += not outputs

    model = trained(starling.adapters.lightning(Skips), 8)
    assert model.seen[:2].tolist() == [8, 4]
    assert model.global_step == 8


# In a node's engine


class Rare(Net):
    """Skips two of three batches."""

    def training_step(self, batch, batch_idx):
        self.seen[0] += 1
        return None if self.global_step % 3 else self.cost(batch)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen[1] += 1
        self.seen[2] = self.net.weight.detach().sum()


def rare() -> starling.Task:
    return starling.adapters.lightning(Rare)


@pytest.fixture
def engine():
    return opened(manifest(f"{__name__}:rare", nodes=1, mix="dsgd"))


def test_an_engine_s_steps_without_a_loss_are_counted_and_keep_state_set_by_hooks(engine):
    """A failed step resets buffers to those before it; a skipped one has not failed."""
    trained = done(engine, calls.Train(0, 7))
    module = engine.trainer.model.module
    assert trained.undone == 4
    assert module.seen.tolist() == [7, 7, pytest.approx(float(module.net.weight.detach().sum()))]
    assert module.global_step == 7


def test_an_engine_s_evaluation_does_not_change_the_training_module(engine):
    done(engine, calls.Train(0, 3))
    module = engine.trainer.model.module
    before = {name: each.clone() for name, each in module.state_dict().items()}
    first, second = (done(engine, calls.Evaluate()) for _ in range(2))
    assert first == second
    assert first.samples == 22
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())
    assert module.trainer.training
