"""A leader counts with an ISR only on metadata as new as the controller's that confirmed it (KIP-966)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from tidegate.controller.client import ControllerClient
from tidegate.node.broker import Broker
from tidegate.node.configuration import Configuration
from tidegate.proto import controller_pb2 as pb
from tidegate.replication.assignment import IsrChange, IsrMember
from tidegate.runtime.clock import ManualClock


class Controller:
    async def alter_partitions(self, request: pb.AlterPartitionsRequest) -> pb.AlterPartitionsReply:
        view = pb.PartitionView(topic_id=request.changes[0].topic_id, leader=1, leader_epoch=3, partition_epoch=8, isr=[1])
        return pb.AlterPartitionsReply(partitions=[view], metadata_index=50)


class Metadata:
    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.asked: list[int] = []

    async def wait_for_index(self, index: int, timeout_s: float) -> None:
        self.asked.append(index)
        await asyncio.wait_for(self.reached.wait(), timeout_s)


async def test_the_answer_to_an_isr_change_waits_for_the_metadata_it_was_given_on() -> None:
    """min.insync.replicas may have been raised: with the old minimum and the new ISR the leader would acknowledge alone."""
    configuration = cast(Configuration, SimpleNamespace(node_id=1))
    broker = Broker(configuration, ManualClock(), cast(ControllerClient, Controller()))
    broker.membership = cast(Any, SimpleNamespace(broker_epoch=5))
    metadata = Metadata()
    broker.metadata = cast(Any, metadata)
    change = IsrChange("t", UUID(int=9), 0, 3, 7, (IsrMember(1, 5),))
    asked = asyncio.create_task(broker.alter_partitions([change]))
    while not metadata.asked:
        await asyncio.sleep(0)
    assert metadata.asked == [50] and not asked.done()
    metadata.reached.set()
    (result,) = await asked
    assert (result.partition_epoch, result.isr) == (8, (1,))
