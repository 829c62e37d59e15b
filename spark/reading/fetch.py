"""Reads one range of one partition to its end, also when the leader fails or moves meanwhile.

For every chunk, in this order:

1. the reader must know the aborted transactions of the range (a stream's first chunk has them) before it
   filters a batch;
2. part by part, the batches must pass the check of `client/consuming/chunk_check.py`, without skipped or
   repeated offsets, before the caller gets them;
3. only after the last part the position moves, and the stream is used again.

What is wrong within a chunk ends the read.  When the stream breaks, between two chunks, the reader opens a
new one at the position, with a new list of aborted transactions and a new filter, and the rows that Spark has
got are exactly those below the position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from ...client.consuming.chunk_check import visible_batches
from ...client.consuming.cut import unless_aborted
from ...client.consuming.visibility import AtCut, VisibilityFilter
from ...proto.range_chunks import RecordsChunk
from ...runtime.logs import get
from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import BatchHeader
from ..connecting.data_client import DataClient, require_at_cut
from ..connecting.errors import ReadError, StreamLost

log = get(__name__)

_TOPIC_DELETED = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}
)


PART_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FetchedPart:
    """The bytes of a chunk, and some of the batches in them (position, header) whose records may be seen."""

    records: memoryview
    visible: list[tuple[int, BatchHeader]]


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """The range to read: [start, end) of one partition of the topic with this id.  With `at_cut`,
    `read_committed` has no meaning."""

    topic: str
    topic_id: bytes
    partition: int
    start: int
    end: int
    read_committed: bool
    fail_on_data_loss: bool
    at_cut: AtCut | None = None


def fetch_range(client: DataClient, request: RangeRequest) -> Iterator[FetchedPart]:
    """Yields the whole range, in order; raises ReadError when it cannot be read.

    Only the time in which the reader waits for a node counts against the retry timeout, not that of the
    consumer.
    """
    position = request.start
    budget = client.retry_budget()
    is_logged = False  # of the present interruption
    while position < request.end:
        lost: StreamLost | None = None
        try:
            visibility: VisibilityFilter | None = None
            stream = client.open_stream(
                request.topic,
                request.topic_id,
                request.partition,
                position,
                request.end,
                read_committed=request.read_committed,
                at_cut=request.at_cut,
            )
            with closing(stream):
                for chunk in stream:
                    if chunk.fields.waiting:
                        budget.renew()  # the node works, at other reads
                        continue
                    if visibility is None:
                        visibility = visibility_of(request, chunk)
                    yield from check_chunk(request, chunk, position, visibility)
                    position = chunk.fields.next_offset
                    is_logged = False
                    budget.renew()  # now, since the consumer's time does not count
        except StreamLost as problem:
            lost = problem
        except ReadError as problem:
            if deletion_is_accepted(request, position, problem):
                return
            position = where_to_resume(client, request, position, problem)
            continue
        if position >= request.end:
            return
        lost = lost or StreamLost(
            ReadError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the stream ended at {position}, before {request.end}")
        )
        if not is_logged:
            log.warning(
                "range_read_interrupted",
                topic=request.topic, partition=request.partition, position=position, reason=lost.error,
            )  # fmt: skip
            is_logged = True
        if not budget.wait(topic_unknown=lost.topic_unknown, reason=lost.error):
            if deletion_is_accepted(request, position, lost.error):
                return
            raise lost.error


def visibility_of(request: RangeRequest, first: RecordsChunk) -> VisibilityFilter:
    """The filter for a stream, from its first chunk."""
    if request.at_cut is not None:
        require_at_cut(first.fields.at_cut, request.topic, request.partition)
    filters = request.read_committed or request.at_cut is not None
    aborted = first.fields.aborted_transactions if filters else ()
    return VisibilityFilter(((each.producer_id, each.first_offset) for each in aborted), request.at_cut)


def check_chunk(
    request: RangeRequest, chunk: RecordsChunk, position: int, visibility: VisibilityFilter
) -> Iterator[FetchedPart]:
    """The chunk in parts, each checked (`chunk_check.py`) and filtered.  Raises ReadError."""
    place = f"{request.topic}-{request.partition}"
    records = memoryview(chunk.records)
    try:
        for visible in grouped(visible_batches(place, chunk, position, visibility)):
            yield FetchedPart(records, visible)
    except KafkaError as error:
        raise ReadError(error.code, error.message) from None


def grouped(batches: Iterable[tuple[int, BatchHeader]]) -> Iterator[list[tuple[int, BatchHeader]]]:
    """The same in groups of at most PART_BYTES, or one batch: what is checked is soon decoded, what is
    decoded is soon read again, and both should be in the processor's caches then."""
    group: list[tuple[int, BatchHeader]] = []
    size = 0
    for each in batches:
        size += each[1].size_bytes
        if group and size > PART_BYTES:
            yield group
            group, size = [], each[1].size_bytes
        group.append(each)
    if group:
        yield group


def where_to_resume(client: DataClient, request: RangeRequest, position: int, problem: ReadError) -> int:
    """The new position when records below the log start are deleted, and none of them was to be read or the
    user accepts this loss."""
    if problem.code != ErrorCode.OFFSET_OUT_OF_RANGE or problem.log_start_offset <= position:
        raise problem
    resume = min(problem.log_start_offset, request.end)
    if not request.fail_on_data_loss:
        log.warning(
            "records_lost", topic=request.topic, partition=request.partition, first=position, next=resume
        )
    elif not _was_aborted(client, request, problem.log_start_offset):
        raise problem
    return resume


def _was_aborted(client: DataClient, request: RangeRequest, log_start: int) -> bool:
    """Whether all that a late range shows of what is gone is of aborted transactions."""
    if request.at_cut is None or not request.at_cut.only:
        return False
    found = client.aborted_across_start(request.topic, request.topic_id, request.partition)
    return all(first >= log_start for _, first in unless_aborted(request.at_cut.transactions, *found))


def deletion_is_accepted(request: RangeRequest, position: int, problem: ReadError) -> bool:
    """Whether the topic is deleted and the user accepts that the read then ends early."""
    if request.fail_on_data_loss or problem.code not in _TOPIC_DELETED:
        return False
    log.warning(
        "records_lost", topic=request.topic, partition=request.partition, first=position, reason=problem
    )
    return True
