"""A read-only HTTP page server for metrics and probes: GET, small answers, one request a connection.  And one
request of a client (`ask`), with a bound on time and size.

It runs on the node's own event loop on purpose: a probe that is answered proves that the loop turns.
Requests are bounded (8 KiB of head, 5 seconds with the TLS handshake, 128 connections), and answers are (30
seconds); anything but GET and HEAD is refused.

The server answers a probe whatever other connections do. When all connections are in use, the server closes
the oldest one for a new one: a probe sends its request at once and closes, while a client that sends nothing,
or does not read its answer, is among the oldest.  Making pages takes a tenth of the loop's time at most: an
occasional request always gets a new page, and a flood of requests gets the page of a moment ago.
"""

from __future__ import annotations

import asyncio
import errno
import http.client
import io
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from .connections.frames import LogLimiter, peer_of
from .connections.host_names import check_host
from .connections.tls import HANDSHAKE_S_MAX, ServerTls
from .network import PortInUse, tls_reason

HEAD_BYTES_MAX = 8192
PAGE_BYTES_MAX = 16 << 20
CONNECTIONS_MAX = 128
REQUEST_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
SHARE_OF_TIME = 0.1
"""How much of its time the loop may spend on pages."""
CREDIT_S_MAX = 1.0
"""Of time that was not spent on pages, as much as may be spent at once."""
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Page:
    """An answer: status code, content type and body."""

    status: int
    content_type: str
    body: bytes


class HttpServer:
    """A listening page server; `port` is the real one when 0 was asked for."""

    def __init__(self, server: asyncio.Server, site: _Site) -> None:
        self._server = server
        self._site = site
        self.port: int = server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        for each in list(self._site.standing):
            each.abort()
        await self._server.wait_closed()


async def serve_pages(
    host: str, port: int, page: Callable[[str], Page], tls: ServerTls | None = None
) -> HttpServer:
    """Answers GET requests with `page(path)`, with `tls` over HTTPS.  Raises PortInUse, or OSError for an
    address that is not this machine's."""
    loop = asyncio.get_running_loop()
    site = _Site(_Pages(page, loop.time), tls)
    try:
        return HttpServer(await loop.create_server(lambda: _Connection(site), host, port), site)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from error
        raise


class _Site:
    """What all connections of a server share."""

    def __init__(self, pages: _Pages, tls: ServerTls | None) -> None:
        self.pages = pages
        self.tls = tls
        self.standing: dict[_Connection, None] = {}
        """The oldest first."""
        self.limiter = LogLimiter()

    def began(self, connection: _Connection) -> None:
        if len(self.standing) >= CONNECTIONS_MAX:
            next(iter(self.standing)).abort()
        self.standing[connection] = None


class _Connection(asyncio.Protocol):
    """One request and its answer.  The time for the request begins with the connection, before TLS."""

    def __init__(self, site: _Site) -> None:
        self._site = site
        self._head = bytearray()
        self._may_answer = site.tls is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._end_within(REQUEST_TIMEOUT_S)
        self._site.began(self)
        if self._site.tls is not None:
            self._transport.pause_reading()  # until the handshake begins
            self._handshake = asyncio.create_task(self._shake(self._transport, self._site.tls))

    def data_received(self, data: bytes) -> None:
        self._head += data
        self._answer_whole_request()

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._site.standing.pop(self, None)

    def abort(self) -> None:
        """Also in the handshake, which ends with it, and whose failure asyncio does not report as a lost
        connection."""
        self.connection_lost(None)
        self._transport.abort()

    def _end_within(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)

    async def _shake(self, raw: asyncio.Transport, tls: ServerTls) -> None:
        loop = asyncio.get_running_loop()
        peer = peer_of(raw)
        try:
            encrypted = await loop.start_tls(
                raw, self, tls.context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S_MAX
            )
        except OSError as error:
            self._site.limiter.warning(
                loop.time(), "tls_handshake_failed", peer=peer, reason=tls_reason(error)
            )
            encrypted = None
        if encrypted is None or encrypted.is_closing():
            self.abort()
            return
        self._transport, self._may_answer = encrypted, True
        self._answer_whole_request()

    def _answer_whole_request(self) -> None:
        if not self._may_answer:
            return
        if b"\r\n\r\n" not in self._head:
            if len(self._head) > HEAD_BYTES_MAX:
                self.abort()
            return
        self._may_answer = False
        self._timer.cancel()
        self._end_within(ANSWER_TIMEOUT_S)
        method, answer = _answer(bytes(self._head), self._site.pages.get)
        self._transport.write(_encode(answer, with_body=method != b"HEAD"))
        self._transport.close()


class _Pages:
    """Makes pages, and gives out the last one of a path while making them has taken more than its share of
    the loop's time."""

    def __init__(self, make: Callable[[str], Page], now: Callable[[], float]) -> None:
        self._make = make
        self._now = now
        self._kept: dict[str, Page] = {}
        self._credit_s = CREDIT_S_MAX
        self._seen_at = now()

    def get(self, path: str) -> Page:
        begun = self._now()
        self._credit_s = min(CREDIT_S_MAX, self._credit_s + (begun - self._seen_at) * SHARE_OF_TIME)
        self._seen_at = begun
        kept = self._kept.get(path)
        if kept is not None and self._credit_s <= 0:
            return kept
        page = self._make(path)
        self._seen_at = self._now()
        self._credit_s -= self._seen_at - begun
        if page.status == 200:  # only the known paths are kept, because clients can invent paths without end
            self._kept[path] = page
        else:
            self._kept.pop(path, None)
        return page


def _answer(head: bytes, page: Callable[[str], Page]) -> tuple[bytes, Page]:
    method, _, rest = head.partition(b" ")
    target = rest.partition(b" ")[0]
    if method not in (b"GET", b"HEAD"):
        return method, Page(405, "text/plain", b"only GET is served here\n")
    return method, page(target.partition(b"?")[0].decode("latin-1"))


def _encode(page: Page, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {REASONS.get(page.status, 'Unknown')}\r\n"
        f"Content-Type: {page.content_type}\r\nContent-Length: {len(page.body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (page.body if with_body else b"")


# ---- a client ----------------------------------------------------------------------------------------------


async def ask(
    host: str,
    port: int,
    target: str,
    timeout_s: float,
    *,
    bytes_max: int = PAGE_BYTES_MAX,
    tls: ssl.SSLContext | None = None,
) -> Page:
    """The answer to GET, whatever its status; `target`: path and query.  Raises OSError: also when the answer
    is not whole within `timeout_s` (TimeoutError), has more than `bytes_max` bytes with its head, or is no
    HTTP."""
    check_host(host, port)
    name = f"[{host}]" if ":" in host else host
    own_port = "" if port == (80 if tls is None else 443) else f":{port}"
    request = f"GET {target} HTTP/1.1\r\nHost: {name}{own_port}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            try:
                writer.write(request.encode())
                received = await _received(reader, bytes_max)
            finally:
                writer.transport.abort()
    except TimeoutError as error:
        raise TimeoutError(errno.ETIMEDOUT, f"no whole answer within {timeout_s:g} s") from error
    return _decoded(received)


async def _received(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    """All until the server closes."""
    received = bytearray()
    while chunk := await reader.read(bytes_max):
        received += chunk
        if len(received) > bytes_max:
            raise OSError(errno.EMSGSIZE, f"the answer has more than {bytes_max} bytes")
    return bytes(received)


class _Received:
    """As the socket that http.client reads an answer from."""

    def __init__(self, received: bytes) -> None:
        self._received = received

    def makefile(self, _: str) -> io.BytesIO:
        return io.BytesIO(self._received)


def _decoded(received: bytes) -> Page:
    answer = http.client.HTTPResponse(cast(socket.socket, _Received(received)))
    try:
        answer.begin()
        return Page(answer.status, answer.headers.get_content_type(), answer.read())
    except http.client.HTTPException as error:
        raise OSError(errno.EBADMSG, f"the answer is no whole HTTP: {type(error).__name__}") from error


async def get(
    host: str, port: int, path: str, timeout_s: float, tls: ssl.SSLContext | None = None
) -> str | None:
    """The body of the page; None when it does not come."""
    try:
        return (await ask(host, port, path, timeout_s, tls=tls)).body.decode(errors="replace")
    except OSError:
        return None
