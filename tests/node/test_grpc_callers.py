"""The guard before the gRPC services: which calls get through, for how long, and what the others cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from tidegate.node.serving import grpc_callers
from tidegate.node.serving.grpc_callers import Context, GrpcAccess, GrpcGuard
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.connections.grpc_tls import channel_credentials, server_credentials
from tidegate.runtime.connections.tls import ClientAuth, ServerTls, TlsFiles
from tidegate.runtime.network import bind_grpc, grpc_channel, grpc_server
from tidegate.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclOperation,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from tidegate.security.client_security import ClientSecurity
from tidegate.security.delegation_tokens import DelegationToken, token_password
from tidegate.security.grpc_session import Metadata, authenticated
from tidegate.security.principals import Principal
from tidegate.security.records import SecurityRecords
from tidegate.security.sasl import Identity
from tidegate.security.sasl_mechanisms import TokenRefused
from tidegate.security.session_tokens import AUTHENTICATE, MECHANISM_KEY
from tidegate.tests.certificates import Authority
from tidegate.tests.grpc_access import access
from tidegate.tests.guarded_nodes import plain_users
from tidegate.wire.errors import KafkaError

SECRET = b"the cluster's"
DESCRIBE = Acl(
    ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME), "User:alice", "*", AclOperation.DESCRIBE,
    PermissionType.ALLOW,
)  # fmt: skip
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


@dataclass
class LaterClock(SystemClock):
    """The system's, and so much later."""

    later_ms: int = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.later_ms


@dataclass
class Guarded:
    """A server with two methods, `Ask` and the stream `Follow`, which need the right of `Status`."""

    access: GrpcAccess
    clock: LaterClock
    refused: list[str]
    target: str = ""
    credentials: grpc.ChannelCredentials | None = None
    asked: list[bytes] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, request: bytes, context: Context) -> bytes:
        caller = self.access.caller(context)
        self.access.require(caller, "Status")
        self.asked.append(request)
        return str(caller.principal).encode()

    async def follow(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        caller = self.access.caller(context)
        for number in range(2):
            self.access.require(caller, "Status")
            yield b"%d" % number
            self.begun.set()
            await self.go_on.wait()

    def channel(self) -> grpc.aio.Channel:
        own = [("grpc.use_local_subchannel_pool", 1)]  # else channels to one address share a connection
        return grpc_channel(self.target, own, self.credentials)

    async def shown(self, channel: grpc.aio.Channel, **changes: Any) -> Metadata:
        """What an honest client shows."""
        given = {"mechanism": "PLAIN", "username": "alice", "password": "alice", **changes}
        return await authenticated(channel, ClientSecurity("SASL_PLAINTEXT", **given))


@asynccontextmanager
async def guarded(
    protocol: str = "SASL_PLAINTEXT",
    records: SecurityRecords | None = None,
    tls: ServerTls | None = None,
    **settings: Any,
) -> AsyncIterator[Guarded]:
    held = records or SecurityRecords(acls=frozenset({DESCRIBE}))
    refused: list[str] = []
    settings = {
        "connection_failed_authentication_delay_ms": 0,
        "sasl_enabled_mechanisms": ["PLAIN", "SCRAM-SHA-256"],
        "listener_name_grpc_plain_sasl_jaas_config": plain_users(["alice", "bob"]),
        **settings,
    }
    clock = LaterClock()
    found = access(
        protocol, lambda: held, clock=clock, token_secret=SECRET,
        on_refused=lambda *said: refused.append(f"{said[0]} {said[3]}"), **settings,
    )  # fmt: skip
    made = Guarded(found, clock, refused)
    guard = GrpcGuard(found, unguarded=("/open/",))
    server = grpc_server(interceptors=[guard])
    guard.add_to_server(server)
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Ask": grpc.unary_unary_rpc_method_handler(made.ask),
        "Follow": grpc.unary_stream_rpc_method_handler(made.follow),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", methods)])
    port = bind_grpc(server, "127.0.0.1", 0, None if tls is None else server_credentials(tls))
    made.target = f"localhost:{port}"
    await server.start()
    try:
        yield made
    finally:
        await server.stop(0)


async def ask(channel: grpc.aio.Channel, shown: Metadata = (), message: bytes = b"hello") -> bytes:
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test/Ask")
    return await method(message, metadata=shown, timeout=10)


async def follow(channel: grpc.aio.Channel, shown: Metadata = ()) -> list[bytes]:
    method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/test/Follow")
    return [answer async for answer in method(b"hello", metadata=shown, timeout=10)]


async def status_of(work: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await work
    return refused.value.code()


async def test_a_client_with_a_session_asks_and_follows() -> None:
    async with guarded() as node, node.channel() as channel:
        shown = await node.shown(channel)
        assert await ask(channel, shown) == b"User:alice"
        node.go_on.set()
        assert await follow(channel, shown) == [b"0", b"1"]


@pytest.mark.parametrize(
    "authorization", ["", "Session x", "session x", "Bearer x.y.z", "Basic YWxpY2U6YWxpY2U=", "Session"]
)
async def test_nothing_is_served_without_a_session(authorization: str) -> None:
    shown = (("authorization", authorization),) if authorization else ()
    async with guarded() as node, node.channel() as channel:
        assert await status_of(ask(channel, shown)) is UNAUTHENTICATED
        assert await status_of(follow(channel, shown)) is UNAUTHENTICATED
        assert node.asked == []


async def test_a_session_is_of_one_connection_and_ends() -> None:
    async with guarded() as node, node.channel() as own, node.channel() as stolen:
        shown = await node.shown(own)
        assert await status_of(ask(stolen, shown)) is UNAUTHENTICATED
        node.clock.later_ms = 3_599_000
        assert await ask(own, shown) == b"User:alice"
        node.clock.later_ms = 3_601_000
        assert await status_of(ask(own, shown)) is UNAUTHENTICATED


@pytest.mark.parametrize("method", ["Ask", "Follow"])
async def test_a_client_without_an_identity_is_refused_before_it_is_read(method: str) -> None:
    """It sends no message: a request of 64 MiB would stay with the client."""
    async with guarded() as node, node.channel() as channel:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(f"/test/{method}")(timeout=10)
        assert await call.code() is UNAUTHENTICATED


async def test_a_call_without_a_message_is_refused() -> None:
    async with guarded() as node, node.channel() as channel:
        shown = await node.shown(channel)
        for method in ("Ask", "Follow"):
            call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(f"/test/{method}")(
                metadata=shown, timeout=10
            )
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert node.asked == []


async def test_a_stream_ends_with_its_session() -> None:
    async with guarded() as node, node.channel() as channel:
        stream = asyncio.create_task(status_of(follow(channel, await node.shown(channel))))
        await node.begun.wait()
        node.clock.later_ms = 3_601_000
        node.go_on.set()
        assert await stream is UNAUTHENTICATED


async def test_a_session_ends_with_the_delegation_token_that_it_came_by() -> None:
    now_ms = SystemClock().wall_ms()
    alice = Principal("User", "alice")
    token = DelegationToken("id", alice, alice, (), now_ms, now_ms + 60_000, now_ms + 60_000)
    records = SecurityRecords(acls=frozenset({DESCRIBE}), tokens={"id": token})
    by_token = {
        "mechanism": "SCRAM-SHA-256", "username": "id", "password": token_password(SECRET, "id"),
        "is_token": True,
    }  # fmt: skip
    async with guarded(records=records) as node, node.channel() as channel:
        shown = await node.shown(channel, **by_token)
        assert await ask(channel, shown) == b"User:alice"
        node.clock.later_ms = 61_000
        assert await status_of(ask(channel, shown)) is UNAUTHENTICATED


async def test_a_right_is_asked_for_and_its_lack_is_reported() -> None:
    async with guarded() as node, node.channel() as channel:
        shown = await node.shown(channel, username="bob", password="bob")
        assert await status_of(ask(channel, shown)) is not grpc.StatusCode.OK
        assert node.refused == ["User:bob Status"]
        assert node.asked == []


async def test_a_refusal_does_not_repeat_a_name_of_any_length() -> None:
    """gRPC would end the call for metadata that are too long, and the client would not learn why."""
    async with guarded() as made:
        caller = grpc_callers.Caller(Principal("User", "bob"), "127.0.0.1")
        with pytest.raises(KafkaError) as refused:
            made.access.require(caller, "DescribeTopics", 1_000_000 * "x")
        assert "bob lacks DESCRIBE on TOPIC xxx" in refused.value.message
        assert len(refused.value.message) < 1000


async def test_a_principal_has_so_many_calls_and_takes_no_memory_afterwards() -> None:
    async with guarded(calls_per_principal_max=1) as node, node.channel() as channel:
        shown = await node.shown(channel)
        stream = asyncio.create_task(follow(channel, shown))
        await node.begun.wait()
        assert await status_of(ask(channel, shown)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await status_of(follow(channel, shown)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        bob = await node.shown(channel, username="bob", password="bob")
        assert await status_of(ask(channel, bob)) is not grpc.StatusCode.OK
        assert node.refused == ["User:bob Status"]
        node.go_on.set()
        assert await stream == [b"0", b"1"]
        assert await ask(channel, shown) == b"User:alice"
        assert "alice" not in repr(vars(node.access)["_calls"])


# ---- the exchange ------------------------------------------------------------------------------------------


def exchange(channel: grpc.aio.Channel, mechanism: str) -> grpc.aio.StreamStreamCall[bytes, bytes]:
    method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(AUTHENTICATE)
    return method(metadata=((MECHANISM_KEY, mechanism),), timeout=10)


async def outcome(call: grpc.aio.StreamStreamCall[bytes, bytes]) -> tuple[grpc.StatusCode, str]:
    return await call.code(), await call.details()


async def test_a_wrong_password_waits_for_its_answer() -> None:
    async with guarded(connection_failed_authentication_delay_ms=300) as node, node.channel() as channel:
        began_s = time.monotonic()
        assert await status_of(node.shown(channel, password="wrong")) is UNAUTHENTICATED
        assert time.monotonic() - began_s >= 0.3


async def test_an_exchange_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_callers, "EXCHANGE_S_MAX", 0.1)
    async with guarded() as node, node.channel() as channel:
        code, said = await outcome(exchange(channel, "PLAIN"))
        assert code is UNAUTHENTICATED
        assert "took longer than 0.1 s" in said


async def test_silent_exchanges_give_way_to_newer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_callers, "EXCHANGES_MAX", 2)
    async with guarded() as node, node.channel() as channel:
        silent = [exchange(channel, "PLAIN") for _ in range(3)]
        ends = {asyncio.create_task(outcome(call)) for call in silent}
        (ended,), _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert "2 newer ones came" in ended.result()[1]
        shown = await node.shown(channel)
        assert await ask(channel, shown) == b"User:alice"
        for call in silent:
            call.cancel()
        await asyncio.wait(ends)


async def test_a_token_of_an_exchange_is_bounded() -> None:
    async with guarded(sasl_server_max_receive_size=100) as node, node.channel() as channel:
        call = exchange(channel, "PLAIN")
        await call.write(b"\0alice\0" + b"x" * 100)
        assert await outcome(call) == (UNAUTHENTICATED, "a token of the exchange is too long")


async def test_an_exchange_that_its_client_ends_early_is_refused() -> None:
    async with guarded() as node, node.channel() as channel:
        call = exchange(channel, "SCRAM-SHA-256")
        await call.write(b"n,,n=alice,r=client")
        assert isinstance(await call.read(), bytes)
        await call.done_writing()
        assert await outcome(call) == (UNAUTHENTICATED, "the exchange ended early")


async def test_a_mechanism_is_one_that_is_enabled() -> None:
    async with guarded() as node, node.channel() as channel:
        code, said = await outcome(exchange(channel, "SCRAM-SHA-512"))
        assert code is UNAUTHENTICATED
        assert "is not enabled here, but PLAIN, SCRAM-SHA-256" in said


# ---- certificates and bearer tokens ------------------------------------------------------------------------


@pytest.mark.parametrize(("protocol", "expected"), [("SSL", None), ("SASL_SSL", UNAUTHENTICATED)])
async def test_a_certificate_is_no_identity_where_clients_authenticate_by_sasl(
    tmp_path: Path, protocol: str, expected: grpc.StatusCode | None
) -> None:
    """As on a Kafka listener: there are two proofs, and one of them does not stand for both."""
    authority = Authority(tmp_path)
    own, alice = authority.issue("localhost"), authority.issue(user="alice")
    settings: dict[str, Any] = {
        "ssl_keystore_location": str(own.certificate), "ssl_key_location": str(own.key),
        "ssl_truststore_location": str(authority.path), "listener_name_grpc_ssl_client_auth": "required",
        "ssl_principal_mapping_rules": "RULE:CN=(.*)/$1/",
    }  # fmt: skip
    tls = ServerTls(own, ClientAuth.REQUIRED)
    async with guarded(protocol, tls=tls, **settings) as node:
        node.credentials = channel_credentials(TlsFiles(alice.certificate, alice.key, authority.path))
        async with node.channel() as channel:
            if expected is None:
                assert await ask(channel) == b"User:alice"
            else:
                assert await status_of(ask(channel)) is expected
                assert await ask(channel, await node.shown(channel)) == b"User:alice"


async def test_the_log_and_not_the_client_learns_why_a_bearer_token_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with guarded(sasl_enabled_mechanisms=["OAUTHBEARER"]) as node, node.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(channel, (("authorization", "Bearer x.y.z"),))
        assert refused.value.code() is UNAUTHENTICATED
        assert refused.value.details() == "the bearer token is not accepted"
    reasons = [vars(record).get("fields", {}).get("reason", "") for record in caplog.records]
    assert any("no key set is configured" in reason for reason in reasons)


class Tokens:
    """Takes the token `good`, which ends after a minute, as alice's."""

    def identity(self, token: str, now_ms: int) -> Identity:
        if token != "good":
            raise TokenRefused("a reason for the log")
        return Identity(Principal("User", "alice"), SystemClock().wall_ms() + 60_000)


BEARER = {"bearer": cast(Any, Tokens())}
GOOD = (("authorization", "Bearer good"),)


@pytest.mark.parametrize(
    ("mechanism", "authorization", "is_served"),
    [
        ("OAUTHBEARER", "Bearer good", True),
        ("OAUTHBEARER", "Bearer bad", False),
        ("OAUTHBEARER", "Basic good", False),
        ("SCRAM-SHA-256", "Bearer good", False),
    ],
)
async def test_a_bearer_token_is_an_identity_where_it_is_enabled(
    mechanism: str, authorization: str, is_served: bool
) -> None:
    async with guarded(sasl_enabled_mechanisms=[mechanism], **BEARER) as node, node.channel() as channel:
        shown = (("authorization", authorization),)
        if is_served:
            assert await ask(channel, shown) == b"User:alice"
        else:
            assert await status_of(ask(channel, shown)) is UNAUTHENTICATED


async def test_a_stream_ends_with_its_bearer_token() -> None:
    async with guarded(sasl_enabled_mechanisms=["OAUTHBEARER"], **BEARER) as node, node.channel() as channel:
        stream = asyncio.create_task(status_of(follow(channel, GOOD)))
        await node.begun.wait()
        node.clock.later_ms = 61_000
        node.go_on.set()
        assert await stream is UNAUTHENTICATED
