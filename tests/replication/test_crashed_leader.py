"""A leader that stopped unclean does not lead the same epoch again (docs/semantics.md E10).

Its lost tail may live on at followers, and other records at the same offsets in the same epoch would be a
divergence that no history shows.  In a cluster this cannot come up, because a node acts only on metadata that
has its registration: the rule stands behind that one.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from tidegate.replication.partition.assignment import Assignment
from tidegate.replication.replica.replica import Replica, Role
from tidegate.storage.log.log import AppendOrigin, Log, LogConfig

from .cluster import batch_of
from .memory_disk import MemoryDisk

WRITTEN_AT_MS = 1_700_000_000_000


def opened(disk: MemoryDisk) -> Log:
    config = LogConfig.from_topic_config({})
    return Log.open(disk, Path("/t-0"), topic="t", partition=0, config=config, clean=False, recovery_point=0)


@pytest.mark.parametrize(("epoch", "role"), [(3, Role.IDLE), (4, Role.LEADER)])
def test_only_a_newer_epoch_is_led_after_a_crash(epoch: int, role: Role) -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.append_leader(batch_of("a"), leader_epoch=3, origin=AppendOrigin.CLIENT, now_ms=WRITTEN_AT_MS)
    log.flush_now()
    log.close(clean=False)
    assignment = Assignment("t", UUID(int=1), 0, (1, 2), (1, 2), 1, epoch, 7)
    replica = Replica(1, assignment, opened(disk))
    replica.apply(assignment, now_s=0.0, lag_max_s=10.0)
    assert replica.role is role
