"""Attacks on data, on trackers and on payloads."""

import math
from dataclasses import replace

import pytest
import torch

from starling.gossip.compress.catalogue import quantizer
from starling.gossip.compress.codec import decode, encode
from starling.gossip.compress.select.coordinates import Mask
from starling.gossip.compress.support import Full, Indices, Support
from starling.gossip.rng import generator
from starling.robust.attacks.catalogue import ATTACKS
from starling.robust.attacks.data import Backdoor, Clones, LabelFlip
from starling.robust.attacks.tracker import constant, negative, one_shot, rand
from starling.robust.attacks.tracker import small as slight
from tests.harness.attack_scenes import crafted, scene, targeting, vectors

WIRE = targeting("wire")

LABELS = torch.tensor([0, 1, 2, 9, 1])
INPUTS = torch.arange(30.0).view(5, 2, 3)


def test_label_flip_is_its_own_inverse() -> None:
    """y → C − 1 − y, and the message is the vector trained on the flipped labels."""
    inputs, labels = LabelFlip().poison(INPUTS, LABELS, 10)
    assert labels.tolist() == [9, 8, 7, 0, 8]
    assert inputs is INPUTS
    assert LabelFlip().poison(inputs, labels, 10)[1].tolist() == LABELS.tolist()
    assert crafted(LabelFlip(), scene()).tolist() == [[2.0, 2.0]] * 2


def test_a_targeted_flip_changes_one_class_only() -> None:
    assert LabelFlip(source=1, target=7).poison(INPUTS, LABELS, 10)[1].tolist() == [0, 7, 2, 9, 7]


@pytest.mark.parametrize("attack", [LabelFlip(source=1, target=7), Clones(), Backdoor(target=7)])
def test_a_class_that_the_task_does_not_have_is_refused(attack: LabelFlip | Clones | Backdoor) -> None:
    with pytest.raises(ValueError, match="class 7 must be < 5"):
        attack.poison(INPUTS, LABELS.clamp(max=4), 5)


def test_a_backdoor_adds_its_trigger_and_class_to_a_share_of_the_batch() -> None:
    inputs, labels = Backdoor(target=3, share=0.4, width=2, value=-1.0).poison(INPUTS, LABELS, 10)
    assert labels.tolist() == [3, 3, 2, 9, 1]
    assert inputs[:2].reshape(2, -1)[:, :2].tolist() == [[-1.0, -1.0]] * 2
    assert torch.equal(inputs[2:], INPUTS[2:])
    assert torch.equal(inputs[:2].reshape(2, -1)[:, 2:], INPUTS[:2].reshape(2, -1)[:, 2:])
    assert LABELS.tolist() == [0, 1, 2, 9, 1]
    assert INPUTS[0, 0, 0] == 0.0


def test_a_backdoor_without_bound_replaces_the_mean_of_all() -> None:
    """boost = 0 means h/f: with 3 honest nodes that do not move, the mean moves as if all had made the attacker's step."""
    seen = scene(before=vectors((0.0, 0.0))[0], own=vectors((1.0, 2.0))[0], nodes=4, attackers=1)
    message = crafted(Backdoor(boost=0.0), seen)[0]
    assert message.tolist() == [3.0, 6.0]
    assert crafted(Backdoor(), seen)[0].tolist() == [1.0, 2.0]


def test_clones_all_send_the_vector_of_the_first_of_them() -> None:
    crew = vectors((7.0, 7.0), (2.0, 2.0))
    assert crafted(Clones(), scene(crew=crew)).tolist() == [[7.0, 7.0]] * 2
    assert crafted(Clones(), scene()).tolist() == [[2.0, 2.0]] * 2


def test_tracker_attacks_are_measured_in_honest_gradient_norms() -> None:
    """ȳ = (3, 2); two gradients of lengths 5 and 15, so ‖g‖ = 10; ḡ points along (3, 4)."""
    seen = scene(gradients=vectors((3.0, 4.0), (9.0, 12.0)))
    assert crafted(constant(), seen)[0].tolist() == pytest.approx([3.0 - 100.0 * 0.6, 2.0 - 100.0 * 0.8])
    assert crafted(negative(), seen)[0].tolist() == [-3.0, -2.0]
    steps = crafted(rand(), seen) - seen.receivers
    assert steps.norm(dim=1).tolist() == pytest.approx([100.0, 100.0])
    assert torch.allclose(steps[0], steps[1])
    lies = crafted(slight(), seen) - seen.receivers
    assert torch.allclose(lies * 20.0, steps)
    unknown = replace(seen, gradients=None)
    assert (crafted(rand(), unknown) - seen.receivers).norm(dim=1).tolist() == pytest.approx([50.0, 50.0])


def test_a_one_shot_attack_acts_in_four_rounds_only() -> None:
    seen = scene(rounds=300)
    lied = [r for r in range(40) if not torch.equal(crafted(one_shot(), replace(seen, round=r))[0], seen.own)]
    assert lied == [20, 21, 22, 23]
    assert float((crafted(one_shot(), replace(seen, round=20))[0] - seen.receivers[0]).norm()) == pytest.approx(500.0)


def test_a_reversed_memory_has_any_second_moments_and_an_honest_model() -> None:
    forged = ATTACKS["memory_reversed"](scale=3.0, square=0.0)
    mean, square = forged.forged(torch.tensor([1.0, -2.0]), torch.tensor([4.0, 5.0]))
    assert mean.tolist() == [-3.0, 6.0]
    assert square.tolist() == [0.0, 0.0]
    assert torch.equal(crafted(forged, scene())[0], scene().own)
    for wrong in ({"scale": 0.0}, {"square": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ATTACKS["memory_reversed"](**wrong)


DIM = 400
SUPPORTS: dict[str, Support] = {
    "full": Full(),
    "blocks": Mask(0.5).select(torch.zeros(DIM), None, 3, 0),
    "listing": Indices(torch.tensor([0, 5, 399])),
}
REASONS = {
    "nan": {"not_finite", "bad_scale"},
    "bomb": {"wrong_dim"},
    "bad_indices": {"bad_indices", "bad_support"},
    "wrong_length": {"bad_length", "bad_support"},
    "wrong_dtype": {"unknown_codec"},
}


@pytest.mark.parametrize("codec", ["identity", "fp16", "bf16", "int8", "int4"])
@pytest.mark.parametrize("support", sorted(SUPPORTS))
@pytest.mark.parametrize("name", sorted(set(WIRE) - {"huge"}))
def test_every_hostile_payload_is_refused_for_the_reason_it_was_made_for(name: str, support: str, codec: str) -> None:
    with pytest.raises(ValueError, match=r"^[a-z_]+$") as caught:
        _read(ATTACKS[name]().distort(_payload(support, codec)), codec)  # type: ignore[attr-defined]
    assert str(caught.value) in REASONS[name]


@pytest.mark.parametrize("codec", ["identity", "fp16", "bf16"])
@pytest.mark.parametrize("support", sorted(SUPPORTS))
def test_huge_finite_numbers_pass_decoding(support: str, codec: str) -> None:
    values = _read(ATTACKS["huge"]().distort(_payload(support, codec)), codec)  # type: ignore[attr-defined]
    assert bool(torch.isfinite(values).all())
    assert float(values.abs().min()) > 6e4


@pytest.mark.parametrize("name", WIRE)
def test_bytes_that_are_no_payload_stay_unchanged(name: str) -> None:
    assert ATTACKS[name]().distort(b"") == b""  # type: ignore[attr-defined]


def test_in_simulations_bad_payloads_are_non_finite_or_huge_numbers() -> None:
    """NaN counts as absent after any check. 1e38 is finite, but its square overflows float32."""
    assert all(math.isnan(x) for x in crafted(ATTACKS["nan"](), scene())[0].tolist())
    huge = crafted(ATTACKS["huge"](), scene())[0].float()
    assert bool(torch.isfinite(huge).all())
    assert not bool(torch.isfinite(huge.square()).all())


def _payload(support: str, codec: str) -> bytes:
    chosen = SUPPORTS[support]
    values = torch.linspace(-1.0, 1.0, chosen.size(DIM))
    return encode(values, chosen, quantizer(codec, torch.float32), DIM, generator(0, "test"))


def _read(payload: bytes, codec: str) -> torch.Tensor:
    return decode(payload, DIM, torch.float32, (quantizer(codec, torch.float32),))[1]
