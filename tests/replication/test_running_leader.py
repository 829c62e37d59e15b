"""What the metadata change within a leader epoch reaches the leader that runs: it decides as one that began
with them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any
from uuid import UUID

import pytest
from tidegate.replication.partition.assignment import Assignment
from tidegate.replication.partition.leader import PartitionLeader
from tidegate.replication.replica.replica import Replica
from tidegate.storage.topic_config import TOPIC_CONFIGS
from tidegate.tests.storage.test_pure_parts import another_value

from .memory_disk import MemoryDisk
from .test_crashed_leader import opened

BEFORE = Assignment("t", UUID(int=1), 0, (1, 2), (1, 2), 1, 4, 7)
OF_ITS_EPOCH = {"topic", "topic_id", "partition", "leader", "leader_epoch"}
OF_ITS_LOG = {"pins"}  # ReplicaManager passes them on; no leader reads them
CHANGES: dict[str, Any] = {
    "replicas": (1, 2, 3), "isr": (1,), "partition_epoch": 8, "elr": (2,), "adding": (2,),
    "config": {key: another_value(row) for key, row in TOPIC_CONFIGS.items()},
}  # fmt: skip


def leading(*assignments: Assignment) -> Replica:
    replica = Replica(1, assignments[0], opened(MemoryDisk()))
    for each in assignments:
        replica.apply(each, now_s=0.0, lag_max_s=10.0)
    return replica


def decides_by(leader: PartitionLeader | None) -> dict[str, object]:
    assert leader is not None
    its = {name: getattr(leader, name) for name in PartitionLeader.__slots__ if name != "_eligibility_of"}
    return its | {"_followers": its["_followers"].keys()}


@pytest.mark.parametrize(
    "name", [each.name for each in fields(Assignment) if each.name not in OF_ITS_EPOCH | OF_ITS_LOG]
)
def test_a_running_leader_decides_by_each_field_that_changes(name: str) -> None:
    after = replace(BEFORE, **{"partition_epoch": 8, name: CHANGES[name]})
    running, fresh = leading(BEFORE, after), leading(after)
    assert running.assignment == after
    assert decides_by(running.leader) == decides_by(fresh.leader)
    assert decides_by(leading(replace(BEFORE, partition_epoch=8)).leader) != decides_by(fresh.leader) or (
        name in ("elr", "partition_epoch")  # no leader reads the one, and all of these have the other
    )


def test_a_running_leader_takes_a_configuration_after_a_newer_isr() -> None:
    """The answer to an ISR change came before the metadata: their partition epoch is not newer."""
    after = replace(BEFORE, config=CHANGES["config"])
    assert decides_by(leading(BEFORE, after).leader) == decides_by(leading(after).leader)
