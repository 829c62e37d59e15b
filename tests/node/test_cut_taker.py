"""What a node does to take a cut (docs/semantics.md K6 and K7): the questions in their order, the second
attempt, the bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import grpc
import pytest
from tidegate.controller.state.model import PartitionState, TopicState
from tidegate.node.cluster.internal_topics import TRANSACTION_STATE
from tidegate.node.cuts import taker
from tidegate.node.cuts.attempt import Reason
from tidegate.node.cuts.cut_metrics import CutMetrics
from tidegate.node.cuts.cut_service import TOPICS_MAX, CutService
from tidegate.node.cuts.taker import CutTaker
from tidegate.proto import cuts_pb2 as pb
from tidegate.runtime.clock import SystemClock
from tidegate.tests.grpc_access import open_access
from tidegate.wire.errors import ErrorCode, KafkaError


def topic(name: str, number: int, partitions: int = 2) -> TopicState:
    led = {
        index: PartitionState(replicas=(1,), isr=(1,), leader=1, leader_epoch=5, partition_epoch=0)
        for index in range(partitions)
    }
    return TopicState(name, UUID(int=number), {}, led)


class Nodes:
    """One node that leads everything, and the quorum beside it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._heard = asyncio.Event()
        self.topics = {each.name: each for each in (topic("t", 1), topic(TRANSACTION_STATE, 2))}
        self.has_held = True
        self.counted = CutMetrics()
        self.answers = asyncio.Event()
        self.answers.set()
        self.on_barrier: Callable[[], None] = lambda: None
        self.bounds_error = ErrorCode.NONE
        cluster = SimpleNamespace(
            node_id=1, state=SimpleNamespace(topics=self.topics), wait_for_index=self._wait
        )
        controller = SimpleNamespace(read_barrier=self._barrier)
        peers = SimpleNamespace(close=lambda: None)
        arguments = cast("Any", (cluster, controller, peers, self, SystemClock(), self.counted))
        self.taker = CutTaker(*arguments)

    def _say(self, what: str) -> None:
        self.said.append(what)
        self._heard.set()

    async def until(self, what: str, times: int = 1) -> None:
        while self.said.count(what) < times:
            self._heard.clear()
            await self._heard.wait()

    async def _wait(self, index: int, timeout_s: float) -> None:
        assert index == 7

    async def _barrier(self, timeout_s: float) -> int:
        self._say("barrier")
        self.on_barrier()
        return 7

    async def hold(self, request: pb.HoldDecisionsRequest) -> pb.HoldDecisionsReply:
        self._say("hold")
        await self.answers.wait()
        held = [pb.HeldShard(partition=each.partition, leader_epoch=5, until_ms=9) for each in request.shards]
        return pb.HoldDecisionsReply(shards=held)

    async def bounds(self, request: pb.BoundsRequest) -> pb.BoundsReply:
        self._say("bounds")
        (of_topic,) = request.topics
        found = [
            pb.PartitionBounds(leader_epoch=5, high_watermark=3, error_code=self.bounds_error)
            for _ in of_topic.partitions
        ]
        return pb.BoundsReply(partitions=found)

    async def release(self, request: pb.ReleaseDecisionsRequest) -> pb.ReleaseDecisionsReply:
        self._say("release")
        released = [
            pb.ReleasedShard(partition=each.partition, has_held=self.has_held) for each in request.shards
        ]
        return pb.ReleaseDecisionsReply(shards=released)


async def code_of(call: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        await call
    return refused.value.code


async def test_each_step_follows_the_answers_to_the_one_before() -> None:
    nodes = Nodes()
    cut = await nodes.taker.take(["t"])
    assert nodes.said == ["hold", "bounds", "release", "barrier"]
    ((_, places),) = [(each.name, each.partitions) for each in cut.topics]
    assert [(each.partition, each.start, each.end) for each in places] == [(0, 0, 3), (1, 0, 3)]
    assert nodes.counted.taken == 1


async def test_a_cut_that_is_given_up_is_tried_again_and_at_the_end_says_why() -> None:
    nodes = Nodes()
    nodes.has_held = False
    with pytest.raises(KafkaError, match="were not held to the end") as refused:
        await nodes.taker.take(["t"], 0.2)
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert nodes.counted.given_up[Reason.HOLD] > 1
    nodes.has_held = True
    await nodes.taker.take(["t"])


async def test_partitions_that_come_meanwhile_lead_to_another_attempt() -> None:
    nodes = Nodes()
    nodes.on_barrier = lambda: nodes.topics.update(t=topic("t", 1, 3))
    assert len((await nodes.taker.take(["t"])).topics[0].partitions) == 3
    assert nodes.counted.given_up[Reason.METADATA] == 1


async def test_a_topic_that_this_node_does_not_know_yet_is_looked_for() -> None:
    nodes = Nodes()
    assert await code_of(nodes.taker.take(["new"])) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    nodes.on_barrier = lambda: nodes.topics.update(new=topic("new", 3))
    await nodes.taker.take(["new"])


async def test_a_client_that_goes_away_leaves_no_shard_held() -> None:
    nodes = Nodes()
    nodes.answers.clear()
    waits = asyncio.create_task(nodes.taker.take(["t"]))
    await nodes.until("hold")
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    await nodes.until("release")
    await nodes.taker.stop()


async def test_the_number_of_cuts_at_once_and_of_partitions_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = Nodes()
    nodes.answers.clear()
    waiting = [asyncio.create_task(nodes.taker.take(["t"])) for _ in range(taker.CUTS_WAITING_MAX)]
    await nodes.until("hold", taker.CUTS_AT_ONCE)
    assert await code_of(nodes.taker.take(["t"])) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    nodes.answers.set()
    await asyncio.gather(*waiting)
    monkeypatch.setattr(taker, "PARTITIONS_MAX", 1)
    assert await code_of(nodes.taker.take(["t"])) is ErrorCode.POLICY_VIOLATION


async def test_a_partition_with_too_many_open_transactions_is_no_matter_of_time() -> None:
    nodes = Nodes()
    nodes.bounds_error = ErrorCode.POLICY_VIOLATION
    assert await code_of(nodes.taker.take(["t"])) is ErrorCode.POLICY_VIOLATION
    assert nodes.said.count("bounds") == 1


@pytest.mark.parametrize(
    ("topics", "code"),
    [
        ([], ErrorCode.INVALID_REQUEST),
        (["t", "t"], ErrorCode.INVALID_REQUEST),
        ([TRANSACTION_STATE], ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
async def test_what_no_cut_can_have_is_refused(topics: list[str], code: ErrorCode) -> None:
    nodes = Nodes()
    assert await code_of(nodes.taker.take(topics)) is code
    assert nodes.said == []


async def test_a_request_names_a_bounded_number_of_topics() -> None:
    class Aborted(Exception):
        pass

    class Context:
        async def abort(self, status: grpc.StatusCode, message: str, metadata: Any) -> None:
            ((_, detail),) = metadata
            raise Aborted(status, pb.CutError.FromString(detail).message)

    nodes: Any = Nodes()
    service = CutService(nodes.taker, nodes, open_access())
    many = pb.TakeCutRequest(topics=[f"t{number}" for number in range(TOPICS_MAX + 1)])
    with pytest.raises(Aborted, match="1001 topics: a cut has at most 1000"):
        await service.TakeCut(many, cast("Any", Context()))
    assert nodes.said == []
