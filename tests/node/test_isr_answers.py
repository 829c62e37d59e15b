"""A leader counts with an ISR only on metadata as new as the controller's that confirmed it (KIP-966)."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import UUID

from tidegate.controller.remote.client import ControllerClient
from tidegate.node.cluster.cluster_view import ClusterView
from tidegate.node.cluster.isr_requests import IsrRequests
from tidegate.proto import controller_pb2 as pb
from tidegate.replication.partition.assignment import IsrChange, IsrMember, IsrResult
from tidegate.runtime.clock import ManualClock
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode


class Controller:
    """Takes every change but those of the `refused` partitions."""

    def __init__(self, refused: tuple[int, ...] = ()) -> None:
        self._refused = refused

    async def alter_partitions(self, request: pb.AlterPartitionsRequest) -> pb.AlterPartitionsReply:
        return pb.AlterPartitionsReply(
            partitions=[self._view(change) for change in request.changes], metadata_index=50
        )

    def _view(self, change: pb.IsrChange) -> pb.PartitionView:
        error = ErrorCode.INELIGIBLE_REPLICA if change.partition in self._refused else ErrorCode.NONE
        return pb.PartitionView(
            topic_id=change.topic_id, error=error, leader=1, leader_epoch=3, partition_epoch=8, isr=[1]
        )


class Metadata:
    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.asked: list[int] = []

    async def wait_for_index(self, index: int, timeout_s: float) -> None:
        self.asked.append(index)
        await asyncio.wait_for(self.reached.wait(), timeout_s)


def requests_at(controller: Controller) -> tuple[IsrRequests, Metadata]:
    metadata = Metadata()
    client = cast(ControllerClient, controller)
    cluster = ClusterView(1, cast(Any, metadata), client, ManualClock())
    return IsrRequests(cluster, client, lambda: 5), metadata


async def answers(requests: IsrRequests, changes: list[IsrChange]) -> list[IsrResult]:
    return [result async for results in requests.alter_partitions(changes) for result in results]


async def test_the_answer_to_an_isr_change_waits_for_its_metadata() -> None:
    """min.insync.replicas may have been raised: with the old minimum and the new ISR the leader would
    acknowledge alone."""
    requests, metadata = requests_at(Controller())
    change = IsrChange("t", UUID(int=9), 0, 3, 7, (IsrMember(1, 5),))
    asked = asyncio.create_task(answers(requests, [change]))
    await eventually(lambda: metadata.asked)
    assert metadata.asked == [50]
    assert not asked.done()
    metadata.reached.set()
    (result,) = await asked
    assert (result.partition_epoch, result.isr) == (8, (1,))


async def test_a_refusal_waits_for_no_metadata() -> None:
    """Until it counts, the high watermark waits for the follower that was refused."""
    requests, metadata = requests_at(Controller(refused=(1,)))
    changes = [IsrChange("t", UUID(int=9), number, 3, 7, (IsrMember(1, 5),)) for number in (0, 1)]
    answered = requests.alter_partitions(changes)
    (refused,) = await anext(answered)
    assert (refused.partition, refused.error) == (1, ErrorCode.INELIGIBLE_REPLICA)
    assert not metadata.asked
    metadata.reached.set()
    (accepted,) = await anext(answered)
    assert (accepted.partition, accepted.error) == (0, ErrorCode.NONE)
    assert metadata.asked == [50]
