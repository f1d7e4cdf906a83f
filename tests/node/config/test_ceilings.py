"""Every number that a user or another person's manifest can set has a minimum and a maximum."""

import math

import pytest
from msgspec import inspect as types

from starling.gossip.errors import ConfigError
from starling.node.config import manifest as manifests
from starling.node.config import parts, presets
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.simulate.schema import Scenario

DRAWN_BY_ATTACKS = {"attack_params", "attack.params"}  # attacks are experiments on one's own swarm and may take any number


def numbers(kind):
    """Yield the numbers in a type, including those in its lists and unions."""
    match kind:
        case types.IntType() | types.FloatType():
            yield kind
        case types.UnionType(types=inner) | types.TupleType(item_types=inner):
            for each in inner:
                yield from numbers(each)
        case types.VarTupleType(item_type=inner) | types.DictType(value_type=inner):
            yield from numbers(inner)


def keys(kind, where=""):
    """Yield dotted name and type of every key of the settings, with the default parts chosen."""
    for field in parts.fields_of(kind).values():
        if isinstance(field.type, types.StructType):
            yield from keys(field.type.cls, f"{where}{field.name}.")
        else:
            yield f"{where}{field.name}", field.type


def keys_of_parts():
    """Yield dotted name and type of every key of every built-in part."""
    for place, catalogue in parts.KINDS.items():
        for name in catalogue.built_in:
            for key in catalogue.keys_of(name) or ():
                yield f"{place}={name}: {key.name}", types.type_info(key.type)


def bounded(number):
    low = number.ge if number.ge is not None else number.gt
    high = number.le if number.le is not None else number.lt
    return low is not None and high is not None and math.isfinite(low) and math.isfinite(high)


@pytest.mark.parametrize(
    "named",
    [lambda: keys(Manifest), lambda: keys(NodeConfig), lambda: keys(Scenario), keys_of_parts],
    ids=["manifest", "node", "scenario", "parts"],
)
def test_every_number_has_a_finite_floor_and_ceiling(named):
    found = [(key, number) for key, kind in named() for number in numbers(kind)]
    assert len(found) >= 20
    assert {key for key, number in found if not bounded(number)} <= DRAWN_BY_ATTACKS


def test_every_built_in_part_declares_its_keys():
    """Otherwise its keys would be scalars without bounds."""
    assert [(place, name) for place, it in parts.KINDS.items() for name in it.built_in if it.keys_of(name) is None] == []


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("membership.probe_s=1e-9", "membership.probe_s: must be a number >= 0.1 and <= 3600, got 1e-09"),
        ("membership.sync_s=1e-9", "membership.sync_s: must be a number >= 0.5"),
        ("task.batch_size=1000000000", "task.batch_size: must be a whole number >= 1 and <= 65536, got 1000000000"),
        ("pace.max_wait_s=1e300", "pace.max_wait_s: must be a number >= 0.01 and <= 3600, got 1e+300"),
        ("pace.slot_s=1e-12", "pace.slot_s: must be a number >= 0.01"),
        ("mix.clip_norm=1e30", "mix.clip_norm: must be a number >= 0 and <= 1000000, got 1e+30"),
        ("mix.clip_norm=1001", "mix.clip_norm: must be above 0 and at most 1000 with preset=vouched, got 1001"),
        ("admission.quota=65", "admission.quota: must be a whole number >= 0 and <= 64, got 65"),
    ],
)
def test_a_creator_s_number_that_no_run_can_use_is_refused(assignment, says):
    """Under a preset with guarantees, in one line that says what is allowed and which command shows it."""
    with pytest.raises(ConfigError) as refused:
        manifests.check(presets.load(Manifest, assignments=["preset=vouched", assignment]))
    assert str(refused.value).startswith(says)
    assert "\n" not in str(refused.value)
    assert "`" in str(refused.value)
