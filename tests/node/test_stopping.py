"""A stop that comes together with news must not be lost: a background task that goes on would hold the node's
stop for ever.

In Python 3.11 `asyncio.wait_for` loses a cancellation that arrives in the turn in which what it waits for is
done.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import grpc.aio
from tidegate.controller.remote.client import ControllerClient
from tidegate.controller.remote.metadata_follower import MetadataFollower
from tidegate.coordinator.transaction.state import TransactionPartition
from tidegate.node.cluster.peers import Peers
from tidegate.node.coordinators.marker_sender import MarkerSender
from tidegate.runtime.clock import SystemClock


class EndingStream:
    """A controller whose stream breaks when the test says so."""

    def __init__(self) -> None:
        self.active_id = None
        self.reads: asyncio.Queue[asyncio.Future[Any]] = asyncio.Queue()

    def candidate(self) -> int:
        return 1

    def note_failure(self, node_id: int) -> None: ...

    def follow_metadata(self, node_id: int, request: Any) -> EndingStream:
        return self

    async def read(self) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.reads.put_nowait(future)
        return await future

    def cancel(self) -> None: ...


async def test_the_metadata_follower_stops_while_its_stream_ends() -> None:
    controller = EndingStream()
    follower = MetadataFollower(cast(ControllerClient, controller), 1, SystemClock())
    await follower.start()
    read = await controller.reads.get()
    read.set_exception(
        grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())
    )
    await asyncio.sleep(0)  # the inner task has the error, the follower does not know yet
    async with asyncio.timeout(30):
        await follower.stop()


class NoTopics:
    """No partition has a leader."""

    def leader_of(self, partition: TransactionPartition) -> int | None:
        return None

    def is_gone(self, partition: TransactionPartition) -> bool:
        return False


async def test_the_marker_sender_stops_when_it_is_woken_at_the_same_moment() -> None:
    for turns in range(4):
        sender = MarkerSender(
            NoTopics(),
            cast(Peers, None),
            SystemClock(),
            lambda _partition, _event: None,
            1,
            cast(Any, None),
            list[BaseException]().append,
        )
        sender.start()
        await asyncio.sleep(0.01)
        sender._wake.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await sender.stop()
