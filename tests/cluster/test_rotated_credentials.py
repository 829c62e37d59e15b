"""A password, the key of bearer tokens, and the certificates of clients and of their listener are exchanged,
while a producer of librdkafka writes and proves its identity anew every second."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic, ScramCredentialInfo, ScramMechanism
from confluent_kafka.admin import UserScramCredentialUpsertion as Upsertion
from tidegate.processes.administrator import NAME as ADMINISTRATOR
from tidegate.tests.eventually import eventually

from .secured_ways import BEARER, CERTIFICATE, SCRAM, SecuredCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

REAUTHENTICATION_MS = 1000
RECORDS_AFTER = 50
"""Written after each exchange: over more than one such interval."""


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SecuredCluster]:
    made = SecuredCluster(tmp_path, request.param, {"connections.max.reauth.ms": REAUTHENTICATION_MS})
    await made.up()
    yield made
    await made.down()


def settings_of(cluster: SecuredCluster, **others: Any) -> dict[str, Any]:
    common = {
        "bootstrap.servers": cluster.bootstrap,
        "ssl.ca.location": str(cluster.certificates.authorities),
        "log_level": 0,
        **others,
    }
    if cluster.way == CERTIFICATE:
        both = str(cluster.certificates.of_client(ADMINISTRATOR))
        return common | {
            "security.protocol": "ssl", "ssl.certificate.location": both, "ssl.key.location": both,
        }  # fmt: skip
    common |= {"security.protocol": "sasl_ssl", "sasl.mechanisms": cluster.way}
    if cluster.way == BEARER:
        return common | {"oauth_cb": lambda _: (cluster.token_path.read_text(), time.time() + 1)}
    user = cluster.administrator.security()
    return {**common, "sasl.username": user.username, "sasl.password": user.password} | others


class Load:
    """Writes one record after the other in a thread of its own."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.written = 0
        self.failures: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is None:
            self.written += 1
        else:
            self.failures.append(str(error))

    def _write(self) -> None:
        while not self._over.is_set():
            self.producer.produce("t", b"x", on_delivery=self._delivered)
            self.producer.poll(0)
            self._over.wait(REAUTHENTICATION_MS / 1000 / 20)
        self.producer.flush(30)

    async def more(self) -> None:
        """Returns when some more records are acknowledged."""
        wanted = self.written + RECORDS_AFTER
        await eventually(lambda: self.written >= wanted or self.failures, "records are acknowledged")
        assert self.failures == []

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)


def begin(cluster: SecuredCluster) -> Load:
    admin = AdminClient(settings_of(cluster))
    admin.poll(0)
    admin.create_topics([NewTopic("t", 3, 3)])["t"].result(30)
    return Load(Producer(settings_of(cluster, acks="all")))


def writes_once(settings: dict[str, Any]) -> bool:
    """Whether a new client is let in."""
    producer, outcomes = Producer(settings | {"message.timeout.ms": 3000}), []
    producer.poll(0)
    producer.produce("t", b"new", on_delivery=lambda error, _: outcomes.append(error is None))
    producer.flush(10)
    return outcomes == [True]


def lines(cluster: SecuredCluster, *words: str) -> int:
    """How many lines with these words each node has logged at least."""
    texts = [node.log_path.read_text().splitlines() for node in cluster.nodes]
    return min(sum(all(word in line for word in words) for line in text) for text in texts)


@pytest.mark.parametrize("cluster", [SCRAM], indirect=True)
async def test_a_password_is_exchanged_without_a_failed_produce(cluster: SecuredCluster) -> None:
    with await asyncio.to_thread(begin, cluster) as load:
        await load.more()
        former = settings_of(cluster)
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        admin, change = AdminClient(former), Upsertion(ADMINISTRATOR, credential, b"new password")
        altered = await asyncio.to_thread(lambda: admin.alter_user_scram_credentials([change]))
        await asyncio.to_thread(altered[ADMINISTRATOR].result, 30)
        load.producer.set_sasl_credentials(ADMINISTRATOR, "new password")
        await load.more()
        assert await asyncio.to_thread(writes_once, former | {"sasl.password": "new password"})
        assert not await asyncio.to_thread(writes_once, former)
        await load.more()


@pytest.mark.parametrize("cluster", [BEARER], indirect=True)
async def test_the_key_of_tokens_is_exchanged_without_a_failed_produce(cluster: SecuredCluster) -> None:
    with await asyncio.to_thread(begin, cluster) as load:
        await load.more()
        former = cluster.token_path.read_text()
        cluster.renew_token()
        await eventually(lambda: lines(cluster, "key_set_read", "keys=2") >= 1)
        await load.more()
        cluster.forget_former_signing_keys()
        await eventually(lambda: lines(cluster, "key_set_read", "keys=1") >= 2)
        await load.more()
        settings = settings_of(cluster)
        assert await asyncio.to_thread(writes_once, settings)
        stale = settings | {"oauth_cb": lambda _: (former, time.time() + 600)}
        assert not await asyncio.to_thread(writes_once, stale)


@pytest.mark.parametrize("cluster", [CERTIFICATE], indirect=True)
async def test_certificates_of_clients_are_exchanged_without_a_failed_produce(
    cluster: SecuredCluster,
) -> None:
    certificates = cluster.certificates
    with await asyncio.to_thread(begin, cluster) as load:
        await load.more()
        former = certificates.of_client(ADMINISTRATOR).with_name("former.pem")
        former.write_bytes(certificates.of_client(ADMINISTRATOR).read_bytes())
        certificates.renew_authority()
        await eventually(lambda: lines(cluster, "certificates_renewed", "SASL_SSL") == 1)
        cluster.renew_certificates()
        certificates.renew_client(ADMINISTRATOR)
        await eventually(lambda: lines(cluster, "certificates_renewed", "SASL_SSL") == 2)
        assert await asyncio.to_thread(writes_once, settings_of(cluster))
        await load.more()
        certificates.forget_former_authorities()
        await eventually(lambda: lines(cluster, "certificates_renewed", "SASL_SSL") == 3)
        assert await asyncio.to_thread(writes_once, settings_of(cluster))
        stale = {"ssl.certificate.location": str(former), "ssl.key.location": str(former)}
        assert not await asyncio.to_thread(writes_once, settings_of(cluster) | stale)
        await load.more()
