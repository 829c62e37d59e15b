"""A Kafka listener whose clients must prove who they are, over real sockets: what it serves before and after,
and what those cost that never do."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tidegate.node.handlers.security import sasl_authenticate, sasl_handshake
from tidegate.node.observation.metrics import Metrics, NodeView
from tidegate.node.serving import authentication
from tidegate.node.serving.authentication import ListenerIdentity
from tidegate.node.serving.broker import Broker
from tidegate.node.serving.listener import Handlers, listen
from tidegate.node.serving.requests import Fields, RequestContext
from tidegate.node.serving.throttling import Throttling
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.network import FrameServer
from tidegate.security.delegation_tokens import DelegationToken, token_password
from tidegate.security.principals import Principal
from tidegate.security.records import SecurityRecords
from tidegate.security.scram import ScramClient, ScramCredential, ScramMechanism, credential_of
from tidegate.tests.certificates import Authority
from tidegate.tests.eventually import eventually
from tidegate.tests.guarded_nodes import plain_users
from tidegate.wire import codec
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

from .test_configuration import loaded

EMPTY = NodeView([], 0, 0, 0, 0, False, 0, True, 0)
OTHERS = ("PLAINTEXT", "GRPC", "CONTROLLER", "METRICS")
SECRET = b"the cluster's"
TOKEN_BYTES_MAX = 1024
ALICE = b"\0alice\0alice"
SHA_256 = ScramMechanism.SHA_256
VERSIONS = {
    ApiKey.SASL_HANDSHAKE: 1, ApiKey.SASL_AUTHENTICATE: 2, ApiKey.METADATA: 9, ApiKey.CREATE_TOPICS: 7,
    ApiKey.HEARTBEAT: 4,
}  # fmt: skip


@dataclass
class LaterClock(SystemClock):
    """The system's, and so much later."""

    later_ms: int = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.later_ms


class Client:
    """A connection that sends requests and reads their answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send_frame(self, frame: bytes) -> None:
        self.writer.write(len(frame).to_bytes(4, "big") + frame)

    def send(self, key: ApiKey, fields: dict[str, Any], version: int = -1, client_id: str = "c") -> None:
        version = VERSIONS[key] if version < 0 else version
        body = codec.request(key, version, fields)
        self.send_frame(codec.encode_request_frame(1, key, version, body, client_id))

    async def frame(self) -> bytes:
        async with asyncio.timeout(10):
            return await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4), "big"))

    async def ask(self, key: ApiKey, fields: dict[str, Any], version: int = -1, client_id: str = "c") -> Any:
        version = VERSIONS[key] if version < 0 else version
        self.send(key, fields, version, client_id)
        return codec.decode_response(key, version, await self.frame())[1]

    async def metadata(self, client_id: str = "c") -> str:
        """The principal, as the node knows it."""
        return str((await self.ask(ApiKey.METADATA, {"topics": []}, client_id=client_id)).cluster_id)

    async def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> ErrorCode:
        answer = await self.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": mechanism}, version)
        return ErrorCode(answer.error_code)

    async def authenticate(self, token: bytes = ALICE) -> Any:
        return await self.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": token})

    async def log_in(self) -> None:
        assert await self.handshake() is ErrorCode.NONE
        assert (await self.authenticate()).error_code == ErrorCode.NONE

    async def scram(
        self, user: str, password: str, mechanism: ScramMechanism = SHA_256, *, is_token: bool = False
    ) -> ErrorCode:
        assert await self.handshake(mechanism.mechanism_name) is ErrorCode.NONE
        client = ScramClient(mechanism, user, password, "nonce")
        first = await self.authenticate(client.first(token_authenticated=is_token))
        if first.error_code:
            return ErrorCode(first.error_code)
        return ErrorCode((await self.authenticate(client.final(first.auth_bytes))).error_code)

    async def closed(self) -> bytes:
        """What still came before the node closed the connection."""
        async with asyncio.timeout(10):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


@dataclass
class Node:
    """A listener that serves Metadata and CreateTopics."""

    server: FrameServer
    identity: ListenerIdentity
    clock: LaterClock
    metrics: Metrics
    asked: list[RequestContext]
    audited: list[int]
    records: SecurityRecords = field(default_factory=SecurityRecords)

    async def client(self, tls: ssl.SSLContext | None = None) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.server.port, ssl=tls))

    def rejected(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.metrics.page().decode())
        return {
            sample.labels["reason"]: sample.value
            for family in families
            for sample in family.samples
            if sample.name == "tidegate_rejected_frames_total"
        }


@asynccontextmanager
async def listening(
    protocol: str = "SASL_PLAINTEXT", token_secret: bytes = SECRET, **settings: Any
) -> AsyncIterator[Node]:
    metrics, clock, asked, audited = Metrics(1, "test", lambda: EMPTY), LaterClock(), [], list[int]()

    async def metadata(_: Broker, context: RequestContext, request: object) -> Fields:
        asked.append(context)
        return {"throttle_time": 0, "brokers": [], "cluster_id": str(context.principal), "topics": []}

    async def create_topics(_: Broker, context: RequestContext, request: object) -> Fields:
        asked.append(context)
        return {"throttle_time": 0, "topics": []}

    listener = f"listener__name__{protocol.lower()}__"
    uses = tuple(dict.fromkeys((protocol, *OTHERS)))
    given: dict[str, Any] = {
        "listeners": [f"{use}://127.0.0.1:0" for use in uses],
        "listener__security__protocol__map": [
            f"{use}:{use if use == protocol else 'PLAINTEXT'}" for use in uses
        ],
        "connection__failed__authentication__delay__ms": 0,
    }
    if protocol.startswith("SASL"):
        given |= {
            "sasl__server__max__receive__size": TOKEN_BYTES_MAX,
            "sasl__enabled__mechanisms": ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
            f"{listener}plain__sasl__jaas__config": plain_users(["alice", "bob"]),
        }
    of_listener = {f"{listener}{name[4:]}": value for name, value in settings.items() if name[:4] == "own_"}
    of_node = {name: value for name, value in settings.items() if name[:4] != "own_"}
    configuration = loaded(**{**given, **of_listener, **of_node})
    broker: Any = SimpleNamespace(
        configuration=configuration, cluster=SimpleNamespace(serving=True), clock=clock, metrics=metrics,
        announced_keys=frozenset(VERSIONS),
        throttling=Throttling(dict, clock, may_act_as_node=lambda _: False),
        audit=SimpleNamespace(answered=lambda context, *_: audited.append(context.api_key)),
    )  # fmt: skip
    handlers = Handlers(
        cast(
            Any,
            {
                ApiKey.SASL_HANDSHAKE: sasl_handshake.handle,
                ApiKey.SASL_AUTHENTICATE: sasl_authenticate.handle,
                ApiKey.METADATA: metadata,
                ApiKey.CREATE_TOPICS: create_topics,
            },
        ),
        {},
    )
    nodes: list[Node] = []
    identities = {
        name: ListenerIdentity(
            security, clock=clock, records=lambda: nodes[0].records, token_secret=token_secret
        )
        for name, security in configuration.listener_security.items()
    }
    server = await listen(broker, handlers, identities)
    nodes.append(Node(server, identities[protocol], clock, metrics, asked, audited))
    try:
        yield nodes[0]
    finally:
        await server.close(0)


# ---- before authentication ---------------------------------------------------------------------------------


async def test_nothing_but_the_exchange_is_served_before_it_is_over() -> None:
    async with listening() as node:
        for steps in (0, 1):
            client = await node.client()
            if steps:
                assert await client.handshake() is ErrorCode.NONE
            client.send(ApiKey.METADATA, {"topics": []})
            assert await client.closed() == b""
        assert node.asked == []


async def test_a_client_that_has_authenticated_is_served_with_requests_of_any_size() -> None:
    async with listening() as node:
        client = await node.client()
        await client.log_in()
        assert await client.metadata("long" * TOKEN_BYTES_MAX) == "User:alice"


async def test_a_wrong_password_is_answered_after_a_while_and_then_the_connection_ends() -> None:
    async with listening(connection__failed__authentication__delay__ms=300) as node:
        client = await node.client()
        await client.handshake()
        began_s = time.monotonic()
        answer = await client.authenticate(b"\0alice\0wrong")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert time.monotonic() - began_s >= 0.3
        assert await client.closed() == b""
        assert node.rejected() == {"authentication_failed": 1}


async def test_requests_that_were_sent_behind_a_wrong_password_are_not_served() -> None:
    async with listening() as node:
        client = await node.client()
        await client.handshake()
        client.send(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"\0alice\0wrong"})
        client.send(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": ALICE})
        client.send(ApiKey.METADATA, {"topics": []})
        await client.closed()
        assert node.asked == []


async def test_tokens_without_headers_are_taken_after_an_old_handshake() -> None:
    async with listening(connection__failed__authentication__delay__ms=300) as node:
        honest, liar = await node.client(), await node.client()
        for client in (honest, liar):
            assert await client.handshake(version=0) is ErrorCode.NONE
        honest.send_frame(ALICE)
        assert await honest.frame() == b""
        assert await honest.metadata() == "User:alice"
        began_s = time.monotonic()
        liar.send_frame(b"\0alice\0wrong")
        liar.send_frame(ALICE)
        liar.send(ApiKey.METADATA, {"topics": []})
        assert await liar.closed() == b""
        assert time.monotonic() - began_s >= 0.3
        assert len(node.asked) == 1


async def test_clients_that_never_authenticate_are_let_go_and_others_stay() -> None:
    async with listening() as node:
        silent, gone, honest = [await node.client() for _ in range(3)]
        await eventually(lambda: len(node.server.unauthenticated) == 3)
        gone.writer.close()
        await honest.log_in()
        await eventually(lambda: len(node.server.unauthenticated) == 1)
        node.server.look_after(asyncio.get_running_loop().time() + 31)
        assert await silent.closed() == b""
        assert await honest.metadata() == "User:alice"


# ---- sessions ----------------------------------------------------------------------------------------------


async def test_a_session_that_has_ended_serves_nothing_until_the_client_authenticates_again() -> None:
    async with listening(connections__max__reauth__ms=10_000) as node:
        honest, late = await node.client(), await node.client()
        for client in (honest, late):
            await client.log_in()
        node.clock.later_ms = 11_000
        await honest.log_in()
        assert await honest.metadata() == "User:alice"
        late.send(ApiKey.METADATA, {"topics": []})
        assert await late.closed() == b""


async def test_a_session_goes_on_as_the_same_principal_only() -> None:
    async with listening(connections__max__reauth__ms=10_000) as node:
        client = await node.client()
        await client.log_in()
        node.clock.later_ms = 5_000
        await client.handshake()
        answer = await client.authenticate(b"\0bob\0bob")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await client.closed() == b""


async def test_a_large_request_in_the_middle_of_an_exchange_is_refused_also_the_second_time() -> None:
    async with listening(connections__max__reauth__ms=10_000) as node:
        client = await node.client()
        await client.log_in()
        node.clock.later_ms = 5_000
        assert await client.handshake() is ErrorCode.NONE
        client.send_frame(bytes(TOKEN_BYTES_MAX + 1))
        assert await client.closed() == b""
        assert node.rejected() == {"unauthenticated": 1}


# ---- credentials of the cluster ----------------------------------------------------------------------------


def token(node: Node, lives_ms: int = 60_000) -> DelegationToken:
    now_ms, owner = node.clock.wall_ms(), Principal("User", "carol")
    return DelegationToken("id", owner, owner, (), now_ms, now_ms + lives_ms, now_ms + lives_ms)


async def test_a_delegation_token_is_its_owner_for_as_long_as_it_lives() -> None:
    async with listening() as node:
        node.records = SecurityRecords(tokens={"id": token(node)})
        password = token_password(SECRET, "id")
        client = await node.client()
        assert await client.scram("id", password, is_token=True) is ErrorCode.NONE
        assert await client.metadata() == "User:carol"
        assert node.asked[0].principal.token_authenticated
        as_user = await node.client()
        assert await as_user.scram("id", password) is ErrorCode.SASL_AUTHENTICATION_FAILED
        forged = await node.client()
        wrong = token_password(b"another cluster's", "id")
        assert await forged.scram("id", wrong, is_token=True) is ErrorCode.SASL_AUTHENTICATION_FAILED
        node.clock.later_ms = 61_000
        client.send(ApiKey.METADATA, {"topics": []})
        assert await client.closed() == b""
        late = await node.client()
        assert await late.scram("id", password, is_token=True) is ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_without_a_secret_of_the_cluster_no_token_opens_anything() -> None:
    """Everyone can make the HMAC of an empty secret."""
    async with listening(token_secret=b"") as node:
        node.records = SecurityRecords(tokens={"id": token(node)})
        client = await node.client()
        forged = token_password(b"", "id")
        assert await client.scram("id", forged, is_token=True) is ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_a_token_opens_by_each_mechanism_and_many_take_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authentication, "TOKEN_CREDENTIALS_MAX", 3)
    async with listening() as node:
        ids = [f"id-{number}" for number in range(4)]
        node.records = SecurityRecords(tokens={each: token(node) for each in ids})
        for each in ids:
            for mechanism in ScramMechanism:
                client, password = await node.client(), token_password(SECRET, each)
                assert await client.scram(each, password, mechanism, is_token=True) is ErrorCode.NONE
        assert repr(vars(node.identity)).count("'id-") <= 3


async def test_an_unknown_user_looks_like_those_that_there_are_now() -> None:
    async with listening() as node:
        for iterations in (4096, 8192):
            credential = ScramCredential(b"salt", b"stored", b"server", iterations)
            node.records = SecurityRecords(scram={("dave", SHA_256): credential})
            client = await node.client()
            await client.handshake("SCRAM-SHA-256")
            answer = await client.authenticate(b"n,,n=nobody,r=same")
            assert answer.auth_bytes.endswith(f",i={iterations}".encode())


async def test_a_password_that_has_changed_holds_at_once() -> None:
    def records(password: str) -> SecurityRecords:
        salted = SHA_256.salted_password(password, b"salt", 4096)
        return SecurityRecords(scram={("dave", SHA_256): credential_of(SHA_256, salted, b"salt", 4096)})

    async with listening() as node:
        for present, given, expected in (
            ("old", "old", ErrorCode.NONE),
            ("new", "old", ErrorCode.SASL_AUTHENTICATION_FAILED),
            ("new", "new", ErrorCode.NONE),
        ):
            node.records = records(present)
            assert await (await node.client()).scram("dave", given) is expected
        node.records = SecurityRecords()
        assert await (await node.client()).scram("dave", "new") is ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_each_exchange_has_a_nonce_of_its_own() -> None:
    async with listening() as node:
        nonces = set()
        for _ in range(3):
            client = await node.client()
            await client.handshake("SCRAM-SHA-256")
            answer = await client.authenticate(b"n,,n=nobody,r=same")
            nonces.add(answer.auth_bytes.split(b",")[0])
        assert len(nonces) == 3
        assert min(map(len, nonces)) >= len(b"r=same") + 32


# ---- any listener ------------------------------------------------------------------------------------------


async def test_a_request_that_this_node_does_not_serve_ends_the_connection() -> None:
    async with listening("PLAINTEXT") as node:
        client = await node.client()
        client.send(ApiKey.HEARTBEAT, {"group_id": "g", "generation_id": 1, "member_id": "m"})
        assert await client.closed() == b""
        assert node.rejected() == {"unsupported_version": 1}


async def test_what_changes_metadata_is_audited() -> None:
    async with listening("PLAINTEXT") as node:
        client = await node.client()
        await client.metadata()
        await client.ask(ApiKey.CREATE_TOPICS, {"topics": [], "timeout": 1000, "validate_only": False})
        assert node.audited == [ApiKey.CREATE_TOPICS]


async def test_a_client_without_sasl_gets_no_exchange() -> None:
    async with listening("PLAINTEXT") as node:
        client = await node.client()
        assert await client.handshake() is ErrorCode.ILLEGAL_SASL_STATE
        assert (await client.authenticate()).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.metadata() == "User:ANONYMOUS"


async def test_many_refusals_are_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as node:
        for _ in range(30):
            client = await node.client()
            client.send(ApiKey.METADATA, {"topics": []})
            assert await client.closed() == b""
        assert node.rejected() == {"illegal_sasl_state": 30}
        assert sum(record.msg == "request_refused" for record in caplog.records) == 10


@pytest.mark.parametrize("setting", ["max__connections__per__ip", "max__connections", "own_max__connections"])
async def test_connections_are_limited(setting: str) -> None:
    limits: dict[str, Any] = {setting: 2}
    async with listening("PLAINTEXT", **limits) as node:
        kept = [await node.client() for _ in range(2)]
        for client in kept:
            assert await client.metadata() == "User:ANONYMOUS"
        assert await (await node.client()).closed() == b""
        assert node.rejected() == {"too_many_connections": 1}
        assert await kept[0].metadata() == "User:ANONYMOUS"
        kept[1].writer.close()
        await eventually(lambda: node.server.open_count == 1)
        assert await (await node.client()).metadata() == "User:ANONYMOUS"


async def test_an_address_that_is_gone_takes_no_memory() -> None:
    async with listening("PLAINTEXT") as node:
        client = await node.client()
        assert await client.metadata() == "User:ANONYMOUS"
        assert "127.0.0.1" in repr(vars(node.server)["_of_address"])
        client.writer.close()
        await eventually(lambda: node.server.open_count == 0)
        assert "127.0.0.1" not in repr(vars(node.server)["_of_address"])


async def test_an_idle_connection_is_closed() -> None:
    async with listening("PLAINTEXT", connections__max__idle__ms=5_000) as node:
        client = await node.client()
        assert await client.metadata() == "User:ANONYMOUS"
        now_s = asyncio.get_running_loop().time()
        for later_s in (0, 4):
            node.server.look_after(now_s + later_s)
        assert await client.metadata() == "User:ANONYMOUS"
        for later_s in (8, 14):
            node.server.look_after(now_s + later_s)
        assert await client.closed() == b""


async def test_frames_take_so_much_memory_together(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[int] = []
    made = FrameServer.__init__

    def init(self: FrameServer, **options: Any) -> None:
        budgets.append(options["budget"].limit_bytes)
        made(self, **options)

    monkeypatch.setattr(FrameServer, "__init__", init)
    async with listening("PLAINTEXT", queued__max__request__bytes=300 << 20):
        assert budgets == [300 << 20]


async def test_a_certificate_is_the_identity_on_a_listener_with_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("localhost")
    settings: dict[str, Any] = {
        "own_ssl__keystore__location": str(own.certificate), "own_ssl__key__location": str(own.key),
        "own_ssl__truststore__location": str(authority.path), "own_ssl__client__auth": "required",
        "own_ssl__principal__mapping__rules": "RULE:CN=(a.*)/$1/",
    }  # fmt: skip
    async with listening("SSL", **settings) as node:
        for user, served in (("alice", True), ("mallory", False)):
            files = authority.issue(user=user)
            context = ssl.create_default_context(cafile=authority.path)
            context.check_hostname = False
            assert files.certificate
            context.load_cert_chain(files.certificate, files.key)
            client = await node.client(context)
            if served:
                assert await client.metadata() == f"User:{user}"
            else:  # no rule maps its name
                client.send(ApiKey.METADATA, {"topics": []})
                assert await client.closed() == b""
        plain = await node.client()
        plain.send(ApiKey.METADATA, {"topics": []})
        assert codec.request(ApiKey.METADATA, 9, {"topics": []}) not in await plain.closed()
        assert len(node.asked) == 1
