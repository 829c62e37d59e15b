"""Reads over gRPC by clients with certificates, passwords and bearer tokens: what each may see, and what an
attacker gets."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tidegate.node.data.data_service import ERROR_DETAIL_KEY
from tidegate.node.serving import grpc_callers
from tidegate.node.serving.key_set import BearerKeys
from tidegate.proto import data_pb2 as pb
from tidegate.proto import data_pb2_grpc
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.connections.grpc_tls import channel_credentials, server_credentials
from tidegate.runtime.connections.tls import ClientAuth, ServerTls, TlsFiles
from tidegate.runtime.network import free_port, grpc_channel_blocking
from tidegate.security.acls import (
    Acl,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from tidegate.security.bearer_tokens import TokenRules, parse_key_set
from tidegate.security.client_security import ClientSecurity
from tidegate.security.grpc_session import authenticate
from tidegate.security.principals import Principal
from tidegate.security.records import SecurityRecords
from tidegate.security.scram import ScramMechanism, credential_of
from tidegate.security.session_tokens import AUTHENTICATE, MECHANISM_KEY, SessionTokens
from tidegate.spark.connecting.data_client import DataClient, offset_query
from tidegate.spark.connecting.errors import ReadError
from tidegate.spark.reading.fetch import RangeRequest, fetch_range
from tidegate.spark.session import local_session
from tidegate.tests.certificates import Authority
from tidegate.tests.grpc_access import access, bearer_keys
from tidegate.wire.errors import ErrorCode

from .served import TOPIC_ID, ServedCluster, committed, history

PASSWORD = "wonder land"
NO_LEADER = pb.Leader(node_id=-1, leader_epoch=-1)
PLAIN_USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_bob="builder";'
SCRAM = ScramMechanism.SHA_512


def acl(
    principal: str,
    operation: AclOperation,
    name: str = "flights",
    permission: PermissionType = PermissionType.ALLOW,
) -> Acl:
    pattern = ResourcePattern(ResourceType.TOPIC, name, PatternType.LITERAL)
    return Acl(pattern, f"User:{principal}", "*", operation, permission)


def records(*acls: Acl) -> SecurityRecords:
    salt = b"0123456789abcdef"
    credential = credential_of(SCRAM, SCRAM.salted_password(PASSWORD, salt, 4096), salt, 4096)
    return SecurityRecords(acls=frozenset(acls), scram={("alice", SCRAM): credential})


READER = records(acl("alice", AclOperation.READ))
COUNTER = records(acl("alice", AclOperation.DESCRIBE))


@dataclass
class Held:
    """The cluster's records; after so many questions of a stream something happens."""

    now: SecurityRecords = READER
    questions: int = 0
    happens: Callable[[], None] | None = None
    refused: list[str] = field(default_factory=list)
    """For the audit log."""

    def records(self) -> SecurityRecords:
        self.questions -= 1
        if self.questions == 0 and self.happens is not None:
            self.happens()
        return self.now

    def revoke(self) -> None:
        self.now = COUNTER


@dataclass
class LaterClock(SystemClock):
    """The system's, and so much later."""

    later_ms: int = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.later_ms

    def jump(self) -> None:
        self.later_ms = 3_600_000


@dataclass
class Secured:
    """A node, and what its clients need."""

    served: ServedCluster
    authority: Authority
    tokens: SessionTokens
    held: Held
    clock: LaterClock

    def security(self, **changes: Any) -> ClientSecurity:
        given = {"username": "alice", "password": PASSWORD, "authorities": str(self.authority.path)}
        return ClientSecurity("SASL_SSL", **{**given, **changes})

    def client(self, security: ClientSecurity | None) -> DataClient:
        return DataClient([self.served.bootstrap], retry_timeout_ms=3_000, security=security)

    def channel(self) -> grpc.Channel:
        # a pool of its own: with the common one channels to one address share a connection
        own = [("grpc.use_local_subchannel_pool", 1)]
        trusting = channel_credentials(TlsFiles(authorities=self.authority.path))
        return grpc_channel_blocking(self.served.bootstrap, own, trusting)


def serve(
    folder: Path,
    protocol: str = "SASL_SSL",
    client_auth: ClientAuth = ClientAuth.NONE,
    bearer: BearerKeys | None = None,
    calls_per_principal_max: int = 1_000,
    **settings: Any,
) -> Iterator[Secured]:
    authority = Authority(folder / "tls")
    own = authority.issue("localhost")
    held, clock = Held(), LaterClock()
    given = {
        "ssl_keystore_location": str(own.certificate),
        "ssl_key_location": str(own.key),
        "ssl_truststore_location": str(authority.path),
        "ssl_client_auth": client_auth.value,
        "connection_failed_authentication_delay_ms": 0,
        **settings,
    }
    tokens = SessionTokens()
    guarded = access(
        protocol,
        held.records,
        bearer=bearer,
        calls_per_principal_max=calls_per_principal_max,
        clock=clock,
        tokens=tokens,
        on_refused=lambda *refused: held.refused.append(f"{refused[0]} {refused[3]} {refused[5]}"),
        **given,
    )
    credentials = server_credentials(ServerTls(own, client_auth))
    cluster = ServedCluster(folder / "nodes", 1)
    cluster.secure(guarded, credentials)
    with cluster as served:
        for topic in ("flights", "payroll"):
            served.fill(topic, 0, history(0, 200), leader=1)
        yield Secured(served, authority, tokens, held, clock)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    yield from serve(
        tmp_path,
        sasl_enabled_mechanisms=["SCRAM-SHA-512", "PLAIN"],
        listener_name_grpc_plain_sasl_jaas_config=PLAIN_USERS,
    )


def read_all(client: DataClient, topic: str = "flights") -> int:
    view = client.describe([topic])[topic]
    end = client.offsets(view, [offset_query(0)], read_committed=True)[0].offset
    planned = client.plan_many_ranges({topic: view}, {(topic, 0): (0, end)}, 1 << 20)
    assert [(part.start, part.end) for part in planned[topic, 0]] == [(0, end)]
    return sum(
        len(chunk.records)
        for chunk in fetch_range(client, RangeRequest(topic, TOPIC_ID.bytes, 0, 0, end, True, True))
    )


def count_all(client: DataClient, topic: str = "flights") -> int:
    view = client.describe([topic])[topic]
    end = client.offsets(view, [offset_query(0)], read_committed=True)[0].offset
    return client.count_records(topic, view.topic_id, 0, 0, end, read_committed=True)


def test_a_user_with_a_password_reads_what_it_may_read(secured: Secured) -> None:
    client = secured.client(secured.security())
    assert read_all(client) > 10_000
    assert count_all(client) > 100
    assert set(client.describe()) == {"flights"}
    for call in (client.describe, lambda names: read_all(client, *names)):
        with pytest.raises(ReadError, match="payroll") as refused:
            call(["payroll"])
        assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert secured.held.refused == ["User:alice DescribeTopics payroll"] * 2
    client.close()


@pytest.mark.parametrize("speaks_tls", [True, False])
def test_a_listener_of_another_protocol_is_said_so(
    secured: Secured, tmp_path: Path, speaks_tls: bool
) -> None:
    """What TLS refuses is not tried again; a listener that closes may be that of a node that ends."""
    security = None
    if speaks_tls:
        stranger = Authority(tmp_path / "stranger")
        security = ClientSecurity("SSL", authorities=str(stranger.path))
    address = secured.served.bootstrap.replace("localhost", "127.0.0.1")
    client = DataClient([address], retry_timeout_ms=3_000, security=security)
    began_s = time.monotonic()
    with pytest.raises(ReadError, match=r"another protocol than kafka\.security\.protocol says"):
        client.describe(["flights"])
    assert speaks_tls == (time.monotonic() - began_s < 3.0)
    client.close()


def test_a_listener_without_tls_is_not_tried_again_and_another_one_is(
    secured: Secured, tmp_path: Path
) -> None:
    with ServedCluster(tmp_path / "open", 1) as plain:
        security = secured.security()
        bootstrap = [plain.bootstrap, secured.served.bootstrap]
        wrong = DataClient(bootstrap[:1], retry_timeout_ms=60_000, security=security)
        with pytest.raises(ReadError, match="another protocol"):
            wrong.describe(["flights"])
        both = DataClient(bootstrap, retry_timeout_ms=60_000, security=security)
        assert "flights" in both.describe(["flights"])
        away = DataClient(
            [f"127.0.0.1:{free_port()}", plain.bootstrap], retry_timeout_ms=1, security=security
        )
        with pytest.raises(ReadError) as failed:
            away.describe(["flights"])
        assert "another protocol" not in str(failed.value), "the other node may be back soon"
        for client in (wrong, both, away):
            client.close()


def test_counting_and_planning_need_describe_and_reading_needs_read(secured: Secured) -> None:
    secured.held.now = COUNTER
    client = secured.client(secured.security())
    assert count_all(client) > 100
    with pytest.raises(ReadError, match="User:alice lacks READ on TOPIC flights") as refused:
        read_all(client)
    assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    client.close()


def test_no_call_names_a_topic_that_its_client_may_not_describe(secured: Secured) -> None:
    channel = secured.channel()
    stub = data_pb2_grpc.DataStub(channel)
    shown = authenticate(channel, secured.security()).metadata
    one = pb.PlanRangesRequest(topic="payroll", start=0, end=1, target_bytes=1 << 20, leader_epoch=-1)
    calls = [
        lambda: stub.Offsets(pb.OffsetsRequest(topic="payroll"), metadata=shown),
        lambda: stub.PlanRanges(one, metadata=shown),
        lambda: stub.CountRecords(pb.CountRecordsRequest(topic="payroll", end=1), metadata=shown),
        lambda: list(stub.ReadRange(pb.ReadRangeRequest(topic="payroll", end=1), metadata=shown)),
    ]
    for call in calls:
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert isinstance(refused.value, grpc.Call)
        (shown_detail,) = (
            value for key, value in refused.value.trailing_metadata() or () if key == ERROR_DETAIL_KEY
        )
        assert isinstance(shown_detail, bytes)
        assert pb.ErrorDetail.FromString(shown_detail).leader == NO_LEADER
    (planned,) = stub.PlanManyRanges(
        pb.PlanManyRangesRequest(partitions=[one], estimate_decompressed=True), metadata=shown
    ).partitions
    assert planned.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not planned.ranges
    assert planned.leader == NO_LEADER
    channel.close()


def test_silent_exchanges_keep_no_client_out(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_callers, "EXCHANGES_MAX", 3)
    channel = secured.channel()
    exchange: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(AUTHENTICATE)
    silence = SimpleQueue[bytes | None]()
    open_ones = [
        exchange(iter(silence.get, None), metadata=((MECHANISM_KEY, "SCRAM-SHA-512"),)) for _ in range(5)
    ]
    for call in open_ones[:2]:
        with pytest.raises(grpc.RpcError, match="newer ones came"):
            next(call)
    client = secured.client(secured.security())
    assert count_all(client) > 100
    client.close()
    for call in open_ones:
        call.cancel()
        silence.put(None)
    channel.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"password": "wrong"},
        {"username": "mallory"},
        {"mechanism": "SCRAM-SHA-256"},
        {"mechanism": "PLAIN", "username": "bob", "password": "wrong"},
        {"is_token": True},
    ],
)
def test_a_wrong_password_is_refused_at_once_without_naming_it(
    secured: Secured, changes: dict[str, Any]
) -> None:
    client = secured.client(secured.security(**changes))
    with pytest.raises(ReadError) as refused:
        client.describe(["flights"])
    assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert PASSWORD not in str(refused.value)
    client.close()


def test_plain_is_taken_over_tls(secured: Secured) -> None:
    secured.held.now = records(acl("bob", AclOperation.READ))
    client = secured.client(secured.security(mechanism="PLAIN", username="bob", password="builder"))
    assert read_all(client) > 10_000
    client.close()


def test_nothing_is_served_without_an_identity(secured: Secured) -> None:
    strangers = [
        None,
        ClientSecurity("SSL", authorities=str(secured.authority.path)),
        secured.security(authorities=str(Authority(secured.authority.folder / "b", "other").path)),
    ]
    for stranger in strangers:
        client = secured.client(stranger)
        with pytest.raises(ReadError) as refused:
            client.describe(["flights"])
        assert refused.value.code in (ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.NETWORK_EXCEPTION)
        client.close()


def test_a_session_token_is_worth_nothing_on_another_connection(secured: Secured) -> None:
    own, stolen = secured.channel(), secured.channel()
    shown = authenticate(own, secured.security()).metadata
    everything = pb.DescribeTopicsRequest()
    assert data_pb2_grpc.DataStub(own).DescribeTopics(everything, metadata=shown).topics
    forged = [shown, (), (("authorization", "Session x"),), (("authorization", "Bearer x.y.z"),)]
    for metadata in forged:
        with pytest.raises(grpc.RpcError) as refused:
            data_pb2_grpc.DataStub(stolen).DescribeTopics(everything, metadata=metadata)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    own.close()
    stolen.close()


def test_a_client_authenticates_again_when_the_node_has_forgotten_its_session(secured: Secured) -> None:
    client = secured.client(secured.security())
    assert count_all(client) > 100
    for _ in range(1_000):  # as many sessions as a principal has
        secured.tokens.issue(Principal("User", "alice"), "another connection", secured.clock.wall_ms(), None)
    assert count_all(client) > 100
    client.close()


@pytest.mark.parametrize(
    ("happens", "status"),
    [("revoke", grpc.StatusCode.PERMISSION_DENIED), ("jump", grpc.StatusCode.UNAUTHENTICATED)],
)
def test_a_stream_ends_with_its_right_and_with_its_session(
    secured: Secured, happens: str, status: grpc.StatusCode
) -> None:
    channel = secured.channel()
    shown = authenticate(channel, secured.security()).metadata
    secured.held.questions = 5
    secured.held.happens = getattr(secured.held if happens == "revoke" else secured.clock, happens)
    request = pb.ReadRangeRequest(topic="flights", end=1500, chunk_bytes=1, leader_epoch=-1)
    chunks = 0
    with pytest.raises(grpc.RpcError) as refused:
        for _ in data_pb2_grpc.DataStub(channel).ReadRange(request, metadata=shown):
            chunks += 1
    assert refused.value.code() is status
    assert 1 <= chunks <= 4
    channel.close()


def test_a_client_authenticates_again_when_its_session_has_ended(secured: Secured) -> None:
    client = secured.client(secured.security())
    assert count_all(client) > 100
    secured.clock.jump()
    assert count_all(client) > 100
    client.close()


def test_a_principal_has_so_many_calls_at_a_time(tmp_path: Path) -> None:
    for secured in serve(tmp_path, calls_per_principal_max=2):
        channel = secured.channel()
        shown = authenticate(channel, secured.security()).metadata
        stub = data_pb2_grpc.DataStub(channel)
        request = pb.ReadRangeRequest(topic="flights", end=1500, chunk_bytes=1, leader_epoch=-1)
        streams = [stub.ReadRange(request, metadata=shown) for _ in range(2)]
        for stream in streams:
            next(stream)
        with pytest.raises(grpc.RpcError) as refused:
            stub.DescribeTopics(pb.DescribeTopicsRequest(), metadata=shown)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(list(streams[0])) > 1
        assert stub.DescribeTopics(pb.DescribeTopicsRequest(), metadata=shown).topics
        channel.close()


def test_a_certificate_is_an_identity(tmp_path: Path) -> None:
    rules = r"RULE:CN=quorum-(.*)-1/$1/"
    for secured in serve(tmp_path, "SSL", ClientAuth.REQUIRED, ssl_principal_mapping_rules=rules):
        own = secured.authority.issue("alice")
        certified = ClientSecurity(
            "SSL",
            authorities=str(secured.authority.path),
            certificate=str(own.certificate),
            key=str(own.key),
        )
        client = secured.client(certified)
        assert read_all(client) > 10_000
        client.close()
        other = secured.authority.issue("bob")
        client = secured.client(replace(certified, certificate=str(other.certificate), key=str(other.key)))
        assert client.describe() == {}
        client.close()
        client = secured.client(ClientSecurity("SSL", authorities=str(secured.authority.path)))
        with pytest.raises(ReadError):
            client.describe()
        client.close()


def test_a_bearer_token_is_an_identity(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    keys = parse_key_set(json.dumps({"keys": [public | {"kid": "k", "use": "sig"}]}))
    bearer = bearer_keys(TokenRules(audiences=frozenset({"tidegate"})), keys)

    def token(signer: Any = key, **claims: Any) -> str:
        now = int(time.time())
        fields = {"sub": "alice", "aud": "tidegate", "iat": now, "exp": now + 60, **claims}
        return jwt.encode(fields, signer, algorithm="ES256", headers={"kid": "k"})

    for secured in serve(tmp_path, bearer=bearer, sasl_enabled_mechanisms=["OAUTHBEARER"]):

        def client(made: str, found: Secured = secured) -> DataClient:
            return found.client(found.security(mechanism="OAUTHBEARER", bearer_token=lambda: made))

        good = client(token())
        assert read_all(good) > 10_000
        good.close()
        bad = [
            token(exp=int(time.time()) - 3600),
            token(aud="elsewhere"),
            token(ec.generate_private_key(ec.SECP256R1())),
            jwt.encode({"sub": "alice", "aud": "tidegate", "exp": 1 << 33}, "", algorithm="none"),
        ]
        for made in bad:
            refused = client(made)
            with pytest.raises(ReadError, match="the bearer token is not accepted") as error:
                refused.describe()
            assert made not in str(error.value)
            refused.close()


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_spark_reads_as_a_user_and_shows_its_password_nowhere(
    secured: Secured, capfd: pytest.CaptureFixture[str]
) -> None:
    spark = local_session("tidegate-tests")
    jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    options = {
        "kafka.bootstrap.servers": secured.served.bootstrap,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{jaas} username="alice" password="{PASSWORD}";',
        "kafka.ssl.truststore.location": str(secured.authority.path),
        "kafka.ssl.truststore.type": "PEM",
        "maxRecordsPerPartition": "500",
    }
    frame = spark.read.format("tidegate").options(**options, subscribe="flights").load()
    assert frame.rdd.getNumPartitions() > 1
    assert frame.count() == len(committed(history(0, 200)))
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        frame.explain(mode)
    refused = spark.read.format("tidegate").options(**options, subscribe="payroll").load()
    with pytest.raises(Exception, match="TOPIC_AUTHORIZATION_FAILED") as error:
        refused.count()
    wrong = {**options, "kafka.sasl.jaas.config": f'{jaas} username="mallory" password="{PASSWORD}";'}
    with pytest.raises(Exception, match="SASL_AUTHENTICATION_FAILED") as unknown:
        spark.read.format("tidegate").options(**wrong, subscribe="flights").load().count()
    shown = capfd.readouterr()
    for text in (shown.out, shown.err, str(error.value), str(unknown.value), repr(unknown.value)):
        assert PASSWORD not in text
