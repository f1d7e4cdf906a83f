"""HTTP for one person on this machine: serves the page's files and figures to requests with the token. Read-only.

It listens on 127.0.0.1 alone. The token is the first part of every path, so that another user or another site of the browser finds
nothing; a request whose Host is another one is refused as well, as from a name that was rebound to this machine. Every answer forbids
scripts, styles and connections of any other origin, being framed, cached, and named as referrer.
"""

import asyncio
import hmac
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from importlib.resources import files
from typing import Final
from urllib.parse import parse_qs

import h11
import msgspec

from starling.tui.web.blocks import Document
from starling.tui.web.pages import PageRequest

HOST: Final = "127.0.0.1"
MAX_HEAD_BYTES = 8 << 10
MAX_CONNECTIONS = 32
DEADLINE_S = 10.0
TOKEN_BYTES = 24
FILES: Final = {
    "": ("page.html", "text/html; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "draw.js": ("draw.js", "text/javascript; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
}
HEADERS: Final = (
    "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\nCross-Origin-Resource-Policy: same-origin\r\n"
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\nConnection: close\r\n"
)

Answer = tuple[HTTPStatus, str, bytes]
Documents = Callable[[PageRequest], Awaitable[Document]]


class PageServer:
    """Answers one request per connection within DEADLINE_S; of more than MAX_CONNECTIONS connections the oldest is closed."""

    def __init__(self, documents: Documents, token: str = "") -> None:
        self._documents = documents
        self.token = token or secrets.token_urlsafe(TOKEN_BYTES)
        self._hosts: frozenset[bytes] = frozenset()
        self._open: dict[asyncio.Timeout, None] = {}  # the oldest first
        static = files("starling.tui.web") / "static"
        self._files = {path: (kind, (static / name).read_bytes()) for path, (name, kind) in FILES.items()}

    @asynccontextmanager
    async def listening(self, port: int) -> AsyncIterator[str]:
        """Serve in the background; yield the page's address; port 0 picks a free one. Raises OSError: the port is taken or forbidden."""
        server = await asyncio.start_server(self._connection, HOST, port, limit=MAX_HEAD_BYTES)
        try:
            port = server.sockets[0].getsockname()[1]
            self._hosts = frozenset(f"{name}:{port}".encode() for name in (HOST, "localhost"))
            yield f"http://{HOST}:{port}/{self.token}/"
        finally:
            server.close()  # without waiting for connections: browsers keep some open that say nothing

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        deadline = asyncio.timeout(DEADLINE_S)
        if len(self._open) >= MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            if not oldest.expired():
                oldest.reschedule(0.0)
        self._open[deadline] = None
        try:
            async with deadline:
                await self._exchange(reader, writer)
        except (TimeoutError, OSError):
            pass  # the client disconnected, sent no request, or was dropped for another
        finally:
            self._open.pop(deadline, None)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        head_only = False
        try:
            while (event := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await reader.read(MAX_HEAD_BYTES))
            if not isinstance(event, h11.Request):
                return
            head_only = event.method == b"HEAD"
            status, kind, body = await self._answer(event)
        except h11.RemoteProtocolError as error:
            status, kind, body = _text(HTTPStatus(error.error_status_hint), "this is no HTTP request")
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{HEADERS}\r\n"
        writer.write(head.encode("ascii") + (b"" if head_only else body))
        await writer.drain()

    async def _answer(self, request: h11.Request) -> Answer:
        hosts = [value for name, value in request.headers if name == b"host"]
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return _text(HTTPStatus.MISDIRECTED_REQUEST, "open the address that `starling web` printed")
        path, _, query = request.target.partition(b"?")
        token, slash, name = path.removeprefix(b"/").partition(b"/")
        if not slash or not hmac.compare_digest(token, self.token.encode()):
            return _text(HTTPStatus.FORBIDDEN, "open the whole address that `starling web` printed: it ends with a token")
        if request.method not in {b"GET", b"HEAD"}:
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD: this page changes nothing")
        if name == b"view.json":
            return await self._view(query)
        kind_and_body = self._files.get(name.decode("latin-1"))
        if kind_and_body is None:
            return _text(HTTPStatus.NOT_FOUND, "nothing is here")
        return HTTPStatus.OK, *kind_and_body

    async def _view(self, query: bytes) -> Answer:
        try:
            given = {key: values[-1] for key, values in parse_qs(query.decode("ascii"), max_num_fields=16).items()}
            request = msgspec.convert(given, PageRequest)
        except ValueError as error:  # msgspec's is one too
            return _text(HTTPStatus.BAD_REQUEST, f"view.json: {error}")
        return HTTPStatus.OK, "application/json", msgspec.json.encode(await self._documents(request))


def _text(status: HTTPStatus, text: str) -> Answer:
    return status, "text/plain; charset=utf-8", f"{text}\n".encode()
