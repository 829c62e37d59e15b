"""Probes are answered whatever others do at the same port, and what others ask for costs a bounded share of
the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tidegate.runtime import http
from tidegate.runtime.http import CONNECTIONS_MAX, HttpServer, Page, serve_pages

LARGE = bytes(4 << 20)


def page(path: str) -> Page:
    return Page(200, "text/plain", LARGE if path == "/large" else b"ok\n")


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    server = await serve_pages("127.0.0.1", 0, page)
    yield server
    await server.close()


async def probe(server: HttpServer) -> bytes:
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer


@pytest.mark.parametrize("said", [b"", b"GET /livez HTTP/1.1\r\n", b"GET /large HTTP/1.1\r\n\r\n"])
@pytest.mark.parametrize("others", [CONNECTIONS_MAX - 1, CONNECTIONS_MAX, CONNECTIONS_MAX + 50])
async def test_a_probe_is_answered_while_others_stand_there(
    server: HttpServer, others: int, said: bytes
) -> None:
    standing = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(others)]
    for _, writer in standing:
        writer.write(said)
    for _ in range(5):
        assert (await probe(server)).startswith(b"HTTP/1.1 200")
    for _, writer in standing:
        writer.transport.abort()


async def test_the_oldest_connection_makes_room_and_no_other(server: HttpServer) -> None:
    standing = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(CONNECTIONS_MAX)]
    assert (await probe(server)).startswith(b"HTTP/1.1 200")
    async with asyncio.timeout(10):
        with pytest.raises(ConnectionError):
            assert await standing[0][0].read() == b""  # an orderly end would do, too
            raise ConnectionResetError
    for reader, writer in standing[1:]:
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()


def test_making_pages_takes_a_tenth_of_the_time_at_most() -> None:
    now = [0.0]
    made: list[str] = []

    def make(path: str) -> Page:
        made.append(path)
        now[0] += {"/slow": 0.05}.get(path, 0.0)
        return Page(404 if path == "/none" else 200, "text/plain", str(len(made)).encode())

    pages = http._Pages(make, lambda: now[0])
    for _ in range(100):  # a scrape every second
        now[0] += 1
        before = len(made)
        pages.get("/slow")
        assert len(made) == before + 1, "an occasional page is always new"
    begun, before = now[0], len(made)
    while now[0] < begun + 100:  # a flood
        pages.get("/slow")
        now[0] += 0.001
    spent_s = (len(made) - before) * 0.05
    assert 0.09 * 100 <= spent_s <= 0.1 * 100 + http.CREDIT_S_MAX + 0.05
    now[0] += 10
    assert pages.get("/quick").body != pages.get("/quick").body, "what costs nothing is always new"
    pages.get("/none")
    assert set(pages._kept) == {"/slow", "/quick"}, "unknown paths are not kept"
