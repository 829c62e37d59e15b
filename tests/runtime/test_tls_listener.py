"""TLS listeners: certificates change while they serve, and a peer that does not finish its handshake counts
like any other connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tidegate.runtime import network
from tidegate.runtime.connections.tls import (
    ClientAuth,
    ClientTls,
    MutualTls,
    ServerTls,
    TlsError,
    TlsFiles,
    TlsOptions,
)
from tidegate.runtime.network import FrameConnection, FrameServer, connect_frames, serve_frames
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


async def test_a_handshake_has_its_time(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "HANDSHAKE_S_MAX", 0.1)
    refused: list[str] = []
    server = await serve_frames(
        HOST, 0, Echo, MAX, tls=ServerTls(authority.issue("broker")), on_refused=refused.append
    )
    reader, writer = await asyncio.open_connection(HOST, server.port)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    assert refused == ["tls_handshake_failed"]
    assert server.open_count == 0
    writer.close()
    await server.close()


async def test_a_client_checks_the_name_of_the_host(listen: Listen, authority: Authority) -> None:
    right, wrong = [await listen(ServerTls(authority.issue(name))) for name in (HOST, "broker")]
    checking = ClientTls(TlsFiles(authorities=authority.path))
    assert await echoed(right.port, checking) == b"hello"
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        await echoed(wrong.port, checking)
    stranger = ClientTls(TlsFiles(authorities=Authority(authority.folder, "other").path))
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        await echoed(right.port, stranger)


@pytest.mark.parametrize("days", [-1, 5])
def test_a_certificate_outside_of_its_time_is_refused(authority: Authority, days: int) -> None:
    if days < 0:
        with pytest.raises(TlsError, match="has expired at"):
            ServerTls(authority.issue("broker", days=days))
    else:
        with pytest.raises(TlsError, match="is not valid before"):
            ServerTls(authority.issue("broker", days=days, from_days=2))


# ---- in memory ---------------------------------------------------------------------------------------------


def shaken(
    server: ServerTls, client: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends after a handshake (client, server).  Raises SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, session=session),
        server.context.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    with pytest.raises(ssl.SSLWantReadError):
        ends[0].read()  # tickets of TLS 1.3 would come behind the handshake
    return ends


def client_of(authority: Authority, version: str, own: TlsFiles | None = None) -> ssl.SSLContext:
    """Of a client that would resume its sessions."""
    files = TlsFiles(authorities=authority.path)
    if own is not None:
        files = TlsFiles(own.certificate, own.key, authority.path)
    options = TlsOptions(versions=frozenset({version}))
    context = ClientTls(files, check_host_name=False, options=options).newest
    context.options &= ~ssl.OP_NO_TICKET
    return context


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_no_session_is_resumed(authority: Authority, version: str) -> None:
    server, context = ServerTls(authority.issue("broker")), client_of(authority, version)
    first, _ = shaken(server, context)
    assert first.version() == version
    assert first.session is not None
    assert not first.session.has_ticket
    second, of_server = shaken(server, context, first.session)
    assert not second.session_reused
    assert not of_server.session_reused


def test_a_client_of_a_former_authority_does_not_come_in_by_a_session(authority: Authority) -> None:
    files = authority.issue("broker")
    server = ServerTls(files, ClientAuth.REQUIRED)
    alice = client_of(authority, "TLSv1.2", authority.issue("alice"))
    first, _ = shaken(server, alice)
    successor = Authority(authority.folder / "next", "next")
    renewed = successor.issue("broker")
    for new, old in ((renewed.certificate, files.certificate), (renewed.key, files.key)):
        assert new
        assert old
        new.replace(old)
    alice.load_verify_locations(successor.path)  # she trusts the new one
    successor.path.replace(authority.path)
    assert server.reload()
    with pytest.raises(ssl.SSLError):
        shaken(server, alice, first.session)


@pytest.mark.parametrize(("server", "client"), [("TLSv1.3", "TLSv1.2"), ("TLSv1.2", "TLSv1.3")])
def test_only_the_versions_that_are_set_are_spoken(authority: Authority, server: str, client: str) -> None:
    tls = ServerTls(authority.issue("broker"), options=TlsOptions(versions=frozenset({server})))
    assert shaken(tls, client_of(authority, server))[0].version() == server
    with pytest.raises(ssl.SSLError):
        shaken(tls, client_of(authority, client))


def test_nodes_speak_the_newest_version_to_each_other_alone(authority: Authority) -> None:
    own = authority.issue("node-1")
    tls = MutualTls.load(own, 1)
    shaken(tls.server, client_of(authority, "TLSv1.3", own))
    for stranger in (client_of(authority, "TLSv1.2", own), client_of(authority, "TLSv1.3")):
        with pytest.raises(ssl.SSLError):
            shaken(tls.server, stranger)
    assert tls.client.newest.minimum_version is ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize("versions", [{"TLSv1.1"}, {"TLSv1.2", "SSLv3"}, set()])
def test_versions_that_are_not_safe_are_refused(authority: Authority, versions: set[str]) -> None:
    with pytest.raises(TlsError, match="the versions of TLS are"):
        ServerTls(authority.issue("broker"), options=TlsOptions(versions=frozenset(versions)))


def test_only_the_ciphers_that_are_set_are_used(authority: Authority) -> None:
    wanted = "ECDHE-ECDSA-CHACHA20-POLY1305"
    tls = ServerTls(authority.issue("broker"), options=TlsOptions(ciphers=wanted))
    cipher = shaken(tls, client_of(authority, "TLSv1.2"))[1].cipher()
    assert cipher is not None
    assert cipher[0] == wanted
    with pytest.raises(TlsError, match="OpenSSL knows none of these ciphers"):
        ServerTls(authority.issue("broker"), options=TlsOptions(ciphers="NONE-SUCH"))


def test_a_connection_is_neither_compressed_nor_negotiated_again(authority: Authority) -> None:
    tls = ServerTls(authority.issue("broker"))
    for context in (tls.context, tls.newest, trusting(authority).newest):
        assert context.options & ssl.OP_NO_COMPRESSION
        assert context.options & ssl.OP_NO_RENEGOTIATION


def test_a_listener_needs_a_certificate_and_the_authorities_of_its_clients(authority: Authority) -> None:
    with pytest.raises(TlsError, match="a listener needs a certificate"):
        ServerTls(TlsFiles(authorities=authority.path))
    own = authority.issue("broker")
    for client_auth in (ClientAuth.REQUIRED, ClientAuth.REQUESTED):
        with pytest.raises(TlsError, match="needs the authorities"):
            ServerTls(TlsFiles(own.certificate, own.key), client_auth)


def test_a_fault_of_the_files_is_found_again_until_it_is_mended(authority: Authority) -> None:
    files = authority.issue("broker")
    tls = ServerTls(files)
    assert files.key
    good = files.key.read_bytes()
    files.key.write_text("half of a key")
    for _ in range(2):
        with pytest.raises(TlsError):
            tls.reload()
    files.key.write_bytes(good)
    assert tls.reload()
