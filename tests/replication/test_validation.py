"""`PartitionLeader.validate` and `Replica.validate` find what was planted; a node that validates says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tidegate.replication.partition.leader import PartitionLeader
from tidegate.replication.replica.replica import Replica, Role
from tidegate.tests.eventually import eventually

from .cluster import Cluster
from .leading import leader_of
from .test_manager import append, write


def leading() -> PartitionLeader:
    """The high watermark has moved, and the addition of node 3 is pending."""
    leader = leader_of(isr=(1, 2))
    for node in (2, 3):
        leader.record_fetch(node, broker_epoch=100, fetch_offset=15, leader_log_end=20, now_s=0.0)
    assert leader.advance_high_watermark(20, 20, 0.0)
    assert leader.propose_join(3) is not None
    return leader


def leader_outside_the_isr(leader: PartitionLeader) -> None:
    leader._isr = frozenset({2})


def isr_with_a_node_that_is_no_replica(leader: PartitionLeader) -> None:
    leader._isr |= {9}


def reassignment_of_a_node_that_is_no_replica(leader: PartitionLeader) -> None:
    leader._settled |= {9}


def maximal_isr_without_the_pending_addition(leader: PartitionLeader) -> None:
    leader._maximal_isr = leader._isr


def high_watermark_that_fell(leader: PartitionLeader) -> None:
    leader.high_watermark = 9


def high_watermark_above_the_end(leader: PartitionLeader) -> None:
    leader.high_watermark = 21


def high_watermark_above_a_member_of_the_isr(leader: PartitionLeader) -> None:
    leader.high_watermark = 16


def pending_change_of_an_older_partition_epoch(leader: PartitionLeader) -> None:
    leader.partition_epoch += 1


def pending_addition_that_is_in_the_isr(leader: PartitionLeader) -> None:
    leader._isr |= {3}


PLANTS: list[Callable[[PartitionLeader], None]] = [
    leader_outside_the_isr,
    isr_with_a_node_that_is_no_replica,
    reassignment_of_a_node_that_is_no_replica,
    maximal_isr_without_the_pending_addition,
    high_watermark_that_fell,
    high_watermark_above_the_end,
    high_watermark_above_a_member_of_the_isr,
    pending_change_of_an_older_partition_epoch,
    pending_addition_that_is_in_the_isr,
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_what_is_planted_in_a_leader_is_found(plant: Callable[[PartitionLeader], None]) -> None:
    leader = leading()
    leader.validate(20)
    plant(leader)
    with pytest.raises(AssertionError, match="breaks its invariants"):
        leader.validate(20)


def test_a_member_that_fetches_from_further_back_breaks_nothing() -> None:
    """With flush.policy=os a follower may lose records that counted for the high watermark."""
    leader = leading()
    leader.record_fetch(2, broker_epoch=101, fetch_offset=3, leader_log_end=20, now_s=1.0)
    leader.validate(20)


def role_without_a_leader(replica: Replica) -> None:
    replica.role = Role.FOLLOWER


def leader_epoch_that_the_log_does_not_have(replica: Replica) -> None:
    replica.log._epochs.epochs.append(99)
    replica.log._epochs.starts.append(replica.log.log_end_offset)


def leader_epoch_of_other_metadata(replica: Replica) -> None:
    replica.assignment = replace(replica.assignment, leader_epoch=99)


def high_watermark_that_the_log_does_not_have(replica: Replica) -> None:
    replica.log._high_watermark -= 1


@pytest.mark.parametrize(
    "plant",
    [
        role_without_a_leader,
        leader_epoch_that_the_log_does_not_have,
        leader_epoch_of_other_metadata,
        high_watermark_that_the_log_does_not_have,
    ],
    ids=lambda plant: plant.__name__,
)
async def test_what_is_planted_between_leader_and_log_is_found(
    cluster: Cluster, plant: Callable[[Replica], None]
) -> None:
    cluster.create()
    await write(cluster.managers[1], "a", "b")
    replica = cluster.managers[1].replica("t", 0)
    replica.validate(whole=True)
    plant(replica)
    with pytest.raises(AssertionError):
        replica.validate()


async def test_a_node_that_validates_reports_a_broken_leader_at_once(cluster: Cluster) -> None:
    cluster.create()
    await write(cluster.managers[1], "a", "b")
    assert not cluster.invalid
    leader = cluster.managers[1].replica("t", 0).require_leader()
    settled = leader._settled
    leader._settled |= {9}
    append(cluster.managers[1], "c")
    assert "are no replicas" in str(cluster.invalid[0])
    leader._settled = settled
    cluster.invalid.clear()


async def test_a_node_that_validates_reports_a_broken_follower(cluster: Cluster) -> None:
    cluster.create()
    await write(cluster.managers[1], "a", "b")
    log = cluster.managers[2].replica("t", 0).log
    await eventually(lambda: log.high_watermark == 2, "the follower knows what is committed")
    log.producers.first_unstable_offset = 1
    append(cluster.managers[1], "c")
    await eventually(lambda: bool(cluster.invalid), "the follower's next append is checked")
    assert "first unstable offset" in str(cluster.invalid[0])
    log.producers.first_unstable_offset = None
    cluster.invalid.clear()
