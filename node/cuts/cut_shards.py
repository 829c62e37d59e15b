"""What this node answers to takers of cuts: for the shards that it coordinates and the partitions that it
leads (docs/cuts.md)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from ...coordinator.transaction.cut_events import HeldReply, HoldDecisions, ReleaseDecisions, ReleasedReply
from ...proto import cuts_pb2 as pb
from ...replication.manager import ReplicaManager
from ...wire.errors import ErrorCode, KafkaError
from ..coordinators.transaction_coordination import TransactionCoordination
from .bounds import bounds_of

PARTITIONS_AT_ONCE: Final = 100
"""Between two rounds of the node's loop."""


class CutShards:
    """See the module's text.  Used on the node's loop."""

    def __init__(self, transactions: TransactionCoordination, replicas: ReplicaManager) -> None:
        self._transactions = transactions
        self._replicas = replicas

    async def hold(self, request: pb.HoldDecisionsRequest) -> pb.HoldDecisionsReply:
        held = (self._hold(request, asked) for asked in request.shards)
        return pb.HoldDecisionsReply(shards=await asyncio.gather(*held))

    async def _hold(self, request: pb.HoldDecisionsRequest, asked: pb.LedPartition) -> pb.HeldShard:
        event = HoldDecisions(request.hold_id, request.hold_ms)
        try:
            found: HeldReply = await self._transactions.ask_partition(asked.partition, event)
        except KafkaError as error:
            return pb.HeldShard(partition=asked.partition, error_code=error.code, error_message=error.message)
        return pb.HeldShard(
            partition=asked.partition,
            leader_epoch=found.leader_epoch,
            until_ms=found.until_ms,
            decided_producer_ids=found.decided,
        )

    async def release(self, request: pb.ReleaseDecisionsRequest) -> pb.ReleaseDecisionsReply:
        released = (self._release(request.hold_id, asked) for asked in request.shards)
        return pb.ReleaseDecisionsReply(shards=await asyncio.gather(*released))

    async def _release(self, hold_id: str, asked: pb.HeldShard) -> pb.ReleasedShard:
        event = ReleaseDecisions(hold_id, asked.leader_epoch, asked.until_ms)
        try:
            found: ReleasedReply = await self._transactions.ask_partition(asked.partition, event)
        except KafkaError:  # it leads no more: the taker learns that it was not held
            return pb.ReleasedShard(partition=asked.partition)
        return pb.ReleasedShard(partition=asked.partition, has_held=found.has_held)

    async def bounds(self, request: pb.BoundsRequest) -> pb.BoundsReply:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + request.timeout_ms / 1000
        reply = pb.BoundsReply()
        for topic in request.topics:
            for asked in topic.partitions:
                if len(reply.partitions) % PARTITIONS_AT_ONCE == PARTITIONS_AT_ONCE - 1:
                    await asyncio.sleep(0)
                reply.partitions.append(await self._bounds(topic, asked, deadline_s))
        return reply

    async def _bounds(
        self, topic: pb.TopicBoundsRequest, asked: pb.LedPartition, deadline_s: float
    ) -> pb.PartitionBounds:
        try:
            try:
                return self._bounds_now(topic, asked)
            except KafkaError as error:
                if error.code is not ErrorCode.OFFSET_NOT_AVAILABLE:
                    raise
            await self._until_settled(topic.topic, asked, deadline_s)
            return self._bounds_now(topic, asked)
        except KafkaError as error:
            return pb.PartitionBounds(error_code=error.code, error_message=error.message)

    def _bounds_now(self, topic: pb.TopicBoundsRequest, asked: pb.LedPartition) -> pb.PartitionBounds:
        replica = self._replicas.replica(topic.topic, asked.partition)
        if replica.topic_id.bytes != topic.topic_id:
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, "the topic was deleted, and made again")
        leader = replica.require_leader_at(asked.leader_epoch)
        return bounds_of(replica.log, leader.leader_epoch, leader.epoch_start_offset)

    async def _until_settled(self, topic: str, asked: pb.LedPartition, deadline_s: float) -> None:
        """Returns when the high watermark has reached the start of the leader's epoch, or the time is up."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[ErrorCode] = loop.create_future()
        leader = self._replicas.replica(topic, asked.partition).require_leader_at(asked.leader_epoch)
        self._replicas.when_committed(
            topic,
            asked.partition,
            leader.leader_epoch,
            leader.epoch_start_offset,
            max(1, int(1000 * (deadline_s - loop.time()))),
            partial(_settle, over),
        )
        await over


def _settle(over: asyncio.Future[ErrorCode], code: ErrorCode) -> None:
    if not over.done():
        over.set_result(code)
