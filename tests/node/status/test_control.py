"""The client of a node's control socket has bounded requests and bounded waits."""

import socket

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


def test_a_request_to_a_silent_node_times_out(silent):
    with pytest.raises(control.ControlError, match="did not answer"):
        control.request(silent, "leave", timeout_s=0.05)
