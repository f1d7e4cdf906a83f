"""Makes the trainer of a crew's stage, whose local steps are done by calls, from the call that opens an engine."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from msgspec import structs
from torch import nn

from starling.gossip.binding import obstacle
from starling.gossip.errors import ConfigError
from starling.node.config import consent
from starling.node.engine.local.gradient_source import Batch
from starling.node.engine.local.local_model import LocalModel
from starling.node.engine.local.placing import local_model, machine_of, own_data, task_of
from starling.node.engine.local.task_trainer import TaskTrainer
from starling.node.engine.local.trainer import CrewFacts
from starling.node.engine.local.trainer_setup import gradient_step, setup_of, task_trainer
from starling.node.engine.privacy.csprng import Csprng
from starling.node.engine.vectors import GradientWindow
from starling.node.extras.crew.engine.calls import StageCalls
from starling.node.extras.crew.engine.cut import Cut, blocks_of, cut
from starling.node.extras.crew.engine.inputs import Elsewhere
from starling.node.extras.crew.engine.stage import stage_of
from starling.node.extras.crew.engine.states import SavedStates
from starling.node.rpc.calls import Open


def trainer_of(open_request: Open, _csprng: Csprng, _window: GradientWindow) -> TaskTrainer:
    """Make the blocks of a stage, and the object that answers a crew's calls with them. States are stored beside the checkpoint.

    Raises ConfigError: the task has no blocks, this machine cannot hold them, or the manifest does not fit them.
    """
    manifest = open_request.manifest  # the gradient is clipped by the norm over all stages
    open_request = structs.replace(open_request, manifest=structs.replace(manifest, optimizer=manifest.optimizer.changed(clip_norm=None)))
    model, blocks = _model_of(open_request)
    made = setup_of(open_request, model)
    step = gradient_step(made, Batch(model, partial(made.gradients.compute, reset=made.guard.reset_buffers)))
    trainer = task_trainer(made, step, long_steps=model.large)
    stage = stage_of(model, open_request.stage)
    states = SavedStates(open_request.stage, Path(open_request.checkpoint) if open_request.checkpoint else None)
    trainer.calls = StageCalls(trainer, step, stage, states).handlers()
    trainer.facts = replace(trainer.facts, crew=CrewFacts(by_calls=True, batches=stage.batches, most_state_bytes=blocks.most_state_bytes))
    return trainer


def _model_of(open_request: Open) -> tuple[LocalModel, Cut]:
    manifest = open_request.manifest
    consent.find(manifest, open_request.code)
    machine = machine_of(open_request)
    task = task_of(manifest)
    data = Elsewhere() if open_request.stage else own_data(open_request, task, machine)
    blocks = cut(task, manifest, open_request.stage, machine.memory)

    def fresh() -> nn.Module:
        return blocks_of(task, manifest, blocks).to(machine.device)

    model = local_model(open_request, task, data, fresh, machine)
    if why := obstacle(model.module, model.layout):
        raise ConfigError(f"crew.stages: must be 1 for models that are not in float32 or have averaged buffers, {why}; try model.float()")
    return model, blocks
