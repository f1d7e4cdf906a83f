"""The number of bytes that an exchange may take."""

import math

import pytest

from starling.gossip.compress.budget import FILL
from starling.node.config.schema import CompressSection, Manifest, PaceSection
from starling.node.daemon.context import Limits
from starling.node.daemon.exchange.budget import FIRST_BYTES, budget_of
from starling.node.daemon.exchange.slow_watch import MIN_MEASURED_BYTES
from tests.harness.facts import sent_request

MB = 1 << 20
NO_CAP = Limits(0, 0, 1)
SLOT = PaceSection(slot_s=10.0)


def measured(limits=NO_CAP, select="budget"):
    return budget_of(Manifest(pace=SLOT, compress=CompressSection(select=select)), limits)


def test_bytes_set_by_the_manifest_do_not_depend_on_the_connection():
    budget = budget_of(Manifest(compress=CompressSection(select="budget").changed(budget_bytes=12345)), NO_CAP)
    budget.observe(sent_request("a", MB, 0.001))
    budget.forget("a")
    assert budget.bytes_for("a") == budget.bytes_for("b") == 12345


def test_an_edge_s_budget_is_its_capacity_in_a_slot_or_that_of_other_edges():
    budget = measured()
    assert budget.bytes_for("a") == FIRST_BYTES
    budget.observe(sent_request("a", MIN_MEASURED_BYTES - 1, 0.001))
    assert budget.bytes_for("a") == FIRST_BYTES, "small frames measure nothing"
    budget.observe(sent_request("a", MB, 1.0))
    assert budget.bytes_for("a") == budget.bytes_for("new") == pytest.approx(FILL * 10.0 * MB, rel=0.01)
    budget.concurrent_s = 1.0
    assert budget.bytes_for("a") == pytest.approx(FILL * MB, rel=0.01), "no longer than the steps beside it"
    budget.forget("a")
    assert budget.bytes_for("a") == FIRST_BYTES


def test_an_unlimited_connection_is_limited_by_the_owner_s_cap_only():
    for limits, some in ((NO_CAP, False), (Limits(MB, 0, 1), True)):
        budget = measured(limits)
        budget.observe(sent_request("a", MB, 0.0))
        assert (budget.bytes_for("a") > 0) == some
    assert measured(select="full").bytes_for("a") == 0, "a selector with keys of its own is not held to a first size"
    assert math.isinf(measured().concurrent_s)
