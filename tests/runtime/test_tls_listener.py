"""TLS listeners: certificates change while they serve, and a peer that does not finish its handshake counts
like any other connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tidegate.runtime.network import FrameConnection, FrameServer, connect_frames, serve_frames
from tidegate.runtime.tls import ClientAuth, ClientTls, ServerTls, TlsError, TlsFiles, TlsOptions
from tidegate.tests.certificates import Authority
from tidegate.tests.eventually import eventually

HOST = "127.0.0.1"
MAX = 1 << 20


class Echo:
    """Sends each frame back."""

    def __init__(self, connection: FrameConnection) -> None:
        self.connection = connection

    def on_frame(self, frame: memoryview) -> None:
        self.connection.send(bytes(frame))

    def on_close(self, reason: str) -> None:
        pass


Listen = Callable[[ServerTls], Awaitable[FrameServer]]


@pytest.fixture
async def listen() -> AsyncIterator[Listen]:
    servers: list[FrameServer] = []

    async def start(tls: ServerTls) -> FrameServer:
        server = await serve_frames(HOST, 0, Echo, MAX, tls=tls)
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def trusting(authority: Authority, own: TlsFiles | None = None) -> ClientTls:
    files = (
        TlsFiles(own.certificate, own.key, authority.path) if own else TlsFiles(authorities=authority.path)
    )
    return ClientTls(files, check_host_name=False)


async def echoed(port: int, tls: ClientTls, message: bytes = b"hello") -> bytes:
    """What the server sends back on a connection of its own.  Raises OSError when there is no connection."""
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def on_frame(frame: memoryview) -> None:
        answer.set_result(bytes(frame))

    def on_close(reason: str) -> None:
        if not answer.done():
            answer.set_exception(ConnectionError(reason))

    connection = await connect_frames(HOST, port, on_frame, on_close, MAX, 5, tls=tls)
    try:
        connection.send(message)
        return await answer
    finally:
        connection.abort()


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_frames_travel_over_tls(listen: Listen, authority: Authority, version: str) -> None:
    options = TlsOptions(versions=frozenset({version}))
    server = await listen(ServerTls(authority.issue("broker"), options=options))
    assert await echoed(server.port, trusting(authority), b"x" * 300_000) == b"x" * 300_000


async def test_what_comes_with_the_last_bytes_of_the_handshake_is_served(
    listen: Listen, authority: Authority
) -> None:
    server = await listen(ServerTls(authority.issue("broker")))
    reader, writer = await asyncio.open_connection(
        HOST, server.port, ssl=trusting(authority).newest, server_hostname=""
    )
    writer.write(b"".join(b"\0\0\0\x01" + bytes([n]) for n in range(100)))  # with the client's Finished
    assert await reader.readexactly(500) == b"".join(b"\0\0\0\x01" + bytes([n]) for n in range(100))
    writer.close()
    await writer.wait_closed()


async def test_a_client_certificate_is_asked_for_as_set(listen: Listen, authority: Authority) -> None:
    stranger = Authority(authority.folder, "stranger")
    own, foreign = authority.issue("alice"), stranger.issue("mallory")
    for client_auth, without in ((ClientAuth.REQUESTED, True), (ClientAuth.REQUIRED, False)):
        server = await listen(ServerTls(authority.issue("broker"), client_auth))
        assert await echoed(server.port, trusting(authority, own)) == b"hello"
        for client, accepted in ((trusting(authority), without), (trusting(authority, foreign), False)):
            if accepted:
                assert await echoed(server.port, client) == b"hello"
            else:
                with pytest.raises(OSError, match=r".+"):
                    await echoed(server.port, client)


async def test_new_certificates_are_used_from_the_next_connection_on(
    listen: Listen, authority: Authority
) -> None:
    files = authority.issue("broker")
    tls = ServerTls(files, ClientAuth.REQUIRED)
    server = await listen(tls)
    alice = trusting(authority, authority.issue("alice"))
    assert await echoed(server.port, alice) == b"hello"
    assert not tls.reload()

    successor = Authority(authority.folder / "next", "next")
    renewed = successor.issue("broker")
    bob = trusting(successor, successor.issue("bob"))
    with pytest.raises(ssl.SSLError):
        await echoed(server.port, bob)
    assert files.certificate
    assert renewed.certificate
    assert files.key
    assert renewed.key
    renewed.certificate.replace(files.certificate)
    with pytest.raises(TlsError, match="not a PEM certificate and its key"):
        tls.reload()  # the key is still the old one's
    assert await echoed(server.port, alice) == b"hello", "what was loaded stays in use"
    renewed.key.replace(files.key)
    successor.path.replace(authority.path)
    assert tls.reload()
    assert await echoed(server.port, bob) == b"hello"
    with pytest.raises(OSError, match=r".+"):
        await echoed(server.port, alice)


async def test_handshakes_that_do_not_end_count_as_connections(listen: Listen, authority: Authority) -> None:
    refused: list[str] = []
    server = await serve_frames(
        HOST,
        0,
        Echo,
        MAX,
        tls=ServerTls(authority.issue("broker")),
        max_connections=8,
        on_refused=refused.append,
    )
    others: list[FrameConnection] = []
    try:
        silent = [await asyncio.open_connection(HOST, server.port) for _ in range(3)]
        await eventually(lambda: server.open_count == 3)
        others = [
            await connect_frames(
                HOST, server.port, lambda _: None, lambda _: None, MAX, 5, tls=trusting(authority)
            )
            for _ in range(5)
        ]
        with pytest.raises(ConnectionError):
            await echoed(server.port, trusting(authority))
        assert refused == ["too_many_connections"]
        silent[0][1].write(b"GET / HTTP/1.1\r\n\r\n")
        await eventually(lambda: refused[1:] == ["tls_handshake_failed"])
        assert await echoed(server.port, trusting(authority)) == b"hello"
    finally:
        for _, writer in silent:
            writer.close()
        for other in others:
            other.abort()
        await server.close()
    assert server.open_count == 0


@pytest.mark.parametrize("days", [-1, 5])
def test_a_certificate_outside_of_its_time_is_refused(authority: Authority, days: int) -> None:
    if days < 0:
        with pytest.raises(TlsError, match="has expired at"):
            ServerTls(authority.issue("broker", days=days))
    else:
        with pytest.raises(TlsError, match="is not valid before"):
            ServerTls(authority.issue("broker", days=days, from_days=2))
