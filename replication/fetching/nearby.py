"""Which replica a consumer had better read from: one in its own rack (KIP-392).

The leader chooses, among the in-sync replicas of the consumer's rack that are known to hold the wanted
offset, the one that is furthest.  A follower then serves what it knows to be committed: its high watermark is
never above the leader's, so such a reader sees records later, and never one that may still go.  A follower
that cannot serve an offset says OFFSET_OUT_OF_RANGE: the reader asks the leader again, whose answer alone may
make it reset its position.

A consumer that names no rack, or the leader's own, reads from the leader.
"""

from __future__ import annotations

from collections.abc import Callable

from ..partition.leader import PartitionLeader

RackOf = Callable[[int], str]
"""The rack of a live broker; empty when it has none, or is not live."""

NONE = -1


def nearby_replica(leader: PartitionLeader, rack: str, fetch_offset: int, rack_of: RackOf) -> int:
    """The node to read from instead of this leader, or NONE."""
    if not rack or rack_of(leader.node_id) == rack:
        return NONE
    best, best_end = NONE, fetch_offset
    for node_id in sorted(leader.isr - {leader.node_id}):
        progress = leader.follower(node_id)
        holds = 0 <= progress.log_start_offset <= fetch_offset <= progress.fetch_offset
        if holds and rack_of(node_id) == rack and (best == NONE or progress.fetch_offset > best_end):
            best, best_end = node_id, progress.fetch_offset
    return best
