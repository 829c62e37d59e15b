"""The plan of a request that names partitions: one operation each, and one answer each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ....proto import controller_pb2 as rpc
from ....proto import metadata_pb2 as pb
from ....wire.errors import ErrorCode
from ...state.cluster_state import ClusterState
from ...state.model import PartitionState
from ..plan import Plan
from .elections import Wanted, change_operations

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
