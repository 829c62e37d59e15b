"""Sends the ISR changes of the leaders on this node to the controller (AlterPartition)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from ...controller.remote.client import ControllerClient
from ...proto import controller_pb2 as pb
from ...replication.partition.assignment import IsrChange, IsrResult
from ...replication.partition.isr_change import REFUSED
from ...wire.errors import ErrorCode
from .cluster_view import ClusterView
from .topic_creation import TOPIC_WAIT_S


class IsrRequests:
    """`broker_epoch()` is the epoch of the broker's registration."""

    def __init__(
        self, cluster: ClusterView, controller: ControllerClient, broker_epoch: Callable[[], int]
    ) -> None:
        self._cluster = cluster
        self._controller = controller
        self._broker_epoch = broker_epoch

    async def alter_partitions(self, changes: list[IsrChange]) -> AsyncIterator[Sequence[IsrResult]]:
        """Yields the rejections at once, and the other results when this node has applied the metadata that
        the controller had.

        A leader must not use a new ISR with an older min.insync.replicas, or it would acknowledge records
        that an eligible leader (KIP-966) does not have.  A rejection leaves the leader with the ISR that it
        had, so it need not wait.
        """
        request = pb.AlterPartitionsRequest(node_id=self._cluster.node_id, broker_epoch=self._broker_epoch())
        for change in changes:
            request.changes.add(
                topic_id=change.topic_id.bytes,
                partition=change.partition,
                leader_epoch=change.leader_epoch,
                partition_epoch=change.partition_epoch,
                isr=[member.node_id for member in change.isr],
                isr_broker_epochs=[member.broker_epoch for member in change.isr],
            )
        reply = await self._controller.alter_partitions(request)
        results = [
            IsrResult(
                topic=change.topic,
                partition=change.partition,
                error=ErrorCode(view.error),
                leader=view.leader,
                leader_epoch=view.leader_epoch,
                partition_epoch=view.partition_epoch,
                isr=tuple(view.isr),
            )
            for change, view in zip(changes, reply.partitions, strict=True)
        ]
        yield [result for result in results if result.error in REFUSED]
        others = [result for result in results if result.error not in REFUSED]
        if others:
            # after a TimeoutError `IsrChanges` asks again
            await self._cluster.wait_for_index(reply.metadata_index, TOPIC_WAIT_S)
            yield others
