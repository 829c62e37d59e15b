"""A secured cluster answers a node's requests to that very node alone: not to clients, not to the owner of
another certificate of the same authority, not to another node."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.consuming.consumer import Consumer
from tidegate.client.producing.producer import Producer
from tidegate.controller.raft.messages import Hello
from tidegate.node.lifecycle.probing import Question
from tidegate.processes.local_cluster import LocalCluster, LocalNode
from tidegate.proto import controller_pb2 as pb
from tidegate.runtime.clock import SystemClock
from tidegate.tests.certificates import lifetime
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.fetch import FetchPartition, FetchRequest

from .forgery import Forger, Speaker, status_of
from .witness import Witness, kept_up

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("secured"), pytest.mark.timeout(180)]

UNHEARD_S = 2.0
"""So long an acknowledgement does not come that must not come; it comes within 50 ms otherwise."""
TERM = 1_000_000


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("cluster"), 3, {"debug.validate": True}, secured=True)
    with kept_up(cluster):
        yield cluster


@pytest.fixture
def forger(secured: LocalCluster, tmp_path: Path) -> Forger:
    return Forger(secured, tmp_path / "forged")


async def leader_of(cluster: LocalCluster, topic: str) -> LocalNode:
    """As soon as the node that is asked knows the topic: another one may have made it."""
    async with Admin(cluster.bootstrap) as admin, asyncio.timeout(30):
        while topic not in [view.name for view in await admin.list_topics()]:
            await SystemClock().sleep(0.02)
        (described,) = await admin.describe_topics([topic])
        return cluster.node(described.partitions[0].leader)


async def new_topic(cluster: LocalCluster, name: str, min_isr: int) -> LocalNode:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic(name, 1, 3, {"min.insync.replicas": str(min_isr)})])
    return await leader_of(cluster, name)


async def test_a_secured_cluster_serves_its_clients(secured: LocalCluster) -> None:
    witness = Witness(secured.bootstrap, "served")
    await witness.create(3)
    await witness.write(3)
    assert await witness.read() == witness.acknowledged


async def test_a_forged_fetch_acknowledges_nothing(secured: LocalCluster, forger: Forger) -> None:
    """The record is on the leader alone: the followers stand still, and others fetch in their names."""
    leader = await new_topic(secured, "forged-fetch", 3)
    followers = [node for node in secured.nodes if node is not leader]
    async with Producer(secured.bootstrap) as producer:
        await producer.send_and_wait("forged-fetch", b"first", partition=0)
        for node in followers:
            node.pause()
        try:
            sent = asyncio.create_task(producer.send_and_wait("forged-fetch", b"second", partition=0))
            outcomes = set()
            for speaker in (forger.client(), forger.node(leader.id), forger.node(9)):
                for follower in followers:
                    outcomes.add(await fetch_as(speaker, leader, follower.id))
            assert outcomes == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}  # as in Kafka
            done, _ = await asyncio.wait({sent}, timeout=UNHEARD_S)
            assert not done
        finally:
            for node in followers:
                node.resume()
        await sent


async def fetch_as(speaker: Speaker, leader: LocalNode, replica_id: int) -> ErrorCode:
    fetches = speaker.fetches(leader)
    request = FetchRequest(
        replica_id=replica_id, max_wait_ms=1, topics=[("forged-fetch", [FetchPartition(0, 2, 1 << 20)])]
    )
    try:
        ((_, (answer,)),) = (await fetches.fetch(request)).topics
        return answer.error
    finally:
        fetches.close()


Marker = dict[str, Any]
_numbers = itertools.count()


def topic_of(marker: Marker) -> str:
    return str(marker["topics"][0]["name"])


@pytest.fixture
async def undecided(secured: LocalCluster) -> AsyncIterator[tuple[LocalNode, Marker]]:
    """(the partition's leader, the fields of a marker): of an open transaction with one record."""
    name = f"undecided-{next(_numbers)}"
    leader = await new_topic(secured, name, 2)
    async with Producer(secured.bootstrap, transactional_id="victim") as producer:
        await producer.begin()
        await producer.send_and_wait(name, b"undecided", partition=0)
        async with Admin(secured.bootstrap) as admin:
            described = await admin.describe_transaction("victim")
        yield (
            leader,
            {
                "producer_id": described.producer_id,
                "producer_epoch": described.producer_epoch,
                "transaction_result": True,
                "topics": [{"name": name, "partition_indexes": [0]}],
                "coordinator_epoch": 1 << 20,
                "transaction_version": 2,
            },
        )
        await producer.abort()


async def test_forged_markers_decide_no_transaction(
    secured: LocalCluster, forger: Forger, undecided: tuple[LocalNode, Marker]
) -> None:
    leader, marker = undecided
    peer = forger.client().peer(leader)
    answer = await peer.request(ApiKey.WRITE_TXN_MARKERS, 2, {"markers": [marker]}, 5.0)
    (topic,) = answer.markers[0].topics
    assert [each.error_code for each in topic.partitions] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    peer.close()
    assert await is_served_nothing(forger.user(), leader, ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})
    async with Consumer(secured.bootstrap, auto_offset_reset="earliest") as reader:  # read_committed
        reader.assign([(topic_of(marker), 0)])
        assert await reader.poll(timeout_s=1.0) == []


async def test_a_client_verifies_no_transaction_in_a_brokers_name(
    forger: Forger, undecided: tuple[LocalNode, Marker]
) -> None:
    leader, marker = undecided
    transaction = {
        "transactional_id": "victim",
        "producer_id": marker["producer_id"],
        "producer_epoch": marker["producer_epoch"],
        "verify_only": False,
        "topics": [{"name": topic_of(marker), "partitions": [0]}],
    }
    peer = forger.client().peer(leader)
    answer = await peer.request(ApiKey.ADD_PARTITIONS_TO_TXN, 5, {"transactions": [transaction]}, 5.0)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    peer.close()
    assert await is_served_nothing(
        forger.user(), leader, ApiKey.ADD_PARTITIONS_TO_TXN, {"transactions": [transaction]}
    )


async def test_the_brokers_listener_serves_nodes_alone(secured: LocalCluster, forger: Forger) -> None:
    """Not what every client may ask, either: a client's certificate is of the same authority."""
    for key in (ApiKey.API_VERSIONS, ApiKey.METADATA):
        fields = {"topics": [], "allow_auto_topic_creation": False} if key is ApiKey.METADATA else {}
        assert await is_served_nothing(forger.user(), secured.node(1), key, fields)
        assert not await is_served_nothing(forger.node(2), secured.node(1), key, fields)


async def is_served_nothing(speaker: Speaker, node: LocalNode, key: ApiKey, fields: dict[str, Any]) -> bool:
    """Whether the node closes the connection instead of answering."""
    peer = speaker.peer(node)
    version = {ApiKey.API_VERSIONS: 0, ApiKey.METADATA: 4, ApiKey.WRITE_TXN_MARKERS: 2}.get(key, 5)
    try:
        await peer.request(key, version, fields, 5.0)
    except KafkaError as error:
        assert error.code is ErrorCode.NETWORK_EXCEPTION
        return True
    finally:
        peer.close()
    return False


async def test_a_forged_registration_ends_no_node(secured: LocalCluster, forger: Forger) -> None:
    """A second registration of a node id with another incarnation ends the first one's process."""
    active = await secured.active_controller()
    victim = next(node for node in secured.nodes if node is not active)
    request = pb.RegisterBrokerRequest(
        node_id=victim.id, incarnation="forged", cluster_id=secured.cluster_id,
        kafka_host="127.0.0.1", kafka_port=1, grpc_host="127.0.0.1", grpc_port=1,
        clean_shutdown_broker_epoch=-1, directory_id="forged",
    )  # fmt: skip
    assert await status_of(forger.client().register(active, request)) is grpc.StatusCode.UNAVAILABLE
    assert (
        await status_of(forger.stranger(victim.id).register(active, request)) is grpc.StatusCode.UNAVAILABLE
    )
    assert await status_of(forger.user().register(active, request)) is grpc.StatusCode.UNAUTHENTICATED
    other = forger.node(active.id)
    assert await status_of(other.register(active, request)) is grpc.StatusCode.PERMISSION_DENIED
    assert (await victim.status()).ready


async def test_a_forged_vote_request_raises_no_term(secured: LocalCluster, forger: Forger) -> None:
    async def term() -> int:
        peer = forger.client().peer(secured.node(1))
        asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        answer = await peer.request(ApiKey.DESCRIBE_QUORUM, 2, {"topics": asked}, 5.0)
        peer.close()
        return int(answer.topics[0].partitions[0].leader_epoch)

    before = await term()
    voter, hello = secured.node(1), Hello(3, "", (1, 2, 3))  # node 1 is dialed by all others
    for speaker in (forger.client(), forger.user(), forger.stranger(3), forger.node(2)):
        assert await speaker.ask_for_votes(voter, hello, TERM) == b"", speaker.name
    assert await term() == before


@pytest.mark.parametrize("which", ["expired", "not yet valid", "of another authority"])
async def test_a_node_certificate_that_does_not_hold_opens_no_connection(
    secured: LocalCluster, forger: Forger, which: str
) -> None:
    node = secured.node(1)
    speaker = {
        "expired": lambda: forger.node(2, lifetime(-1)),
        "not yet valid": lambda: forger.node(2, lifetime(3, from_days=2)),
        "of another authority": lambda: forger.stranger(2),
    }[which]
    assert await is_refused(forger.node(2), node) is False
    assert await is_refused(speaker(), node)


async def test_a_node_is_reached_by_the_brokers_that_have_connected(
    secured: LocalCluster, forger: Forger
) -> None:
    """Who asks in the name of another broker would let a cut-off one become a leader."""
    target = secured.node(1)
    question = Question((3, broker_epoch(secured.node(3))), (1, broker_epoch(target)))
    for speaker, code in (
        (forger.client(), ErrorCode.STALE_BROKER_EPOCH),
        (forger.node(2), ErrorCode.STALE_BROKER_EPOCH),
        (forger.node(3), ErrorCode.NONE),
    ):
        peer = replace(speaker, name=question.client_id).peer(target)
        assert (await peer.request(ApiKey.API_VERSIONS, 0, {}, 5.0)).error_code == code
        peer.close()


def broker_epoch(node: LocalNode) -> int:
    (found,) = re.findall(r"broker_registered\b.*\bbroker_epoch=(\d+)", registration_of(node))
    return int(found)


def registration_of(node: LocalNode) -> str:
    lines = node.log_path.read_text().splitlines()
    return next(line for line in reversed(lines) if "broker_registered" in line and "cluster=" in line)


async def is_refused(speaker: Speaker, node: LocalNode) -> bool:
    peer = speaker.peer(node)
    try:
        await peer.request(ApiKey.API_VERSIONS, 0, {}, 5.0)
    except KafkaError:
        return True
    finally:
        peer.close()
    return False


async def test_a_broker_does_not_talk_to_another_node_at_its_peers_address(
    secured: LocalCluster, forger: Forger
) -> None:
    """Node 1 answers where node 2 was expected: nothing is sent to it."""
    honest, imposter = forger.node(3), secured.node(1)
    peer = honest.peer(imposter)
    peer.node_id = 2
    with pytest.raises(KafkaError, match=r"a certificate of nodes \[1\] answers for node 2"):
        await peer.request(ApiKey.API_VERSIONS, 0, {}, 5.0)
    peer.close()
