"""Every number that a person, or somebody else's manifest, can set has a floor and a ceiling."""

import math

import pytest
from msgspec import inspect as types

from starling.gossip.errors import ConfigError
from starling.node.config import manifest as manifests
from starling.node.config import parts, presets
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.simulate.schema import Scenario

DRAWN_BY_ATTACKS = {"attack_params", "attack.params"}  # of experiments on one's own swarm: their point is what nobody expects


def numbers(kind):
    """The numbers in a type, those in its lists and choices too."""
    match kind:
        case types.IntType() | types.FloatType():
            yield kind
        case types.UnionType(types=inner) | types.TupleType(item_types=inner):
            for each in inner:
                yield from numbers(each)
        case types.VarTupleType(item_type=inner) | types.DictType(value_type=inner):
            yield from numbers(inner)


def keys(kind, where=""):
    """Dotted name and type of every key of settings that have no parts chosen but the defaults'."""
    for field in parts.fields_of(kind).values():
        if isinstance(field.type, types.StructType):
            yield from keys(field.type.cls, f"{where}{field.name}.")
        else:
            yield f"{where}{field.name}", field.type


def keys_of_parts():
    """Likewise of every built-in part."""
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


def test_every_part_that_is_built_in_tells_its_keys():
    """Else they would be scalars without bounds."""
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
    """Under a preset that promises something, in one line that says what is allowed and how to look."""
    with pytest.raises(ConfigError) as refused:
        manifests.check(presets.load(Manifest, assignments=["preset=vouched", assignment]))
    assert str(refused.value).startswith(says)
    assert "\n" not in str(refused.value)
    assert "`" in str(refused.value)
