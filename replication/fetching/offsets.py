"""ListOffsets at a leader: latest, earliest, by timestamp, maximum timestamp.

A client sees offsets only as far as it may fetch: below the high watermark, or below the last stable offset
when read_committed. After an election the high watermark may lag the one that an earlier leader already
answered to clients, so "latest" would go backwards: until it has passed the leader's epoch start the answer
is OFFSET_NOT_AVAILABLE, which clients retry (docs/semantics.md F4).
"""

from __future__ import annotations

from dataclasses import dataclass

from ...storage.log.lookup import DecodedBatches, max_timestamp, offset_for_timestamp
from ...wire.errors import ErrorCode, KafkaError
from ..partition.leader import PartitionLeader
from ..replica.replica import Replica

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
READ_COMMITTED = 1


@dataclass(slots=True, frozen=True)
class OffsetAnswer:
    """An offset with the timestamp of its record (-1: not asked for) and the leader epoch; (-1, -1) when
    there is none."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


def list_offset(
    replica: Replica, epoch: int, timestamp: int, isolation: int | None, known: DecodedBatches | None = None
) -> OffsetAnswer:
    """`epoch` is the leader's, -1 where the client does not say.

    `isolation`: 0 read_uncommitted, 1 read_committed, None for replicas and tools, which see the log's end.
    With `known` raises BatchNotDecoded, where a batch is to be decoded for which the loop has no time.

    Raises KafkaError OFFSET_NOT_AVAILABLE or UNSUPPORTED_VERSION (a special timestamp that is not known), and
    as `require_leader_at`.
    """
    leader = replica.require_leader_at(epoch)
    log = replica.log
    if isolation is None:
        upper = log.log_end_offset
    elif isolation == READ_COMMITTED:
        upper = log.last_stable_offset
    else:
        upper = leader.high_watermark
    settled = isolation is None or leader.is_confirmed()
    if timestamp == LATEST:
        if not settled:
            raise _not_available(leader)
        return OffsetAnswer(upper, -1, leader.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return OffsetAnswer(log.log_start_offset, -1, leader.leader_epoch)
    if timestamp == LATEST_TIERED:  # nothing is
        return OffsetAnswer(-1, -1, -1)
    if timestamp == MAX_TIMESTAMP:
        found = max_timestamp(log, upper, known)
    elif timestamp >= 0:
        found = offset_for_timestamp(log, timestamp, upper, known)
    else:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} has no meaning here")
    if found is not None and found.offset < upper:
        return OffsetAnswer(found.offset, found.timestamp_ms, leader.leader_epoch)
    if not settled:  # a record beyond what may be shown now could be the answer a moment later
        raise _not_available(leader)
    return OffsetAnswer(-1, -1, -1)


def _not_available(leader: PartitionLeader) -> KafkaError:
    return KafkaError(
        ErrorCode.OFFSET_NOT_AVAILABLE,
        f"the high watermark {leader.high_watermark} has not reached the leader's epoch start "
        f"{leader.epoch_start_offset} yet",
    )
