"""A script that has heard of the swarm's end does not take its node away before the node knows of it."""

from types import SimpleNamespace

import pytest
import torch

from starling.node.background import Node
from starling.node.script.swarm import Swarm
from starling.node.status.control import ControlError
from tests.integrations import nodes
from tests.node.script.loops import batches, fitted, net


@pytest.mark.parametrize("last", ["finished", "leaving"])
def test_it_waits_until_the_node_says_that_its_rounds_are_done(tmp_path, monkeypatch, last):
    states = iter(["training", "training", last, "never asked"])
    monkeypatch.setattr(Node, "status", lambda self: SimpleNamespace(state=next(states)))
    Node(tmp_path).wait_until_finished()
    assert [*states] == ["never asked"]


def test_it_does_not_wait_for_a_node_that_has_ended_nor_for_ever(tmp_path, monkeypatch):
    def ended(_self):
        raise ControlError("no node is running")

    monkeypatch.setattr(Node, "status", ended)
    Node(tmp_path).wait_until_finished()
    monkeypatch.setattr(Node, "status", lambda self: SimpleNamespace(state="training"))
    Node(tmp_path).wait_until_finished(0.1)


class Recorder:
    """A node that a script has started: keeps what it was asked."""

    def __init__(self):
        self.asked = []

    def wait_until_finished(self):
        self.asked.append("wait")

    def stop(self):
        self.asked.append("stop")


@pytest.mark.parametrize(("steps", "asked"), [(4, ["wait", "stop"]), (3, ["stop"])])
def test_a_swarm_that_has_finished_waits_for_its_node_before_it_stops_it(tmp_path, monkeypatch, steps, asked):
    """Two rounds of two steps; one that leaves earlier has nothing to wait for."""
    nodes.beside(monkeypatch)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with nodes.Node(tmp_path, model, rounds=2, steps=2, optimizer="sgd"):
        swarm = Swarm(tmp_path, model=model, optimizer=optimizer)
        swarm._life.node = recorder = Recorder()
        assert not swarm.finished
        for batch in batches(steps):
            fitted(model, batch)
            optimizer.step()
            swarm.step()
        swarm.close()
    assert recorder.asked == asked
