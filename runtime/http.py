"""A read-only HTTP page server for metrics and probes: GET, small answers, one request a connection.

It runs on the node's own event loop on purpose: a probe that is answered proves that the loop turns.  Requests are bounded
(8 KiB of head, 5 seconds, 64 connections); anything but GET and HEAD is refused.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass

from .network import PortInUse

HEAD_BYTES_MAX = 8192
CONNECTIONS_MAX = 64
REQUEST_TIMEOUT_S = 5.0
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@dataclass(frozen=True, slots=True)
class Page:
    """An answer: status code, content type and body."""

    status: int
    content_type: str
    body: bytes


class HttpServer:
    """A listening page server; `port` is the real one when 0 was asked for."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.port: int = server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        await self._server.wait_closed()


async def serve_pages(host: str, port: int, page: Callable[[str], Page]) -> HttpServer:
    """Answers GET requests with `page(path)`.  Raises PortInUse, or OSError for an address that is not this machine's."""
    open_connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_connections
        if open_connections >= CONNECTIONS_MAX:
            writer.close()
            return
        open_connections += 1
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                method, answer = _answer(head, page)
                writer.write(_encode(answer, with_body=method != b"HEAD"))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # the peer's own doing: nothing to answer, nothing was changed
        finally:
            open_connections -= 1
            writer.close()

    try:
        return HttpServer(await asyncio.start_server(serve, host, port, limit=HEAD_BYTES_MAX))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from error
        raise


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
