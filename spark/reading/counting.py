"""Counts records by requests to the partitions' leaders, which count by indexes and read no data.  Without
Spark.

    count_committed("localhost:9192", "flights")                                 all that can be read now
    count_committed("localhost:9192", "flights", {0: (0, 1000), 1: (0, 250)})    these offsets

The count is the number of records that a read_committed reader of the same offsets gets: without transaction
markers, records of aborted transactions, records that compaction removed, and records above the last stable
offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...client.consuming.cut import Cut
from ...security.client_security import ClientSecurity
from ...wire.errors import ErrorCode
from ..connecting.answers import TopicView
from ..connecting.data_client import DataClient, offset_query
from ..connecting.errors import ReadError
from ..options import RETRY_TIMEOUT_MS_DEFAULT, parse_bootstrap
from .fetch import RangeRequest, deletion_is_accepted, where_to_resume


@dataclass(frozen=True, slots=True)
class PartitionCount:
    """A partition's number of readable `records` with offsets in [start, end)."""

    partition: int
    start: int
    end: int
    records: int


def count_committed(
    bootstrap: str,
    topic: str,
    ranges: Mapping[int, tuple[int, int]] | None = None,
    *,
    cut: Cut | None = None,
    retry_timeout_ms: int = RETRY_TIMEOUT_MS_DEFAULT,
    security: ClientSecurity | None = None,
) -> int:
    """The number of committed records of a topic, or of [start, end) of some of its partitions; at a cut,
    those that it has.  Blocks.

    `bootstrap`: Kafka or gRPC listeners of some nodes, as host:port,host:port; with `security` gRPC
    listeners.  Raises ReadError:
    OFFSET_OUT_OF_RANGE for a range below the log start or above the committed end, or that of the cut.
    """
    counts = counts_of(
        bootstrap, topic, ranges, cut=cut, retry_timeout_ms=retry_timeout_ms, security=security
    )
    return sum(count.records for count in counts)


def counts_of(
    bootstrap: str,
    topic: str,
    ranges: Mapping[int, tuple[int, int]] | None = None,
    *,
    read_committed: bool = True,
    cut: Cut | None = None,
    retry_timeout_ms: int = RETRY_TIMEOUT_MS_DEFAULT,
    security: ClientSecurity | None = None,
) -> list[PartitionCount]:
    """As `count_committed`, partition by partition."""
    client = DataClient(parse_bootstrap(bootstrap), retry_timeout_ms=retry_timeout_ms, security=security)
    try:
        if cut is not None:
            return [_count(client, request) for request in _requests_at_cut(topic, ranges, cut)]
        view = client.describe([topic])[topic]
        wanted = _everything(client, view, read_committed=read_committed) if ranges is None else ranges
        unknown = sorted(set(wanted) - set(view.partitions))
        if unknown:
            raise ReadError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has no partition {unknown[0]}")
        if ranges is not None:
            _require_ends(client, view, ranges, read_committed=read_committed)
        return [
            _count(
                client,
                RangeRequest(topic, view.topic_id, partition, start, end, read_committed, ranges is not None),
            )
            for partition, (start, end) in sorted(wanted.items())
        ]
    finally:
        client.close()


def _requests_at_cut(
    topic: str, ranges: Mapping[int, tuple[int, int]] | None, cut: Cut
) -> list[RangeRequest]:
    found = cut.topics.get(topic)
    if found is None:
        raise ReadError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r} is not in the cut")
    parts = found.partitions
    wanted = {number: (part.start, part.end) for number, part in parts.items()} if ranges is None else ranges
    for number, (start, end) in sorted(wanted.items()):
        if number not in parts:
            raise ReadError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the cut has no {topic}-{number}")
        if not parts[number].start <= start <= end <= parts[number].end:
            raise ReadError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{topic}-{number}: [{start}, {end}) was asked for, and the cut has [{parts[number].start}, "
                f"{parts[number].end})",
            )
    return [
        RangeRequest(
            topic, found.topic_id, number, start, end, False, True, at_cut=parts[number].shown(start, end)
        )
        for number, (start, end) in sorted(wanted.items())
    ]


def _require_ends(
    client: DataClient, view: TopicView, ranges: Mapping[int, tuple[int, int]], *, read_committed: bool
) -> None:
    """A count would wait for offsets that the leader does not know as committed yet: checks first that the
    leaders do."""
    answers = client.offsets(
        view, [offset_query(partition) for partition in ranges], read_committed=read_committed
    )
    for partition, (start, end) in sorted(ranges.items()):
        answer = answers[partition]
        bound = answer.last_stable_offset if read_committed else answer.high_watermark
        if end > bound:
            raise ReadError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{view.name}-{partition}: [{start}, {end}) was asked for, and what can be read ends "
                f"at {bound}",
            )


def _everything(client: DataClient, view: TopicView, *, read_committed: bool) -> dict[int, tuple[int, int]]:
    answers = client.offsets(
        view, [offset_query(partition) for partition in view.partitions], read_committed=read_committed
    )
    return {
        partition: (
            answer.log_start_offset,
            answer.last_stable_offset if read_committed else answer.high_watermark,
        )
        for partition, answer in answers.items()
    }


def _count(client: DataClient, request: RangeRequest) -> PartitionCount:
    start, records = request.start, 0
    while start < request.end:
        try:
            records = client.count_records(
                request.topic,
                request.topic_id,
                request.partition,
                start,
                request.end,
                read_committed=request.read_committed,
                at_cut=request.at_cut,
            )
            break
        except ReadError as problem:
            start = where_to_resume(client, request, start, problem)
    return PartitionCount(request.partition, start, request.end, records)


def count_range(client: DataClient, request: RangeRequest) -> int:
    """How many records `fetch_range` would yield; raises ReadError as it does."""
    try:
        return _count(client, request).records
    except ReadError as problem:
        if deletion_is_accepted(request, request.start, problem):
            return 0
        raise
