"""Simulated swarms with Byzantine nodes: which nodes these are, what they do, and that figures cover honest nodes only."""

import json

import numpy as np
import pytest
import torch

from starling.gossip.api import Phase
from starling.gossip.errors import ConfigError
from starling.node.config import presets, toml
from starling.node.config.schema import Manifest, MixSection, RobustSection
from starling.node.engine.mixing import mixer
from starling.node.simulate import build, results, rules
from starling.node.simulate.engines import check, simulate
from starling.node.simulate.matrix import byzantine
from starling.node.simulate.matrix.byzantine import Byzantine, View
from starling.node.simulate.matrix.distances import RowDistances
from starling.node.simulate.schema import AttackSection, Scenario
from starling.node.simulate.sweep import cells
from starling.node.tasks.labelled import LabelledData
from starling.robust.attacks.broadcast import sign_flip
from starling.robust.attacks.catalogue import ATTACKS
from tests.harness.attack_scenes import targeting
from tests.harness.texts import words

OPEN = words(
    "mix=gather overlay=pull overlay.k=4 robust.f=1 compress.select=full compress.response=identity simulate.nodes=6",
    "simulate.sample=0 task=digits task.hidden=4 pace.local_steps=2",
)
SHORT = (*OPEN, "pace.rounds=2", "pace.evaluate_every=2")


def scenario(*assignments):
    return toml.apply_set(Scenario(), assignments)


def run(*assignments):
    loaded = scenario(*assignments)
    rules.check(cells(loaded))
    check(loaded)
    return simulate(loaded, lambda _round, _line: None)


def test_bad_nodes_are_drawn_by_the_seed_or_named():
    drawn = [np.flatnonzero(build.byzantine(scenario("attack.nodes=3", f"simulate.seed={seed}"), 20)) for seed in (0, 0, 1)]
    assert drawn[0].tolist() == drawn[1].tolist() != drawn[2].tolist()
    assert len(drawn[0]) == 3
    assert drawn[0].max() < 16  # among the initial nodes, not the joiners
    assert np.flatnonzero(build.byzantine(scenario("attack.rows=[5, 2]"), 16)).tolist() == [2, 5]
    assert not build.byzantine(scenario(), 16).any()


@pytest.mark.slow
def test_the_json_lists_byzantine_nodes_and_figures_cover_honest_ones_only():
    """A Byzantine node's model does not count, whether good or bad."""
    behaved, lied = (run(*SHORT, "attack.rows=[1, 5]", *kind) for kind in ((), ("attack.kind=foe",)))
    all_honest = run(*SHORT)
    assert lied.bad == behaved.bad == (1, 5)
    assert all_honest.bad == ()
    assert behaved.rows[-1].alive == 4
    assert all_honest.rows[-1].alive == 6
    assert behaved.rows[-1].mean != all_honest.rows[-1].mean
    assert lied.rows[-1].consensus_distance != behaved.rows[-1].consensus_distance
    document = results.to_json({}, [results.Finished(labels={}, outcome=lied)], 1)
    assert json.loads(document)["runs"][0]["bad"] == [1, 5]


@pytest.mark.slow
def test_whole_nodes_attack_in_scenarios_too():
    """With the same attack names, and with figures of honest nodes only."""
    common = [key for key in SHORT if not key.startswith(("overlay", "robust"))]
    whole = ("simulate.nodes=5", "simulate.engine=virtual", "overlay=complete", "attack.rows=[4]", "robust.rule=mean")
    lied, behaved = (run(*common, *whole, *kind) for kind in (("attack.kind=foe",), ()))
    assert lied.bad == behaved.bad == (4,)
    assert [row.alive for row in lied.rows] == [4, 4]
    assert lied.rows[0] == behaved.rows[0]
    assert lied.rows[-1].loss > behaved.rows[-1].loss


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["matrix", "virtual"])
def test_both_engines_run_the_preset_for_strangers_with_a_liar_among_them(engine):
    """Simulated nodes need no proof of work."""
    assignments = ("preset=open", "simulate.nodes=7", f"simulate.engine={engine}", "task.hidden=4", "pace.local_steps=1")
    loaded = presets.load(
        Scenario, assignments=(*assignments, "pace.rounds=2", "pace.evaluate_every=2", "attack.rows=[6]", "attack.kind=foe")
    )
    assert rules.check(cells(loaded)) == []
    outcome = simulate(loaded, lambda _round, _line: None)
    assert (outcome.bad, outcome.rows[-1].alive, outcome.diverged) == ((6,), 6, None)
    assert 0 < outcome.counts["committed"] <= 2 * 7 * 6


def test_each_row_of_a_pair_compares_its_own_model_with_the_other_s(monkeypatch):
    """With an exact codec what one takes for the other's model is the other's own, and no liar compares."""
    compared = {}
    compare = RowDistances.compare

    def noted(self, ends, models, number):
        compared.update(zip(ends, models, strict=True))
        compare(self, ends, models, number)

    monkeypatch.setattr(RowDistances, "compare", noted)
    exact = ("compress.select=full", "compress.request=identity", "compress.response=identity")
    small = ("simulate.nodes=4", "task.hidden=4", "pace.rounds=1", "pace.evaluate_every=1", "attack.rows=[3]", "attack.kind=stale")
    run("partition.kind=iid", *exact, *small)
    pairs = [pair for pair in compared if pair[::-1] in compared]
    assert pairs
    assert all(3 in pair for pair in compared.keys() - set(pairs))
    assert 3 not in {row for row, _ in compared}
    for pair in pairs:
        own, other = compared[pair]
        assert not torch.equal(own, other)
        torch.testing.assert_close(compared[pair[::-1]], torch.stack([other, own]), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_an_outcome_says_which_liars_were_refused_and_by_whom():
    settings_of = ("partition.kind=iid", "simulate.nodes=6", "pace.rounds=30", "pace.evaluate_every=30", "attack.rows=[5]")
    outcome = run(*settings_of, "attack.kind=sign_flip")
    named = {(each.node, each.peer) for each in outcome.refusals}
    assert len(named) == 4, "by all who met it"
    assert {peer for _, peer in named} == {5}
    assert all(3 <= each.round < 30 for each in outcome.refusals)
    assert [outcome.counts[key] for key in ("exposed", "named", "accused")] == [4, 4, 0]
    undefended, honest = run(*settings_of, "attack.kind=sign_flip", "mix.defended=false"), run(*settings_of)
    assert [undefended.counts[key] for key in ("exposed", "named", "accused")] == [0, 0, 0]
    assert [honest.counts[key] for key in ("named", "accused")] == [0, 0]
    assert undefended.refusals == honest.refusals == ()
    assert undefended.rows[-1].mean < 0.5
    assert outcome.rows[-1].mean > 0.9


@pytest.mark.slow
def test_who_answers_with_the_initial_model_is_refused_by_all_where_honest_models_are_as_far_apart():
    by_label = ("partition.kind=by_label", "simulate.nodes=8", "pace.rounds=60", "pace.evaluate_every=60")
    stale, absent = run(*by_label, "attack.rows=[7]", "attack.kind=stale"), run(*by_label, "simulate.nodes=7", "partition.shards=8")
    assert [stale.counts[key] for key in ("exposed", "named", "accused")] == [5, 5, 0]
    assert stale.rows[-1].mean > absent.rows[-1].mean - 0.03


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(set(ATTACKS) - set(targeting("tracker", "memory"))))
def test_every_attack_can_be_simulated_and_a_rule_survives_it(kind):
    outcome = run(*SHORT, "attack.nodes=1", f"attack.kind={kind}")
    assert outcome.diverged is None
    assert np.isfinite(outcome.rows[-1].loss)


@pytest.mark.slow
@pytest.mark.parametrize("kind", targeting("tracker"))
def test_attacks_on_trackers_leave_the_model_honest(kind):
    """On gradient tracking, where an attacker can do harm by its tracker alone."""
    settings_of = words(
        "mix=gradient_tracking overlay=hypercube simulate.nodes=4 task.hidden=4 pace.local_steps=1 pace.rounds=2",
        "pace.evaluate_every=2 compress.select=full",
    )
    lied, honest = (run(*settings_of, "attack.rows=[3]", *kind_) for kind_ in ((f"attack.kind={kind}",), ()))
    assert lied.rows[0] == honest.rows[0]
    assert np.isfinite(lied.rows[-1].consensus_distance)


@pytest.mark.slow
@pytest.mark.parametrize("mix", ["pet", "dsgd", "k_gt", "quasi_global", "choco", "push_sum", "defended_tracking"])
def test_attacks_work_in_every_kind_of_exchange(mix):
    """Differences are clipped, so a forged distant vector moves honest nodes by at most the clip; swapped messages are not clipped."""
    exact = ("compress.response=identity", "compress.select=full", "optimizer.momentum=0")
    settings_of = ("overlay=ring", "simulate.nodes=6", "task.hidden=4", "pace.rounds=2", "pace.local_steps=1", f"mix={mix}", *exact)
    lied, honest = (run(*settings_of, "attack.rows=[0]", *kind) for kind in (("attack.kind=foe",), ()))
    assert lied.rows[-1].consensus_distance > honest.rows[-1].consensus_distance


def attackers(attack, *, tracker=0, tau=None):
    gradients = torch.arange(15.0).view(5, 3)
    bad = np.array([False, True, False, False, True])
    return Byzantine(attack, bad, torch.zeros(3 + tracker), 3, 10, 7, lambda: gradients, lambda _rows: tau)


class Noted:
    """An attack that records the scene it is given."""

    targets = "vector"

    def __init__(self, targets="vector"):
        self.targets, self.scenes = targets, []

    def craft(self, memory, scene, generator):
        self.scenes.append((memory, scene))
        return torch.full_like(scene.receivers, 5.0), len(self.scenes)


def seen(width):
    now = torch.arange(5.0 * width).view(5, width)
    return View(4, now - 1.0, now, np.array([True, True, True, False, True]))


def test_an_attacker_knows_all_living_honest_vectors_and_the_requesters():
    attack = Noted()
    made, moment = attackers(attack, tau=torch.tensor([2.0])), seen(3)
    sent = made.messages(moment, 1, [2])
    (memory, scene) = attack.scenes[0]
    assert memory is None
    assert torch.equal(sent, torch.full((1, 3), 5.0))
    assert torch.equal(scene.honest, moment.now[[0, 2]])
    assert scene.members.tolist() == [0, 2]
    assert torch.equal(scene.crew, moment.now[[1, 4]])
    assert torch.equal(scene.own, moment.now[1])
    assert torch.equal(scene.before, moment.before[1])
    assert torch.equal(scene.receivers, moment.now[[2]])
    assert scene.index.tolist() == [2]
    assert scene.gradient.tolist() == [3.0, 4.0, 5.0]  # mean of rows 0 and 2
    assert (scene.round, scene.rounds, scene.attackers, scene.nodes) == (4, 10, 2, 5)
    assert scene.tau.tolist() == [2.0]
    made.messages(moment, 1, [0])
    assert attack.scenes[1][0] == 1  # what it remembered


def test_an_attack_on_the_model_leaves_the_tracker_honest_and_vice_versa():
    moment = seen(6)
    for targets, lied, true in (("vector", slice(0, 3), slice(3, 6)), ("tracker", slice(3, 6), slice(0, 3))):
        attack = Noted(targets)
        sent = attackers(attack, tracker=3).messages(moment, 4, [0, 2])
        assert bool((sent[:, lied] == 5.0).all())
        assert torch.equal(sent[:, true], moment.now[4, true].expand(2, 3))
        assert torch.equal(attack.scenes[0][1].own, moment.now[4, lied])


def test_norms_claimed_with_a_forged_tracker_bound_nothing():
    """A claimed norm must not be the only bound; an attacker of the model does not use it."""
    moment = seen(8)
    for targets, norms in (("tracker", [1e9, 1e9]), ("vector", moment.now[4, 6:].tolist())):
        assert attackers(Noted(targets), tracker=5).messages(moment, 4, [0])[0, 6:].tolist() == norms


def test_attackers_know_a_rule_s_threshold():
    sac = mixer(Manifest(mix=MixSection(kind="gather"), robust=RobustSection(rule="sac", kappa=3.0)))
    x = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    _, state, _ = sac.combine(sac.start(torch.zeros(2, 2)), x, x[:, None], torch.ones(2, 1, dtype=torch.bool))
    assert byzantine.thresholds(sac, state, [1, 0]).tolist() == [3.0, 15.0]
    plus = mixer(Manifest(mix=MixSection(kind="gather"), robust=RobustSection(rule="cs_plus")))
    assert byzantine.thresholds(plus, plus.start(x), [0]) is None
    tracking = mixer(Manifest(mix=MixSection(kind="defended_tracking", step_clip=2.0)))
    _, state = tracking.publish(tracking.start(torch.zeros(2, 2)), x, Phase(0, 1.0, 0.1))
    assert byzantine.thresholds(tracking, state, [1, 0]).tolist() == [2.0, 10.0]


MEMORIES = words("optimizer=adamw simulate.nodes=4 task.hidden=4 pace.local_steps=3 pace.rounds=4 pace.evaluate_every=4 attack.rows=[3]")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["matrix", "virtual"])
@pytest.mark.parametrize("mix", ["pet", "moments"])
@pytest.mark.parametrize("kind", targeting("memory"))
def test_memories_are_forged_on_both_engines(kind, mix, engine):
    settings_of = (*MEMORIES, f"mix={mix}", f"simulate.engine={engine}")
    lied, honest = (run(*settings_of, *kind_) for kind_ in ((f"attack.kind={kind}",), ()))
    assert lied.rows[0] == honest.rows[0]
    assert lied.rows[-1].loss != honest.rows[-1].loss
    assert np.isfinite(lied.rows[-1].loss)


@pytest.mark.parametrize("kind", targeting("memory"))
@pytest.mark.parametrize("words", [(), ("optimizer=adamw", "mix=dsgd")], ids=["flows", "dsgd"])
def test_without_memory_exchange_forged_memories_have_no_effect(kind, words):
    with pytest.raises(ConfigError, match=rf"attack.kind: {kind} lies about optimiser state"):
        run("attack.nodes=1", f"attack.kind={kind}", *words)


def data():
    y = torch.arange(12) % 4
    return LabelledData(torch.ones(12, 6), y, torch.zeros(4, 6), torch.arange(4))


def test_only_byzantine_nodes_train_on_poisoned_samples():
    flip = byzantine.attack(AttackSection(kind="label_flip"))
    own, bad = byzantine.poisoned(flip, np.array([False, True]), [data(), data()])
    one, other = (part.batch(200, torch.Generator().manual_seed(1)) for part in (own, bad))
    assert torch.equal(other[1], 3 - one[1])
    assert torch.equal(other[0], one[0])
    assert next(iter(bad.held_out(4)))[1].tolist() == [0, 1, 2, 3]
    assert bad.samples == 12
    assert byzantine.poisoned(sign_flip(), np.array([True]), [(kept := data())]) == [kept]


def test_success_is_the_share_of_samples_classified_as_the_attack_s_target():
    class Sees(torch.nn.Module):
        """Predicts the target where it sees the trigger, and class 1 elsewhere."""

        def forward(self, x):
            return torch.nn.functional.one_hot(torch.where(x[:, 0] == 1.0, 2, 1), 4).float()

    batch = (data().test_x, data().test_y)
    backdoor = byzantine.success(byzantine.attack(AttackSection(kind="backdoor", params={"target": 2, "width": 1})))
    assert backdoor(Sees(), batch) == (3, 3)  # samples of class 2 do not count
    flip = byzantine.success(byzantine.attack(AttackSection(kind="label_flip", params={"source": 3, "target": 1})))
    assert flip(Sees(), batch) == (1, 1)
    assert flip(Sees(), (batch[0][:2], batch[1][:2])) == (0, 0)
    assert byzantine.success(sign_flip()) is None
    assert byzantine.success(byzantine.attack(AttackSection(kind="label_flip"))) is None


@pytest.mark.slow
def test_one_member_s_backdoor_succeeds_under_the_mean_and_not_under_the_open_rule():
    """The success rate is a column of the result; attacks without a target have none."""
    params = ("attack.kind=backdoor", "attack.nodes=1", "attack.params.boost=3.0")
    common = [key for key in OPEN if not key.startswith("robust")]
    longer = (*common, "pace.rounds=30", "pace.evaluate_every=30", "task.hidden=16", "partition=iid", *params)
    assert run(*longer, "robust.rule=mean").rows[-1].attack_success > 0.9
    assert run(*longer, "robust.rule=cs_nnm", "robust.f=1").rows[-1].attack_success < 0.3
    assert run(*SHORT).rows[-1].attack_success is None


@pytest.mark.parametrize(
    ("assignments", "line"),
    [
        (("attack.kind=foe", "attack.params.epsilon=-1.0"), r"epsilon must be > 0"),
        (("attack.kind=foe", "attack.params.epsilom=1.0"), r"attack\.params.*epsilom"),
    ],
)
def test_a_wrong_parameter_is_refused_before_the_first_round(assignments, line):
    with pytest.raises(ConfigError, match=line):
        check(scenario(*SHORT, "attack.nodes=1", *assignments))


def test_poisoning_absent_labels_is_refused():
    flip = ("attack.nodes=1", "attack.kind=label_flip")
    with pytest.raises(ConfigError, match=r"attack\.kind: poisons labels, which task=quadratic has not"):
        run("task=quadratic", "simulate.nodes=4", "pace.rounds=1", *flip)
    with pytest.raises(ConfigError, match=r"attack\.params: class 44 must be < 10"):
        run(*SHORT, "attack.nodes=1", "attack.kind=clones", "attack.params.target=44")


def test_a_running_mean_begins_with_the_first_gradient():
    """m_0 = g instead of (1 − momentum) g: the first step is 1/(1 − momentum) times as long, and later ones approach the usual."""
    settings_of = (
        "task=quadratic",
        "simulate.nodes=4",
        "overlay=alone",
        "pace.local_steps=1",
        "pace.rounds=1",
        "optimizer.schedule=constant",
    )
    full, none = (run(*settings_of, f"simulate.running_mean={value}") for value in ("true", "false"))
    plain = run(*settings_of, "optimizer.momentum=0", "optimizer.lr=0.2")
    assert full.rows[-1].mean == pytest.approx(plain.rows[-1].mean, rel=1e-5)
    assert none.rows[-1].mean != pytest.approx(plain.rows[-1].mean, rel=1e-5)
