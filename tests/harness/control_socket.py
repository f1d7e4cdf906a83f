"""A node that has only a control socket."""

import socket
import threading
from contextlib import contextmanager

from starling.node.status import control


@contextmanager
def answering(run_dir, reply, *, waits=False):
    """Serve a control socket that accepts one connection and gives the same answer to all requests.

    Args:
        run_dir: its folder; made if missing.
        reply: the answer; b"" is none.
        waits: it stays connected until the client disconnects.
    """
    run_dir.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run_dir / control.SOCKET_NAME))
        listener.listen()

        def serve():
            stream, _ = listener.accept()
            with stream:
                stream.recv(1 << 16)
                stream.sendall(reply)
                if waits:
                    stream.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()
