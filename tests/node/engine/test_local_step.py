"""State that a local step passes to the next: the module's mode, and the rate of a round."""

import torch
from msgspec import structs

from starling.node.config.schema import MixSection, OptimizerSection
from starling.node.rpc import calls
from tests.harness.engines import done, manifest, opened

PLAIN = OptimizerSection(momentum=0.0, lr=0.01)


def test_a_step_trains_a_module_that_was_left_in_evaluation_mode():
    """The owner's loss may have set it. Submodules stay in the mode that the owner chose."""
    engine = opened(manifest(params={"model": "cnn"}))
    module = engine.trainer.model.module
    assert module.training
    module[0].eval()
    done(engine, calls.Train(0, 1))
    assert not module[0].training
    module.eval()
    done(engine, calls.Mix(0))
    done(engine, calls.Train(1, 1))
    assert all(each.training for each in module.modules())


def test_a_late_joiner_s_ramp_applies_from_its_first_step():
    """A step taken before it received a model does not affect the rate."""
    agreed = manifest(mix=MixSection(kind="dsgd"), optimizer=PLAIN, ramp_rounds=4)
    host, late = opened(agreed), opened(agreed, node="late")
    for engine in (host, late):
        done(engine, calls.Train(0, 1))
        done(engine, calls.Mix(0))
    held = done(host, calls.Snapshot())
    state = done(host, calls.ReadChunk(held.snapshot, 0, held.size)).data
    done(late, calls.Train(1, 1))
    done(late, calls.Mix(1))
    done(late, calls.Consider("a", 1, state, 1))
    done(late, calls.Agree())
    before = late.vector
    done(late, calls.Train(1, 1))
    step = (late.vector - before).norm()
    done(late, calls.Mix(1))
    other = opened(structs.replace(agreed, pace=agreed.pace.changed(ramp_rounds=0)), node="late")
    done(other, calls.Consider("a", 1, state, 1))
    done(other, calls.Agree())
    other.trainer.local_step.steps = late.trainer.local_step.steps - 1
    done(other, calls.Train(1, 1))
    torch.testing.assert_close(4 * step, (other.vector - before).norm(), rtol=1e-4, atol=0.0)
