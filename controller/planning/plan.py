"""Plans: the operations that one request, heartbeat or tick leads to, on their way into the metadata log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ...proto import controller_pb2 as rpc
from ...proto import metadata_pb2 as pb
from ...wire.errors import ErrorCode
from ..state.cluster_state import ClusterState
from ..state.model import PartitionState
from .elections import Wanted, change_operations


@dataclass(slots=True)
class Plan:
    """Operations in order; `commands()` splits them into log entries.  Later entries rely on earlier ones.

    The last entry carries the id of the client's request (empty without one): the request counts as done only
    when the whole plan is applied.  So a plan with a request id has an entry even without operations: a late
    copy of the request must not be carried out after another client has changed something."""

    operations: list[pb.Operation] = field(default_factory=list)
    reason: str = ""
    request_id: rpc.RequestId = field(default_factory=rpc.RequestId)

    def commands(self, controller_epoch: int, bytes_max: int = 400_000) -> Iterator[pb.Command]:
        command, size = pb.Command(controller_epoch=controller_epoch), 0
        for operation in self.operations:
            operation_bytes = operation.ByteSize()
            if size and size + operation_bytes > bytes_max:
                yield command
                command, size = pb.Command(controller_epoch=controller_epoch), 0
            command.operations.append(operation)
            size += operation_bytes
        if size or self.request_id.client_id:
            command.proposer, command.sequence = self.request_id.client_id, self.request_id.sequence
            yield command


PartitionKey = tuple[str, int]
"""(topic name, partition)"""


@dataclass(slots=True)
class PartitionPlan:
    """A request that changes partitions one by one: the changes, and the answer for each partition.

    `was_done(partition, wanted)`: whether the change stands in the state after the plan was carried out.  A
    change that lost a race did not; its answer then is `lost`.
    """

    reason: str
    was_done: Callable[[PartitionState, Wanted], bool]
    lost: tuple[ErrorCode, str]
    wanted: dict[PartitionKey, Wanted] = field(default_factory=dict)
    results: list[rpc.PartitionResult] = field(default_factory=list)
    request_id: rpc.RequestId = field(default_factory=rpc.RequestId)

    @property
    def plan(self) -> Plan:
        return Plan(list(change_operations(self.wanted.values())), self.reason, self.request_id)

    def commands(self, controller_epoch: int) -> Iterator[pb.Command]:
        return self.plan.commands(controller_epoch)

    def outcome(self, state: ClusterState) -> list[rpc.PartitionResult]:
        """The results, after the plan was carried out."""
        for result in self.results:
            wanted = self.wanted.get((result.topic, result.partition))
            if wanted is None:
                continue
            topic = state.topic_by_id(wanted.topic.topic_id)
            partition = None if topic is None else topic.partitions.get(wanted.partition)
            if partition is None or not self.was_done(partition, wanted):
                code, result.message = self.lost
                result.error = int(code)
        return self.results
