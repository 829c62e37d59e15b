"""The whole controller over gRPC: a quorum of real nodes, a client that finds the active one, followers that
apply its log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from tidegate.controller.planning import topics
from tidegate.controller.raft.journal import DurableJournal
from tidegate.controller.remote.client import ControllerClient
from tidegate.controller.remote.metadata_follower import MetadataFollower
from tidegate.controller.service.metadata_log import MetadataLog
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import ApplyResult
from tidegate.proto import controller_pb2 as rpc
from tidegate.runtime.clock import SystemClock
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError

from .controller_cluster import QUICK, ControllerCluster, registration


@pytest.fixture(params=[1, 3])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ControllerCluster]:
    cluster = ControllerCluster(tmp_path, request.param)
    await cluster.start()
    yield cluster
    await cluster.stop()
    assert not cluster.deaths


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[ControllerCluster]:
    cluster = ControllerCluster(tmp_path, 3)
    await cluster.start()
    yield cluster
    await cluster.stop()
    assert not cluster.deaths


class Broker:
    """The controller's side of a broker: registers, follows, sends heartbeats."""

    def __init__(self, cluster: ControllerCluster, node_id: int) -> None:
        self.node_id = node_id
        self.client: ControllerClient = cluster.client()
        self.results: list[ApplyResult] = []
        self.follower = MetadataFollower(self.client, node_id, SystemClock())
        self.broker_epoch = -1
        self.wants_shutdown = False
        self.should_shutdown = False
        self._task: asyncio.Task[None] | None = None

    def _applied(self, state: ClusterState, result: ApplyResult) -> None:
        if self.results and not result.from_snapshot:
            assert result.index == self.results[-1].index + 1
        self.results.append(result)

    async def start(self, incarnation: str = "first") -> None:
        await self.follower.start(self._applied)
        reply = await self.client.register_broker(registration(self.node_id, incarnation))
        self.broker_epoch = reply.broker_epoch
        self._task = asyncio.create_task(self._beat())
        await eventually(
            lambda: self.node_id in self.state.brokers and not self.state.brokers[self.node_id].fenced
        )

    async def _beat(self) -> None:
        while True:
            try:
                reply = await self.client.heartbeat(
                    rpc.HeartbeatRequest(
                        node_id=self.node_id,
                        broker_epoch=self.broker_epoch,
                        applied_index=self.follower.applied_index,
                        wants_shutdown=self.wants_shutdown,
                    )
                )
                self.should_shutdown = self.should_shutdown or reply.should_shutdown
            except KafkaError:
                pass
            await asyncio.sleep(0.05)

    @property
    def state(self) -> ClusterState:
        return self.follower.state

    async def fall_silent(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def stop(self) -> None:
        await self.fall_silent()
        await self.follower.stop()
        await self.client.close()


async def brokers_of(cluster: ControllerCluster, *node_ids: int) -> list[Broker]:
    brokers = [Broker(cluster, node_id) for node_id in node_ids]
    await asyncio.gather(*(broker.start() for broker in brokers))
    return brokers


async def create(
    broker: Broker, name: str, partitions: int = 3, factor: int = 3, **config: str
) -> rpc.TopicResult:
    topic = rpc.NewTopic(name=name, partitions=partitions, replication_factor=factor, config=config)
    reply = await broker.client.create_topics(rpc.CreateTopicsRequest(topics=[topic]))
    await broker.follower.wait_for_index(reply.metadata_index, 20)
    return reply.topics[0]


async def test_brokers_register_follow_and_see_the_topics_they_create(cluster: ControllerCluster) -> None:
    brokers = await brokers_of(cluster, 1, 2, 3)
    result = await create(brokers[0], "flights", 6, 3)
    assert result.error == 0
    assert result.partitions == 6
    for broker in brokers:
        await eventually(lambda broker=broker: "flights" in broker.state.topics)  # type: ignore[misc]
        topic = broker.state.topics["flights"]
        assert sorted({p.leader for p in topic.partitions.values()}) == [1, 2, 3]
        assert broker.state.topic_by_id(topic.topic_id) is topic
        assert broker.state.features["transaction.version"] == 2
    active = await cluster.active()
    await eventually(lambda: all(b.state.index == active.metadata.applied_index for b in brokers))
    assert {broker.state.state_hash() for broker in brokers} == {active.metadata.state.state_hash()}
    blocks = [
        await b.client.allocate_producer_ids(
            rpc.AllocateProducerIdsRequest(node_id=b.node_id, broker_epoch=b.broker_epoch)
        )
        for b in brokers
    ]
    assert sorted(block.first_id for block in blocks) == [0, 1000, 2000]
    quorum = await brokers[0].client.describe_quorum(1)
    assert quorum.leader_id == active.metadata.node_id
    assert quorum.waits_for == ""
    assert not any(voter.without_vote for voter in quorum.voters)
    for broker in brokers:
        await broker.stop()


async def test_a_silent_broker_is_fenced_and_its_leaderships_move_in_one_entry(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    brokers = await brokers_of(cluster, 1, 2, 3)
    await create(brokers[0], "flights", 9, 3)
    await brokers[2].fall_silent()
    first = brokers[0]
    await eventually(lambda: first.state.brokers[3].fenced)
    moved = next(result for result in first.results if 3 in result.changed_brokers
                 and first.state.brokers[3].fenced and
                 len(result.changed_partitions) == 9)  # fmt: skip
    assert moved.error == ErrorCode.NONE
    partitions = first.state.topics["flights"].partitions.values()
    assert all(p.leader != 3 and 3 not in p.isr and p.leader in p.isr for p in partitions)
    assert {p.leader_epoch for p in partitions if p.preferred_leader == 3} == {1}
    said = [vars(each)["fields"] for each in caplog.records if each.msg == "broker_session_expired"]
    config = (await cluster.active()).service._config
    assert [each["node"] for each in said] == [3]
    assert said[0]["silent_ms"] >= config.session_timeout_ms
    for broker in brokers:
        await broker.stop()


async def test_the_loss_of_the_active_controller_loses_nothing(three: ControllerCluster) -> None:
    brokers = await brokers_of(three, 11, 12, 13)
    await create(brokers[0], "before", 3, 3)
    old = await three.active()
    killed = old.metadata.node_id
    await three.kill(killed)
    result = await create(brokers[1], "after", 3, 3)
    assert result.error == 0
    new = await three.active()
    assert new.metadata.term > old.metadata.term
    await three.start(killed)
    returned = three.nodes[killed].metadata
    await eventually(lambda: returned.applied_index >= new.metadata.applied_index)
    assert set(returned.state.topics) == {"before", "after"}
    for broker in brokers:
        await eventually(lambda broker=broker: set(broker.state.topics) == {"before", "after"})  # type: ignore[misc]
        assert not broker.state.brokers[broker.node_id].fenced, (
            "a new controller gives every broker a whole session"
        )
        await broker.stop()


async def test_controlled_shutdown_moves_leaderships_before_the_broker_stops(
    cluster: ControllerCluster,
) -> None:
    brokers = await brokers_of(cluster, 1, 2, 3)
    made = await create(brokers[0], "flights", 6, 3)
    assert made.error == ErrorCode.NONE, made.message
    leaving = brokers[0]
    leaving.wants_shutdown = True
    await eventually(lambda: leaving.should_shutdown)
    watcher = brokers[1]  # which may hear of it later than the one that leaves
    await eventually(
        lambda: all(
            1 not in p.isr and p.leader in (2, 3) for p in watcher.state.topics["flights"].partitions.values()
        )
    )
    for broker in brokers:
        await broker.stop()


async def test_every_controller_starts_again_from_its_files(cluster: ControllerCluster) -> None:
    brokers = await brokers_of(cluster, 1, 2, 3)
    await create(brokers[0], "flights", 6, 3)
    for broker in brokers:
        await broker.stop()
    before = (await cluster.active()).metadata.state
    await cluster.stop()
    await cluster.start()
    after = (await cluster.active()).metadata.state
    assert after.topics == before.topics
    assert after.cluster_id == before.cluster_id
    assert after.controller_epoch > before.controller_epoch


async def test_controllers_that_wait_for_the_first_start_of_others_say_so(tmp_path: Path) -> None:
    cluster = ControllerCluster(tmp_path, 3)
    await cluster.start(1, 3)
    client = cluster.client()
    node = cluster.nodes[3]
    await eventually(lambda: "not seen yet: 2;" in node.metadata.status.waits_for)
    quorum = await client.describe_quorum(3)
    assert [voter.node_id for voter in quorum.voters if voter.without_vote] == [1, 3]
    assert quorum.leader_id == -1
    assert "not seen yet: 2;" in quorum.waits_for
    await client.close()
    await cluster.stop()


async def test_answers_say_how_far_the_metadata_had_been_applied(three: ControllerCluster) -> None:
    """A broker leads again, and counts with a new ISR, only when it has applied as much."""
    broker = Broker(three, 1)
    await broker.start()
    request = rpc.HeartbeatRequest(
        node_id=1, broker_epoch=broker.broker_epoch, applied_index=broker.broker_epoch
    )
    heartbeat = await broker.client.heartbeat(request)
    altered = await broker.client.alter_partitions(
        rpc.AlterPartitionsRequest(node_id=1, broker_epoch=broker.broker_epoch)
    )
    assert heartbeat.metadata_index >= broker.broker_epoch
    assert altered.metadata_index >= heartbeat.metadata_index
    await broker.stop()


@pytest.mark.parametrize("looks", [True, False])
async def test_a_controller_whose_journal_hangs_stops_answering_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    """Its successor makes others leaders: a broker that gets answers only from the old one must not go on
    leading.  Ablation: it does not look."""
    if not looks:
        monkeypatch.setattr(MetadataLog, "_is_alive", True)
    cluster = ControllerCluster(tmp_path, 3)
    await cluster.start()
    (broker,) = await brokers_of(cluster, 1)
    old = await cluster.active()
    old_id = next(node_id for node_id, node in cluster.nodes.items() if node is old)
    hangs, go_on, sync = threading.Event(), threading.Event(), DurableJournal.sync
    journal = old.metadata._thread._core.journal  # type: ignore[union-attr]

    def hanging(self: DurableJournal) -> None:
        if self is journal and not go_on.is_set():
            hangs.set()
            go_on.wait(20)
        sync(self)

    monkeypatch.setattr(DurableJournal, "sync", hanging)
    stub = broker.client._stub(old_id)

    async def refuses() -> bool:
        beat = rpc.HeartbeatRequest(
            node_id=1, broker_epoch=broker.broker_epoch, applied_index=broker.follower.applied_index
        )
        return (await stub.Heartbeat(beat, timeout=15)).status.error != ErrorCode.NONE

    try:
        asked = asyncio.create_task(create(broker, "t", 1, 1))  # something to flush
        await eventually(hangs.is_set)
        with nullcontext() if looks else pytest.raises(AssertionError, match="it refuses"):
            await eventually(refuses, "it refuses", QUICK.leader_fallback_s + 3.0)
    finally:
        go_on.set()
        await asyncio.gather(asked, return_exceptions=True)
        await broker.stop()
        await cluster.stop()


@pytest.mark.parametrize(("bytes_max", "elr"), [(1 << 19, {2, 3}), (1000, set[int]())])
async def test_a_creation_too_large_for_one_command_leaves_out_its_elr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_max: int, elr: set[int]
) -> None:
    monkeypatch.setattr(topics, "COMMAND_BYTES_MAX", bytes_max)
    cluster = ControllerCluster(tmp_path, 1)
    await cluster.start()
    broker = Broker(cluster, 1)
    await broker.start()
    for node_id in (2, 3):
        await broker.client.register_broker(registration(node_id))  # and never seen again
    topic = rpc.NewTopic(name="t", partitions=40, replication_factor=3, config={"min.insync.replicas": "2"})
    (made,) = (await broker.client.create_topics(rpc.CreateTopicsRequest(topics=[topic]))).topics
    more = rpc.CreatePartitionsRequest(topics=[rpc.PartitionsToCreate(name="t", total=80)])
    (enlarged,) = (await broker.client.create_partitions(more)).topics
    partitions = cluster.nodes[1].metadata.state.topics["t"].partitions
    await broker.stop()
    await cluster.stop()
    assert (made.error, enlarged.error, len(partitions)) == (0, 0, 80)
    assert all(set(partition.elr) == elr for partition in partitions.values())
