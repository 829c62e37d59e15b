"""Reading batches for a fetch, and what a partition's answer says when it cannot be served."""

from __future__ import annotations

from collections.abc import Callable

from ...wire.errors import ErrorCode, KafkaError
from ...wire.fetch import FetchResponsePartition
from .replica import OfflineCause, Replica, TakeOffline

UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def read_batches(
    replica: Replica,
    offset: int,
    max_bytes: int,
    upper_offset: int,
    at_least_one: bool,
    take_offline: TakeOffline,
) -> tuple[bytes, int]:
    """Whole batches from `offset` on and the offset after them.  Raises KafkaError; a failed disk is
    reported, too."""
    log = replica.log
    try:
        result = log.read(
            offset, max(0, max_bytes), upper_offset=upper_offset, at_least_one_batch=at_least_one
        )
    except KafkaError as error:
        if log.is_offline:
            take_offline(replica, OfflineCause.DISK_FAILED, str(error))
        raise
    return result.data, result.next_offset


def failed_answer(
    lookup: Callable[[str, int], Replica], key: tuple[str | None, int], error: KafkaError
) -> FetchResponsePartition:
    """The answer for a partition that refused; it says where to go on when that is known (KIP-951)."""
    topic, partition = key
    answer = FetchResponsePartition(partition, error.code)
    try:
        if topic is None:
            raise error
        replica = lookup(topic, partition)
    except KafkaError:
        if error.code in UNKNOWN:
            answer.aborted = ()  # as in Kafka, whose clients find the list there
        return answer
    if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
        answer.log_start_offset = replica.log.log_start_offset
        answer.high_watermark = replica.log.high_watermark
    elif error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
        answer.current_leader = (replica.leader_id, replica.leader_epoch)
    return answer
