"""Probes are answered whatever others do at the same port, and what others ask for costs a bounded share of
the loop."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from tidegate.runtime import http
from tidegate.runtime.connections.tls import ClientAuth, ClientTls, ServerTls, TlsFiles
from tidegate.runtime.http import CONNECTIONS_MAX, HttpServer, Page, ask, serve_pages
from tidegate.tests.certificates import Authority
from tidegate.tests.eventually import eventually

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


# ---- TLS ---------------------------------------------------------------------------------------------------


@dataclass
class Encrypted:
    server: HttpServer
    tls: ServerTls
    authority: Authority
    own: TlsFiles

    def client(self, files: TlsFiles | None = None) -> ssl.SSLContext:
        return ClientTls(files or TlsFiles(authorities=self.authority.path)).newest

    async def get(self, files: TlsFiles | None = None) -> bytes:
        answer = await ask("127.0.0.1", self.server.port, "/livez", 10, tls=self.client(files))
        return answer.body


@pytest.fixture(params=[ClientAuth.NONE])
async def encrypted(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Encrypted]:
    authority = Authority(tmp_path)
    own = authority.issue("127.0.0.1")
    tls = ServerTls(own, request.param)
    server = await serve_pages("127.0.0.1", 0, page, tls)
    yield Encrypted(server, tls, authority, own)
    await server.close()


async def test_pages_come_over_https_and_over_nothing_else(encrypted: Encrypted) -> None:
    assert await encrypted.get() == b"ok\n"
    large = await ask("127.0.0.1", encrypted.server.port, "/large", 30, tls=encrypted.client())
    assert large.body == LARGE
    with pytest.raises(OSError, match="no whole HTTP"):
        await ask("127.0.0.1", encrypted.server.port, "/livez", 10)


@pytest.mark.parametrize("encrypted", [ClientAuth.REQUIRED], indirect=True)
async def test_a_client_without_a_certificate_gets_no_page_where_one_is_required(
    encrypted: Encrypted, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(OSError, match=r"(?i)certificate|reset|no whole HTTP"):
        await encrypted.get()
    assert await encrypted.get(encrypted.authority.issue(user="prometheus")) == b"ok\n"
    assert "tls_handshake_failed" in caplog.text


async def test_the_next_connection_has_the_renewed_certificate(encrypted: Encrypted) -> None:
    other = Authority(encrypted.authority.folder / "other", "other")
    fresh = other.issue("127.0.0.1")
    for new, old in ((fresh.certificate, encrypted.own.certificate), (fresh.key, encrypted.own.key)):
        assert new is not None
        assert old is not None
        shutil.copy(new, old)
    assert encrypted.tls.reload()
    assert await encrypted.get(TlsFiles(authorities=other.path)) == b"ok\n"


async def test_a_request_with_the_end_of_the_handshake_is_answered(encrypted: Encrypted) -> None:
    """In TLS 1.3 a client's last word of the handshake and its request come in one packet."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = encrypted.client().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    reader, writer = await asyncio.open_connection("127.0.0.1", encrypted.server.port)
    while True:
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            incoming.write(await reader.read(1 << 16))
    client.write(b"GET /livez HTTP/1.1\r\n\r\n")
    writer.write(outgoing.read())
    answer = b""
    while b"ok\n" not in answer:
        incoming.write(await asyncio.wait_for(reader.read(1 << 16), 10))
        with suppress(ssl.SSLWantReadError):
            answer += client.read(1 << 16)
    writer.close()


async def test_silent_handshakes_are_few_and_keep_no_probe_out(encrypted: Encrypted) -> None:
    port = encrypted.server.port
    standing = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX + 50)]
    assert await encrypted.get() == b"ok\n"
    assert len(encrypted.server._site.standing) <= CONNECTIONS_MAX
    handshakes = [task for task in asyncio.all_tasks() if "_shake" in repr(task)]
    assert len(handshakes) <= CONNECTIONS_MAX
    for _, writer in standing:
        writer.transport.abort()


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_a_silent_connection_ends_with_the_bound_on_time(
    encrypted: Encrypted, monkeypatch: pytest.MonkeyPatch, is_encrypted: bool
) -> None:
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.1)
    tls = encrypted.client() if is_encrypted else None
    reader, writer = await asyncio.open_connection("127.0.0.1", encrypted.server.port, ssl=tls)
    async with asyncio.timeout(10):
        with suppress(ConnectionError):
            assert await reader.read() == b""
    assert not encrypted.server._site.standing
    writer.transport.abort()


async def test_an_answer_that_its_client_does_not_read_ends_with_the_bound_on_time(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ANSWER_TIMEOUT_S", 0.1)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
    writer.write(b"GET /large HTTP/1.1\r\n\r\n")
    await eventually(lambda: server._site.standing)
    await eventually(lambda: not server._site.standing)
    writer.transport.abort()


async def test_a_head_without_an_end_is_bounded(server: HttpServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(bytes(2 * http.HEAD_BYTES_MAX))
    async with asyncio.timeout(4):
        with suppress(ConnectionError):
            assert await reader.read() == b""
    writer.transport.abort()


async def test_a_server_that_closes_leaves_no_handshake(encrypted: Encrypted) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", encrypted.server.port)
    await eventually(lambda: encrypted.server._site.standing)
    await encrypted.server.close()
    await eventually(lambda: not any("_shake" in repr(task) for task in asyncio.all_tasks()), timeout_s=2)
    writer.transport.abort()


async def test_connections_that_make_room_at_once_leave_no_handshake(
    encrypted: Encrypted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each goes before its handshake has begun."""
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 1)
    site, loop = encrypted.server._site, asyncio.get_running_loop()
    pairs = [socket.socketpair() for _ in range(20)]
    await asyncio.gather(
        *(loop.connect_accepted_socket(lambda: http._Connection(site), near) for near, _ in pairs)
    )
    assert len(site.standing) == 1
    await eventually(lambda: sum("_shake" in repr(task) for task in asyncio.all_tasks()) <= 1, timeout_s=2)
    for _, far in pairs:
        far.close()


async def test_nothing_is_read_before_the_handshake_begins(encrypted: Encrypted) -> None:
    transport, connection = MagicMock(), http._Connection(encrypted.server._site)
    connection.connection_made(transport)
    transport.pause_reading.assert_called_once_with()
    connection.abort()
