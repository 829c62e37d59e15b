"""TLS of gRPC: certificates are required or not, read again when they change, and keys may be encrypted."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from tidegate.runtime.connections.grpc_tls import channel_credentials, server_credentials
from tidegate.runtime.connections.tls import ClientAuth, ServerTls, TlsError, TlsFiles
from tidegate.runtime.network import bind_grpc, grpc_channel, grpc_server
from tidegate.tests.certificates import Authority


async def _echo(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return b",".join(context.auth_context().get("x509_common_name", []))


@asynccontextmanager
async def served(files: TlsFiles, client_auth: ClientAuth = ClientAuth.NONE) -> AsyncIterator[str]:
    server = grpc_server()
    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(_echo)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", {"Echo": method})])
    port = bind_grpc(server, "127.0.0.1", 0, server_credentials(ServerTls(files, client_auth)))
    await server.start()
    yield f"localhost:{port}"
    await server.stop(0)


async def ask(address: str, files: TlsFiles) -> bytes:
    async with grpc_channel(address, credentials=channel_credentials(files)) as channel:
        echo: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test/Echo")
        return await echo(b"", timeout=5)


async def refused(address: str, files: TlsFiles) -> bool:
    try:
        await ask(address, files)
    except grpc.aio.AioRpcError as error:
        return error.code() is grpc.StatusCode.UNAVAILABLE
    return False


async def test_a_client_knows_the_server_and_the_server_its_client(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path / "other", "other")
    own, alice = authority.issue("localhost"), authority.issue("alice")
    trusting = TlsFiles(authorities=authority.path)
    async with served(own) as address:
        assert await ask(address, trusting) == b""
        assert await refused(address, TlsFiles(authorities=other.path))
        assert await refused(address.replace("localhost", "127.0.0.1"), trusting)
    async with served(own, ClientAuth.REQUIRED) as address:
        assert await ask(address, alice) == b"quorum-alice-1"
        assert await refused(address, trusting)
        assert await refused(address, replace(other.issue("alice"), authorities=authority.path))


async def test_a_changed_certificate_is_shown_from_then_on(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b", "other")
    files = TlsFiles(tmp_path / "own.pem", tmp_path / "own.key", None)
    assert files.certificate is not None
    assert files.key is not None

    def install(issued: TlsFiles) -> None:
        shutil.copy(str(issued.certificate), str(files.certificate))
        shutil.copy(str(issued.key), str(files.key))

    install(authority.issue("localhost"))
    first, second = TlsFiles(authorities=authority.path), TlsFiles(authorities=other.path)
    async with served(files) as address:
        assert await ask(address, first) == b""
        install(other.issue("localhost"))
        assert await ask(address, second) == b""
        assert await refused(address, first)
        files.key.write_text("half of a key")  # the other half may come in a moment
        assert await ask(address, second) == b""


async def test_authorities_that_cannot_be_read_change_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, alice = authority.issue("localhost"), authority.issue("alice")
    trusted = tmp_path / "trusted.pem"
    shutil.copy(authority.path, trusted)
    async with served(replace(own, authorities=trusted), ClientAuth.REQUIRED) as address:
        assert await ask(address, alice) == b"quorum-alice-1"
        trusted.write_text("half of an authority")
        assert await ask(address, alice) == b"quorum-alice-1"
        assert await refused(address, TlsFiles(authorities=authority.path))


async def test_no_proxy_of_the_environment_comes_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    authority = Authority(tmp_path)
    async with served(authority.issue("localhost")) as address:
        assert await ask(address, TlsFiles(authorities=authority.path)) == b""


async def test_an_encrypted_key_is_read(tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("localhost", password=b"secret")
    async with served(replace(files, key_password="secret")) as address:
        assert await ask(address, TlsFiles(authorities=files.authorities)) == b""
    with pytest.raises(TlsError, match="encrypted"):
        server_credentials(ServerTls(files))


def test_a_port_cannot_ask_for_certificates_without_requiring_them(tmp_path: Path) -> None:
    tls = ServerTls(Authority(tmp_path).issue("localhost"), ClientAuth.REQUESTED)
    with pytest.raises(TlsError, match="requires certificates of its clients, or asks for none"):
        server_credentials(tls)
