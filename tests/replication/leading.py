"""Leaders of one partition, for tests of the pure core, and what tests take out of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

import pytest
from tidegate.controller.state.eligibility import Eligibility
from tidegate.replication.partition.assignment import Assignment
from tidegate.replication.partition.isr_change import JoinObstacle
from tidegate.replication.partition.leader import LeaderStart, PartitionLeader, ReplicaProgress


def leader_of(
    *,
    replicas: Iterable[int] = (1, 2, 3),
    isr: Iterable[int] = (1, 2, 3),
    leader_epoch: int = 5,
    partition_epoch: int = 7,
    start: int = 10,
    high_watermark: int = 10,
    minimum: int = 2,
    lag_max_s: float = 10.0,
    now_s: float = 0.0,
    eligibility_of: Callable[[int, int], Eligibility] = lambda _node_id, _broker_epoch: Eligibility.YES,
) -> PartitionLeader:
    """Node 1 leads since its log ended at `start`."""
    assignment = Assignment(
        topic="t",
        topic_id=UUID(int=9),
        partition=0,
        replicas=tuple(replicas),
        isr=tuple(isr),
        leader=1,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        config={"min.insync.replicas": str(minimum)},
    )
    begin = LeaderStart(start, high_watermark, 0)
    return PartitionLeader(assignment, begin, lag_max_s=lag_max_s, now_s=now_s, eligibility_of=eligibility_of)


def join_despite(patch: pytest.MonkeyPatch, bound: str) -> None:
    """Ablation: leaders take followers into the ISR as if their attribute `bound`, an offset, were 0."""
    join_obstacles = PartitionLeader._join_obstacles

    def obstacles(leader: PartitionLeader, progress: ReplicaProgress) -> list[JoinObstacle]:
        offset = getattr(leader, bound)
        setattr(leader, bound, 0)
        try:
            return join_obstacles(leader, progress)
        finally:
            setattr(leader, bound, offset)

    patch.setattr(PartitionLeader, "_join_obstacles", obstacles)
