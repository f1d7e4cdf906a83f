"""The client of a node's control socket has bounded requests and bounded waits."""

import socket
from pathlib import Path

import pytest

from starling.node.status import control

pytestmark = pytest.mark.real


@pytest.fixture
def silent(tmp_path):
    """Return the directory of a node that accepts connections and does not answer."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / control.SOCKET_NAME))
        listener.listen()
        yield tmp_path


def test_a_request_longer_than_the_limit_is_refused_before_it_is_sent(silent):
    with pytest.raises(control.ControlError, match="at most"):
        control.request(silent, "export", path="x" * control.MAX_REQUEST_BYTES)


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("no known peer is 'x'; `starling peers` lists them", "no known peer is 'x'; `starling peers --dir 'my node'` lists them"),
        ("keep it out with `starling ban PEER`", "keep it out with `starling ban PEER --dir 'my node'`"),
        ("ask for a fresh one: `starling join INVITE`", "ask for a fresh one: `starling join INVITE`"),
    ],
)
def test_commands_that_a_node_suggests_can_be_pasted(text, typed):
    assert control.addressed(text, Path("my node")) == typed


def test_a_request_to_a_silent_node_times_out(silent):
    with pytest.raises(control.ControlError, match="did not answer"):
        control.request(silent, "leave", timeout_s=0.05)
