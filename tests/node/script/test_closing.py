"""A script that has received the swarm's end does not stop its node before the node knows of it."""

from types import SimpleNamespace

import pytest
import torch

from starling.node.child_node import Node
from starling.node.script.swarm import Swarm
from starling.node.status.control import ControlError
from tests.integrations import nodes
from tests.node.script.loops import batches, fitted, net


@pytest.mark.parametrize("last", ["finished", "leaving"])
def test_closing_waits_until_the_node_has_finished_its_rounds(tmp_path, monkeypatch, last):
    states = iter(["training", "training", last, "never asked"])
    monkeypatch.setattr(Node, "status", lambda self: SimpleNamespace(state=next(states)))
    Node(tmp_path).wait_until_finished()
    assert [*states] == ["never asked"]


def test_closing_does_not_wait_for_an_ended_node_and_has_a_deadline(tmp_path, monkeypatch):
    def ended(_self):
        raise ControlError("no node is running")

    monkeypatch.setattr(Node, "status", ended)
    Node(tmp_path).wait_until_finished()
    monkeypatch.setattr(Node, "status", lambda self: SimpleNamespace(state="training"))
    Node(tmp_path).wait_until_finished(0.1)


class Recorder:
    """A node started by a script, which records the requests to it."""

    def __init__(self):
        self.asked = []

    def wait_until_finished(self):
        self.asked.append("wait")

    def stop(self):
        self.asked.append("stop")


@pytest.mark.parametrize(("steps", "asked"), [(4, ["wait", "stop"]), (3, ["stop"])])
def test_a_swarm_that_has_finished_waits_for_its_node_before_it_stops_it(tmp_path, monkeypatch, steps, asked):
    """Two rounds of two steps; a script that leaves earlier has nothing to wait for."""
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
