"""Markers reach every partition's leader: through failures, moves and deleted topics; only what is written is
called so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.coordinator.transaction.events import MarkersWritten, SendMarkers, TransactionIdentity
from tidegate.coordinator.transaction.markers import MarkerBatch
from tidegate.coordinator.transaction.state import TransactionPartition
from tidegate.node.cluster.peers import Peers
from tidegate.node.coordinators.marker_sender import Codes, MarkerSender
from tidegate.node.coordinators.transaction_coordination import Topics
from tidegate.runtime.clock import SystemClock
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError

FLIGHTS = UUID(int=1)
P0, P1 = (TransactionPartition("flights", index, FLIGHTS) for index in (0, 1))


HERE = 4


class World:
    """The leaders of partitions, and brokers that answer with scripted codes; the last code of a script
    stays."""

    def __init__(self) -> None:
        self.leaders: dict[TransactionPartition, int] = {P0: 1, P1: 2}
        self.gone: set[TransactionPartition] = set()
        self.codes: dict[int, list[ErrorCode | int | Exception]] = {
            1: [ErrorCode.NONE],
            2: [ErrorCode.NONE],
            3: [ErrorCode.NONE],
        }
        self.requests: list[tuple[int, dict[str, Any]]] = []
        self.written: list[tuple[int, MarkersWritten]] = []
        self.here: list[Exception | None] = [None]
        self.batches_here: list[MarkerBatch] = []
        self.failures: list[BaseException] = []
        self.sender = MarkerSender(
            self,
            cast(Peers, self),
            SystemClock(),
            self._on_written,
            HERE,
            self._write_here,
            self.failures.append,
        )

    async def _write_here(self, batch: MarkerBatch) -> Codes:
        self.batches_here.append(batch)
        error = self.here.pop(0) if len(self.here) > 1 else self.here[0]
        await asyncio.sleep(0)
        if error is not None:
            raise error
        return {
            (7, p.topic, p.partition): ErrorCode.NONE for each in batch.transactions for p in each.partitions
        }

    def leader_of(self, partition: TransactionPartition) -> int | None:
        return self.leaders.get(partition)

    def is_gone(self, partition: TransactionPartition) -> bool:
        return partition in self.gone

    def _on_written(self, state_partition: int, event: MarkersWritten) -> None:
        self.written.append((state_partition, event))

    def peer(self, node_id: int) -> Any:
        async def request(_key: int, version: int, fields: dict[str, Any], _timeout_s: float) -> Any:
            self.requests.append((node_id, fields))
            script = self.codes[node_id]
            code = script.pop(0) if len(script) > 1 else script[0]
            await asyncio.sleep(0)
            if code is ErrorCode.NETWORK_EXCEPTION:
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "gone")
            if isinstance(code, Exception):
                raise code
            return SimpleNamespace(markers=[self._answer(marker, code) for marker in fields["markers"]])

        return SimpleNamespace(request=request)

    @staticmethod
    def _answer(marker: dict[str, Any], code: int) -> Any:
        topics = [
            SimpleNamespace(
                name=topic["name"],
                partitions=[
                    SimpleNamespace(partition_index=index, error_code=code)
                    for index in topic["partition_indexes"]
                ],
            )
            for topic in marker["topics"]
        ]
        return SimpleNamespace(producer_id=marker["producer_id"], topics=topics)

    async def until(self, condition: Any) -> None:
        await eventually(lambda: condition())

    def send(self, *partitions: TransactionPartition, commit: bool = True) -> TransactionIdentity:
        identity = TransactionIdentity("tid", 7, 3, 9, 100)
        self.sender.send(5, SendMarkers("tid", 7, 3, 9, commit, partitions or (P0, P1), 2, identity))
        return identity


@pytest.fixture
async def world() -> AsyncIterator[World]:
    found = World()
    found.sender.start()
    yield found
    await found.sender.stop()


async def test_each_leader_gets_its_markers_and_the_shard_the_completion(world: World) -> None:
    identity = world.send(commit=False)
    await world.until(lambda: world.written)
    assert world.written == [(5, MarkersWritten(identity))]
    assert {node: fields["markers"][0]["topics"] for node, fields in world.requests} == {
        1: [{"name": "flights", "partition_indexes": [0]}],
        2: [{"name": "flights", "partition_indexes": [1]}],
    }
    (marker,) = world.requests[0][1]["markers"]
    assert (marker["producer_id"], marker["producer_epoch"], marker["coordinator_epoch"]) == (7, 3, 9)
    assert marker["transaction_result"] is False
    assert marker["transaction_version"] == 2


@pytest.mark.parametrize(
    "trouble",
    [
        ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS,
        pytest.param(12_345, id="a code of a later version"), RuntimeError("a defect"),
    ],
)  # fmt: skip
async def test_a_marker_is_sent_until_its_leader_has_taken_it(
    world: World, trouble: ErrorCode | int | Exception
) -> None:
    world.codes[2] = [trouble, trouble, ErrorCode.NONE]
    world.send()
    await world.until(lambda: world.written)
    assert [node for node, _ in world.requests].count(2) == 3
    assert len(world.written) == 1


@pytest.mark.parametrize(
    "trouble",
    [None, KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "starting"), TimeoutError(), RuntimeError("a defect")],
)
async def test_what_this_node_leads_it_writes_itself_until_it_is_written(
    world: World, trouble: Exception | None
) -> None:
    world.leaders[P0], world.here = HERE, [trouble, trouble, None]
    identity = world.send()
    await world.until(lambda: world.written)
    assert world.written == [(5, MarkersWritten(identity))]
    assert [node_id for node_id, _ in world.requests] == [2]
    assert len(world.batches_here) == (3 if trouble else 1)


async def test_a_defect_in_one_turn_does_not_end_the_sending(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[TransactionPartition] = []
    sound = world.is_gone

    def is_gone(partition: TransactionPartition) -> bool:
        if len(failed) < 2:
            failed.append(partition)
            raise KeyError("a defect")
        return sound(partition)

    monkeypatch.setattr(world, "is_gone", is_gone)
    del world.leaders[P1]
    world.send()
    await world.until(lambda: len(failed) == 2)
    world.leaders[P1] = 1
    await world.until(lambda: world.written)


async def test_a_retry_goes_to_the_new_leader(world: World) -> None:
    world.codes[2] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    world.send(P1)
    await world.until(lambda: world.requests)
    world.leaders[P1] = 3
    await world.until(lambda: world.written)
    assert world.requests[-1][0] == 3


async def test_a_partition_without_a_leader_is_waited_for(world: World) -> None:
    del world.leaders[P1]
    world.send(P1)
    await asyncio.sleep(0.05)
    assert world.requests == []
    assert world.written == []
    world.leaders[P1] = 1
    await world.until(lambda: world.written)


@pytest.mark.parametrize(
    "fencing", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED]
)
async def test_a_fenced_marker_is_given_up_and_never_called_written(world: World, fencing: ErrorCode) -> None:
    world.codes[1] = [fencing]
    world.send(P0)
    await world.until(lambda: not len(world.sender.queue) or world.written)
    assert world.written == []


async def test_a_deleted_topic_needs_no_marker(world: World) -> None:
    del world.leaders[P1]
    world.send()
    await world.until(lambda: world.requests)
    assert world.written == []
    world.gone.add(P1)
    world.sender._wake.set()
    await world.until(lambda: world.written)


async def test_a_topic_that_is_only_without_a_leader_is_not_taken_for_deleted(world: World) -> None:
    """Ablation of `is_gone`: what is merely unknown at the moment must hold the transaction back."""
    del world.leaders[P1]
    world.send()
    await world.until(lambda: world.requests)
    world.sender._wake.set()
    await asyncio.sleep(0.05)
    assert world.written == []


async def test_after_the_coordinator_moved_nothing_is_sent_or_reported_any_more(world: World) -> None:
    world.codes[1] = [ErrorCode.NETWORK_EXCEPTION]
    world.send(P0)
    await world.until(lambda: world.requests)
    world.sender.cancel(5)
    world.codes[1] = [ErrorCode.NONE]
    sent = len(world.requests)
    await asyncio.sleep(0.1)
    assert len(world.requests) <= sent + 1
    assert world.written == []


# --- the view of the metadata -------------------------------------------------------------------------------


def deleted_and_created_again(partitions: int) -> Topics:
    state = SimpleNamespace(
        topics={
            "flights": SimpleNamespace(partitions={n: SimpleNamespace(leader=2) for n in range(partitions)})
        },
        topic_by_id=lambda topic_id: None,
    )
    return Topics(lambda: cast(ClusterState, state), lambda: True)


def test_a_marker_for_a_deleted_topic_goes_to_the_new_topic_of_its_name() -> None:
    """A coordinator whose metadata lagged had enlisted the old id for a partition of the new topic, which
    would stay open."""
    topics, enlisted = deleted_and_created_again(1), TransactionPartition("flights", 0, UUID(int=1))
    assert topics.leader_of(enlisted) == 2
    assert not topics.is_gone(enlisted)


def test_a_partition_that_no_topic_of_the_name_has_is_gone() -> None:
    topics, enlisted = deleted_and_created_again(1), TransactionPartition("flights", 1, UUID(int=1))
    assert topics.leader_of(enlisted) is None
    assert topics.is_gone(enlisted)
    not_yet = Topics(topics._state, lambda: False)
    assert not not_yet.is_gone(enlisted), "a node that does not serve may know nothing yet"
