"""Kafka's clients over every way to prove an identity: SCRAM-SHA-512 and OAUTHBEARER over TLS, and
certificates: produce, consume in a group, a transaction, administration."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioTopic
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from cryptography.hazmat.primitives.asymmetric import ec
from kafka.net.sasl.oauth import AbstractTokenProvider
from tidegate.client import Admin
from tidegate.client.connecting.errors import FatalError
from tidegate.processes.local_cluster import LocalCluster
from tidegate.runtime.connections.tls import TlsFiles
from tidegate.runtime.network import free_port
from tidegate.security.client_security import ClientSecurity
from tidegate.security.first_users import FirstUser
from tidegate.tests.base_ports import free_base_port
from tidegate.tests.certificates import Authority
from tidegate.tests.eventually import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

STEP = 100
USES = ("PLAINTEXT", "GRPC", "CONTROLLER", "METRICS", "SSL", "SASL_SSL")
PASSWORD = "wonder land"
WAYS = ("SCRAM-SHA-512", "OAUTHBEARER", "SSL")
RECORDS = [str(number).encode() for number in range(50)]


@dataclass(frozen=True)
class Secured:
    """A node with ACLs, and what its user alice has."""

    base: int
    authorities: Path
    certificate: TlsFiles
    token: str

    def bootstrap(self, way: str) -> str:
        return f"127.0.0.1:{self.base + STEP * USES.index('SSL' if way == 'SSL' else 'SASL_SSL')}"

    @property
    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authorities))
        context.load_cert_chain(str(self.certificate.certificate), str(self.certificate.key))
        return context


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    authority = Authority(tmp_path / "tls")
    own, alice = authority.issue("127.0.0.1"), authority.issue(user="alice")
    key = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [public | {"kid": "k", "use": "sig"}]}))
    now = int(time.time())
    claims = {"sub": "alice", "aud": "tidegate", "iss": "tests", "iat": now, "exp": now + 600, "scope": ""}
    base = free_base_port(len(USES))
    listeners = [f"{use}://127.0.0.1:{base + STEP * number}" for number, use in enumerate(USES)]
    settings = {
        "listeners": listeners,
        "listener.security.protocol.map": [
            f"{use}:{use if use.startswith('S') else 'PLAINTEXT'}" for use in USES
        ],
        "ssl.keystore.location": str(own.certificate),
        "ssl.key.location": str(own.key),
        "ssl.truststore.location": str(authority.path),
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:CN=(.*)/$1/",
        "sasl.enabled.mechanisms": ["SCRAM-SHA-512", "OAUTHBEARER"],
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{tmp_path}/jwks.json",
        "sasl.oauthbearer.expected.audience": ["tidegate"],
        "sasl.oauthbearer.expected.issuer": "tests",
        "bootstrap.scram.credentials": str(FirstUser.with_password("alice", PASSWORD, b"salt" * 8)),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:alice;User:ANONYMOUS",  # the node itself speaks on PLAINTEXT here
    }
    cluster = LocalCluster(tmp_path / "cluster", 1, settings, base_port=base)
    await cluster.up()
    yield Secured(base, authority.path, alice, jwt.encode(claims, key, "ES256", headers={"kid": "k"}))
    await cluster.down()


def of_librdkafka(secured: Secured, way: str) -> dict[str, Any]:
    common = {
        "bootstrap.servers": secured.bootstrap(way),
        "ssl.ca.location": str(secured.authorities),
        "log_level": 0,
    }
    if way == "SSL":
        files = secured.certificate
        return common | {
            "security.protocol": "ssl",
            "ssl.certificate.location": str(files.certificate),
            "ssl.key.location": str(files.key),
        }
    common |= {"security.protocol": "sasl_ssl", "sasl.mechanisms": way}
    if way == "OAUTHBEARER":
        return common | {"oauth_cb": lambda _: (secured.token, time.time() + 500)}
    return common | {"sasl.username": "alice", "sasl.password": PASSWORD}


def by_librdkafka(secured: Secured, way: str, topic: str) -> list[bytes]:
    settings = of_librdkafka(secured, way)
    admin = AdminClient(settings)
    admin.poll(0)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({**settings, "transactional.id": topic})
    producer.init_transactions(30)
    for records, end in ((RECORDS, producer.commit_transaction), ([b"lost"], producer.abort_transaction)):
        producer.begin_transaction()
        for record in records:
            producer.produce(topic, record)
        end(30)
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []
    while len(values) < len(RECORDS):
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        values.append(message.value() or b"")
    consumer.commit(asynchronous=False)
    consumer.close()
    assert topic in [each.group_id for each in admin.list_consumer_groups().result(30).valid]
    return values


class _Token(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


def by_kafka_python(secured: Secured, way: str, topic: str) -> list[bytes]:
    settings: dict[str, Any] = {
        "bootstrap_servers": secured.bootstrap(way),
        "security_protocol": "SSL" if way == "SSL" else "SASL_SSL",
        "ssl_cafile": str(secured.authorities),
    }
    if way == "SSL":
        files = secured.certificate
        settings |= {"ssl_certfile": str(files.certificate), "ssl_keyfile": str(files.key)}
    elif way == "OAUTHBEARER":
        settings |= {"sasl_mechanism": way, "sasl_oauth_token_provider": _Token(secured.token)}
    else:
        settings |= {
            "sasl_mechanism": way,
            "sasl_plain_username": "alice",
            "sasl_plain_password": PASSWORD,
        }
    admin = kafka.KafkaAdminClient(**settings)
    admin.create_topics([topic])
    admin.close()
    producer = kafka.KafkaProducer(transactional_id=topic, **settings)
    producer.init_transactions()
    producer.begin_transaction()
    for record in RECORDS:
        producer.send(topic, record)
    producer.commit_transaction()
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=30_000, **settings
    )
    values = [
        record.value for _, record in zip(RECORDS, consumer, strict=False)
    ]  # asks for no more than these
    consumer.commit()
    consumer.close()
    return values


class _AioToken(AioTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


async def by_aiokafka(secured: Secured, way: str, topic: str) -> list[bytes]:
    settings: dict[str, Any] = {
        "bootstrap_servers": secured.bootstrap(way),
        "security_protocol": "SSL" if way == "SSL" else "SASL_SSL",
        "ssl_context": secured.context,
    }
    if way == "OAUTHBEARER":
        settings |= {"sasl_mechanism": way, "sasl_oauth_token_provider": _AioToken(secured.token)}
    elif way != "SSL":
        settings |= {
            "sasl_mechanism": way,
            "sasl_plain_username": "alice",
            "sasl_plain_password": PASSWORD,
        }
    admin = AIOKafkaAdminClient(**settings)
    await admin.start()
    await admin.create_topics([AioTopic(topic, 1, 1)])
    await admin.close()
    async with AIOKafkaProducer(transactional_id=topic, **settings) as producer, producer.transaction():
        for record in RECORDS:
            await producer.send(topic, record)
    consumer = AIOKafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **settings)
    async with consumer:
        values = [(await consumer.getone()).value or b"" for _ in RECORDS]
        await consumer.commit()
    return values


async def test_clients_in_python_are_served_whatever_proves_their_identity(secured: Secured) -> None:
    for way in WAYS:
        name = way.lower()
        rdkafka = await asyncio.to_thread(by_librdkafka, secured, way, f"rdkafka-{name}")
        assert rdkafka == RECORDS
        assert await asyncio.to_thread(by_kafka_python, secured, way, f"python-{name}") == RECORDS
        async with asyncio.timeout(60):
            assert await by_aiokafka(secured, way, f"aio-{name}") == RECORDS


async def test_a_token_of_another_issuer_is_refused(secured: Secured) -> None:
    forged = jwt.encode(
        {"sub": "alice", "aud": "tidegate", "iss": "tests", "exp": int(time.time()) + 60},
        ec.generate_private_key(ec.SECP256R1()), "ES256", headers={"kid": "k"},
    )  # fmt: skip
    security = ClientSecurity(
        "SASL_SSL", authorities=str(secured.authorities), mechanism="OAUTHBEARER", bearer_token=lambda: forged
    )
    with pytest.raises(Exception, match="SASL_AUTHENTICATION_FAILED"):
        await Admin(secured.bootstrap("OAUTHBEARER"), security=security).start()
    settings = of_librdkafka(secured, "SCRAM-SHA-512") | {"sasl.password": "x"}
    with pytest.raises(KafkaException):
        await asyncio.to_thread(AdminClient(settings).list_topics, timeout=3)


async def test_the_keys_of_an_endpoint_that_comes_after_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "tls")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    own, key, port = authority.issue("127.0.0.1"), ec.generate_private_key(ec.SECP256R1()), free_port()
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    key_set = json.dumps({"keys": [public | {"kid": "k", "use": "sig"}]}).encode()
    base = free_base_port(len(USES))
    ports = {name: base + STEP * number for number, name in enumerate((*USES[:4], "SASL_PLAINTEXT"))}
    settings = {
        "listeners": [f"{name}://127.0.0.1:{each}" for name, each in ports.items()],
        "listener.security.protocol.map": [
            f"{name}:{name if name.startswith('S') else 'PLAINTEXT'}" for name in ports
        ],
        "sasl.enabled.mechanisms": ["OAUTHBEARER"],
        "sasl.oauthbearer.jwks.endpoint.url": f"https://127.0.0.1:{port}/keys",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": 100,
    }

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(key_set) + key_set)
        writer.close()

    async def is_known() -> bool:
        token = jwt.encode({"sub": "alice", "exp": int(time.time()) + 60}, key, "ES256", headers={"kid": "k"})
        security = ClientSecurity("SASL_PLAINTEXT", mechanism="OAUTHBEARER", bearer_token=lambda: token)
        admin = Admin(f"127.0.0.1:{ports['SASL_PLAINTEXT']}", security=security)
        try:
            await admin.start()
        except FatalError:
            return False
        finally:
            await admin.close()
        return True

    cluster = LocalCluster(tmp_path / "cluster", 1, settings, base_port=base)
    await cluster.up()
    assert not await is_known()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(own.certificate), str(own.key))
    server = await asyncio.start_server(answer, "127.0.0.1", port, ssl=context)
    await eventually(is_known)
    server.close()
    await cluster.down()
