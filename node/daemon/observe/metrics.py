"""The metrics endpoint: GET /metrics for Prometheus, GET /healthz for health checks.

Theory of operation. One request per connection, then it is closed: a scrape comes every few seconds, so nothing is saved by keeping lines
open, and an open one could be held by an idle client. Clients are not trusted, so everything has a bound:

    a connection            is closed DEADLINE_S after it began
    connections             MAX_CONNECTIONS; one more ends the oldest, which a scrape of milliseconds is never
    connections a second    RATE on average; more are closed unread
    a request's head        MAX_HEAD_BYTES; a body is not read
    a scrape's work         a snapshot is rendered once in FRESH_S, however many ask

An address that cannot be used is reported once, tried again every RETRY_S, and never ends the node.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Final

import h11
import trio

from starling.node.config.schema import MetricsSection
from starling.node.interfaces import Reporter
from starling.node.net.limits import TokenBucket
from starling.node.status.metrics import exposition, health
from starling.node.status.snapshot import StatusSnapshot

DEADLINE_S: Final = 5.0
LAST_WORDS_S: Final = 1.0
"""For a client to close after its answer; if we closed first, data still in flight would reset the connection and lose the answer."""
MAX_CONNECTIONS: Final = 32
RATE: Final = 20.0
BURST: Final = 60.0
MAX_HEAD_BYTES: Final = 8 << 10
FRESH_S: Final = 0.25
RETRY_S: Final = 30.0

TEXT: Final = "text/plain; charset=utf-8"
ALLOWED: Final = "must be a free HOST:PORT, [IPV6]:PORT or :PORT of this machine"

_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:\[\]/]*)):(?P<port>[0-9]{1,5})", re.ASCII)

Answer = tuple[HTTPStatus, str, bytes]


def parse_address(text: str) -> tuple[str | None, int]:
    """(host, port) of "HOST:PORT", "[IPV6]:PORT" or ":PORT"; the host is None for every address of the machine.

    Raises:
        ValueError: in one line, what is allowed.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise ValueError(ALLOWED)
    return match["ipv6"] or match["host"] or None, int(match["port"])


class MetricsService:
    """Serves the figures of a status snapshot.

    Args:
        section: where to listen; "" for nowhere.
        snapshot: takes the status of this moment; called up to four times a second.
        report: takes an event with the address, or the reason why there is none.
    """

    def __init__(self, section: MetricsSection, snapshot: Callable[[], StatusSnapshot], report: Reporter) -> None:
        self._listen = section.listen
        self._snapshot = snapshot
        self._report = report
        self._bucket = TokenBucket(RATE, BURST)
        self._open: dict[int, trio.CancelScope] = {}
        self._opened = 0
        self._taken: tuple[float, StatusSnapshot] | None = None
        self._rendered: dict[str, tuple[bytes, str]] = {}

    async def serve(self) -> None:
        """Serve until cancelled; returns at once where nothing is asked for, or what is asked for can never be."""
        if not self._listen:
            return
        try:
            host, port = parse_address(self._listen)
        except ValueError as error:
            self._report_failure(str(error))
            return
        reported = False
        while True:
            try:
                listeners = await trio.open_tcp_listeners(port, host=host)
            except (OSError, UnicodeError) as error:  # the latter of a name that no resolver takes
                if not reported:
                    why = error.strerror if isinstance(error, OSError) else None
                    self._report_failure(f"cannot listen there ({why or error}), {ALLOWED}")
                    reported = True
                await trio.sleep(RETRY_S)
                continue
            where = ", ".join(sorted({_shown(listener.socket.getsockname()) for listener in listeners}))
            self._report.event("metrics_listening", f"metrics at {where}", addresses=where)
            await trio.serve_listeners(self._connection, listeners)

    def _report_failure(self, why: str) -> None:
        self._report.event(
            "no_metrics",
            f"metrics.listen: {why}, got {self._listen!r}; training goes on without metrics, put another into node.toml "
            "and `starling run` again",
            level="error",
        )

    # --- one connection -----------------------------------------------------------------------------------

    async def _connection(self, stream: trio.abc.HalfCloseableStream) -> None:
        async with stream:
            if not self._bucket.take(1.0, trio.current_time()):
                return
            while len(self._open) >= MAX_CONNECTIONS:
                self._open.pop(next(iter(self._open))).cancel()
            self._opened += 1
            number = self._opened
            with trio.move_on_after(DEADLINE_S) as scope:
                self._open[number] = scope
                try:
                    await self._exchange(stream)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return  # it went away
                finally:
                    self._open.pop(number, None)

    async def _exchange(self, stream: trio.abc.HalfCloseableStream) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        answer: Answer
        head_only = False
        try:
            request = await _request(connection, stream)
            if request is None:
                return
            head_only = request.method == b"HEAD"
            answer = self._answer(request)
        except h11.RemoteProtocolError as error:
            answer = _words(HTTPStatus(error.error_status_hint), "this is no HTTP request")
        await stream.send_all(_response(answer, head_only=head_only))
        with suppress(trio.BrokenResourceError), trio.move_on_after(LAST_WORDS_S):
            await stream.send_eof()
            left = MAX_HEAD_BYTES
            while left > 0 and (chunk := await stream.receive_some(left)):
                left -= len(chunk)

    def _answer(self, request: h11.Request) -> Answer:
        path = request.target.partition(b"?")[0]
        if path not in {b"/metrics", b"/healthz"}:
            return _words(HTTPStatus.NOT_FOUND, "try /metrics or /healthz")
        if request.method not in {b"GET", b"HEAD"}:
            return _words(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
        snapshot = self._fresh()
        if path == b"/healthz":
            well, words = health(snapshot)
            return _words(HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE, words)
        accept = b", ".join(value for name, value in request.headers if name == b"accept").decode("latin-1")
        body, kind = self._render(snapshot, accept)
        return HTTPStatus.OK, kind, body

    def _fresh(self) -> StatusSnapshot:
        now = trio.current_time()
        if self._taken is None or now - self._taken[0] >= FRESH_S:
            self._taken = now, self._snapshot()
            self._rendered.clear()
        return self._taken[1]

    def _render(self, snapshot: StatusSnapshot, accept: str) -> tuple[bytes, str]:
        wish = "application/openmetrics-text" if "application/openmetrics-text" in accept else ""
        if wish not in self._rendered:
            self._rendered[wish] = exposition(snapshot, wish)
        return self._rendered[wish]


async def _request(connection: h11.Connection, stream: trio.abc.HalfCloseableStream) -> h11.Request | None:
    """The head of a request; None where the client left before it was whole."""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            return None
        connection.receive_data(await stream.receive_some(MAX_HEAD_BYTES))


def _words(status: HTTPStatus, words: str) -> Answer:
    return status, TEXT, f"{words}\n".encode()


def _response(answer: Answer, *, head_only: bool) -> bytes:
    status, kind, body = answer
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + (b"" if head_only else body)


def _shown(name: tuple[str, int] | tuple[str, int, int, int]) -> str:
    host, port = name[:2]
    return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"
