"""The leader compares a reader's log with its own by leader-epoch history (docs/semantics.md E3 to E7).

`find_divergence` is the leader's half of truncation; the follower's half is `follower.PartitionFollower`.
The leader calls it before it records the fetch offset of a follower: after a divergence the same offset means
other records.
"""

from __future__ import annotations

from ...wire.errors import ErrorCode, KafkaError
from .follower import LogView


def find_divergence(
    log: LogView, fetch_offset: int, last_fetched_epoch: int, *, follower: bool
) -> tuple[int, int] | None:
    """None when the log of a reader at `fetch_offset`, whose last record is of `last_fetched_epoch`, agrees
    with this one.

    Otherwise (epoch, end offset): the largest epoch of this log that is not above the reader's, and where it
    ends; where all epochs of this log are newer, the reader's epoch and the start of this log's first.
    `last_fetched_epoch` -1: the reader has no records (or is a client that does not track epochs). Raises
    KafkaError OFFSET_OUT_OF_RANGE below the log's start, for an epoch above this log's latest, and for
    clients also above its end.  A follower above the end gets the end as a divergence instead, so that it has
    an offset to truncate to.
    """
    end = log.log_end_offset
    if fetch_offset < log.log_start_offset:
        raise _out_of_range(log, fetch_offset)
    if last_fetched_epoch >= 0 and (last_fetched_epoch != log.latest_epoch or fetch_offset > end):
        common = log.epoch_end(last_fetched_epoch)
        if common.end_offset < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the reader's last epoch {last_fetched_epoch} is above this log's latest epoch "
                f"{log.latest_epoch}",
            )
        if common.epoch < last_fetched_epoch or common.end_offset < fetch_offset:
            return (common.epoch, common.end_offset)
    if fetch_offset > end:
        if follower:
            return (log.latest_epoch, end)
        raise _out_of_range(log, fetch_offset)
    return None


def _out_of_range(log: LogView, fetch_offset: int) -> KafkaError:
    return KafkaError(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"offset {fetch_offset} is not within the log [{log.log_start_offset}, {log.log_end_offset}]",
    )
