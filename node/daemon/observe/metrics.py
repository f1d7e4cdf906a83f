"""The metrics endpoint: GET /metrics for Prometheus, GET /healthz for health checks.

Theory of operation. One request per connection, then it is closed: a scrape comes every few seconds, so nothing is saved by keeping lines
open, and an open one could be held by an idle client. Clients are not trusted, so everything has a bound:

    a connection            is closed DEADLINE_S after it began
    connections             MAX_CONNECTIONS; one more takes a place of the address that holds most, or the oldest of its own
    connections a second    RATE on average from each of the MAX_HOSTS addresses seen last; more are closed unread
    a request's head        MAX_HEAD_BYTES; a body is not read
    a scrape's work         a snapshot is rendered once in FRESH_S, however many ask

An address that cannot be used is reported once, tried again every RETRY_S, and never ends the node.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

import h11
import trio

from starling.gossip.limits import Rates
from starling.gossip.shares import Shares
from starling.node.interfaces import Reporter
from starling.node.status.metrics import exposition, health
from starling.node.status.snapshot import StatusSnapshot

DEADLINE_S = 5.0
CLOSE_S = 1.0  # seconds for a client to close; if we closed first, data in flight would reset the connection and lose the answer
MAX_CONNECTIONS = 32
MAX_HOSTS = 1024
RATE = 20.0
BURST = 60.0
MAX_HEAD_BYTES = 8 << 10
FRESH_S = 0.25
RETRY_S = 30.0

ALLOWED = "must be a free HOST:PORT, [IPV6]:PORT or :PORT of this machine"

_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:\[\]/]*)):(?P<port>[0-9]{1,5})", re.ASCII)

Answer = tuple[HTTPStatus, str, bytes]


def parse_address(text: str) -> tuple[str | None, int]:
    """Return (host, port) of "HOST:PORT", "[IPV6]:PORT" or ":PORT"; the host is None for every address of the machine.

    Raises ValueError: in one line, what is allowed.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise ValueError(ALLOWED)
    return match["ipv6"] or match["host"] or None, int(match["port"])


class MetricsService:
    """Serves the figures of a status snapshot, taken up to four times a second, and reports its address, or why there is none."""

    def __init__(self, listen: str, snapshot: Callable[[], StatusSnapshot], report: Reporter) -> None:
        self._listen = listen
        self._snapshot = snapshot
        self._report = report
        self._rates: Rates[str] = Rates(RATE, BURST, MAX_HOSTS)
        self._places: Shares[int] = Shares(MAX_CONNECTIONS)
        self._open: dict[int, trio.CancelScope] = {}
        self._opened = 0
        self._taken: tuple[float, StatusSnapshot] | None = None
        self._rendered: dict[str, tuple[bytes, str]] = {}

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        return len(self._open)

    async def serve(self) -> None:
        """Serve until cancelled; returns at once if the address is none."""
        try:
            host, port = parse_address(self._listen)
        except ValueError as error:
            self._report_failure(str(error))
            return
        reported = False
        while True:
            try:
                listeners = await trio.open_tcp_listeners(port, host=host)
            except (OSError, UnicodeError) as error:  # UnicodeError: a name that no resolver takes
                if not reported:
                    why = error.strerror if isinstance(error, OSError) else None
                    self._report_failure(f"cannot listen there ({why or error}), {ALLOWED}")
                    reported = True
                await trio.sleep(RETRY_S)
                continue
            where = ", ".join(sorted({_shown(listener.socket.getsockname()) for listener in listeners}))
            self._report.event("metrics_listening", f"metrics at {where}", addresses=where)
            await trio.serve_listeners(self.answer, listeners)

    def _report_failure(self, why: str) -> None:
        advice = "training goes on without metrics, put another into node.toml and `starling run` again"
        self._report.event("no_metrics", f"metrics.listen: {why}, got {self._listen!r}; {advice}", level="error")

    async def answer(self, stream: trio.abc.HalfCloseableStream) -> None:
        """Answer the single request of a connection, and close it."""
        async with stream:
            host = _client(stream)
            if not self._rates.take(host, trio.current_time()):
                return
            self._opened += 1
            number = self._opened
            granted, given_up = self._places.take(number, (host,))
            if not granted:
                return
            if given_up is not None:
                self._open.pop(given_up).cancel()
            with trio.move_on_after(DEADLINE_S) as scope:
                self._open[number] = scope
                try:
                    await self._exchange(stream)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return  # it went away
                finally:
                    self._open.pop(number, None)
                    self._places.leave(number)

    async def _exchange(self, stream: trio.abc.HalfCloseableStream) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        try:
            while (event := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(MAX_HEAD_BYTES))
            if not isinstance(event, h11.Request):
                return  # the client disconnected before its request was complete
            status, kind, body = self._answer(event)
            head_only = event.method == b"HEAD"
        except h11.RemoteProtocolError as error:
            status, kind, body = _text(HTTPStatus(error.error_status_hint), "this is no HTTP request")
            head_only = False
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        )
        await stream.send_all(head.encode("ascii") + (b"" if head_only else body))
        with suppress(trio.BrokenResourceError), trio.move_on_after(CLOSE_S):
            await stream.send_eof()
            left = MAX_HEAD_BYTES
            while left > 0 and (chunk := await stream.receive_some(left)):
                left -= len(chunk)

    def _answer(self, request: h11.Request) -> Answer:
        path = request.target.partition(b"?")[0]
        if path not in {b"/metrics", b"/healthz"}:
            return _text(HTTPStatus.NOT_FOUND, "try /metrics or /healthz")
        if request.method not in {b"GET", b"HEAD"}:
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
        snapshot = self._fresh()
        if path == b"/healthz":
            healthy, text = health(snapshot)
            return _text(HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE, text)
        accept = b", ".join(value for name, value in request.headers if name == b"accept").decode("latin-1")
        wanted = "application/openmetrics-text" if "application/openmetrics-text" in accept else ""
        if wanted not in self._rendered:
            self._rendered[wanted] = exposition(snapshot, wanted)
        body, kind = self._rendered[wanted]
        return HTTPStatus.OK, kind, body

    def _fresh(self) -> StatusSnapshot:
        now = trio.current_time()
        if self._taken is None or now - self._taken[0] >= FRESH_S:
            self._taken = now, self._snapshot()
            self._rendered.clear()
        return self._taken[1]


def _client(stream: trio.abc.Stream) -> str:
    """Return the address of the client; "" if it has disconnected."""
    try:
        return str(stream.socket.getpeername()[0]) if isinstance(stream, trio.SocketStream) else ""
    except OSError:
        return ""


def _text(status: HTTPStatus, text: str) -> Answer:
    return status, "text/plain; charset=utf-8", f"{text}\n".encode()


def _shown(name: tuple[str, int] | tuple[str, int, int, int]) -> str:
    host, port = name[:2]
    return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"
