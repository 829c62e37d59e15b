"""Jobs in __transaction_state: a key version of Tidegate's own, which older coordinators and other readers
pass over."""

from __future__ import annotations

from typing import Final

from ..fields import FieldReader, FieldWriter, RecordFormatError
from ..outcome import CoordinatorRecord
from .jobs import BatchRows, Job, JobId, JobState, Winner

KEY_VERSION: Final = 30_000
"""Far above the key versions of Kafka, which count up from 0."""
VALUE_VERSION: Final = 0
ABORTED_RUNS_TAG: Final = 0
"""A coordinator that does not know it lets what is left of these runs open the job again."""
ROWS_TAG: Final = 1
FIRST_BATCHES_TAG: Final = 2
"""A coordinator that does not know them forgets them with its next commit: the sink then tells no rows."""


def encode_key(job: JobId) -> bytes:
    writer = FieldWriter()
    writer.int16(KEY_VERSION)
    writer.string(job.sink)
    writer.string(job.batch)
    return writer.finish()


def decode_key(data: bytes) -> JobId | None:
    """None for records of another kind."""
    reader = FieldReader(data)
    if reader.int16() != KEY_VERSION:
        return None
    job = JobId(reader.string(), reader.string())
    reader.finish()
    return job


def encode_value(job: Job) -> bytes:
    writer = FieldWriter(flexible=True)
    writer.int16(VALUE_VERSION)
    writer.int8(job.state)
    writer.int64(job.deadline_ms)
    writer.int64(job.decided_ms)
    writer.array(len(job.winners))
    for winner in job.winners:
        writer.string(winner.attempt)
        writer.int64(winner.producer_id)
        writer.int16(winner.producer_epoch)
        writer.tags({})
    tags: dict[int, bytes] = {}
    if job.aborted_runs:
        tags[ABORTED_RUNS_TAG] = _encode_runs(job.aborted_runs)
    if job.rows is not None:
        tags[ROWS_TAG] = _encode_rows(job.rows)
    if job.first_batches:
        tags[FIRST_BATCHES_TAG] = _encode_batches(job.first_batches)
    writer.tags(tags)
    return writer.finish()


def decode_value(job: JobId, data: bytes) -> Job:
    """Raises RecordFormatError; a coordinator that cannot read its log must not serve."""
    reader = FieldReader(data, flexible=True)
    version = reader.int16()
    if version != VALUE_VERSION:
        raise RecordFormatError(f"version {version} of job {job} is unknown: a later release wrote it")
    number, deadline_ms, decided_ms = reader.int8(), reader.int64(), reader.int64()
    if number not in set(JobState):
        raise RecordFormatError(f"job {job} is in state {number}, which is unknown")
    winners = []
    for _ in range(reader.array()):
        winners.append(Winner(reader.string(), reader.int64(), reader.int16()))
        reader.tags()
    tags = reader.tags()
    reader.finish()
    runs, rows, batches = (tags.get(tag) for tag in (ABORTED_RUNS_TAG, ROWS_TAG, FIRST_BATCHES_TAG))
    return Job(
        job,
        JobState(number),
        deadline_ms,
        decided_ms,
        tuple(winners),
        aborted_runs=() if runs is None else _decode_runs(runs),
        rows=None if rows is None else _decode_rows(rows),
        first_batches=() if batches is None else _decode_batches(batches),
    )


def _encode_runs(runs: tuple[str, ...]) -> bytes:
    writer = FieldWriter(flexible=True)
    writer.array(len(runs))
    for run in runs:
        writer.string(run)
    return writer.finish()


def _decode_runs(data: bytes) -> tuple[str, ...]:
    reader = FieldReader(data, flexible=True)
    runs = tuple(reader.string() for _ in range(reader.array()))
    reader.finish()
    return runs


def _encode_rows(rows: int) -> bytes:
    writer = FieldWriter(flexible=True)
    writer.int64(rows)
    return writer.finish()


def _decode_rows(data: bytes) -> int:
    reader = FieldReader(data, flexible=True)
    rows = reader.int64()
    reader.finish()
    return rows


def _encode_batches(batches: tuple[BatchRows, ...]) -> bytes:
    writer = FieldWriter(flexible=True)
    writer.array(len(batches))
    for each in batches:
        writer.string(each.batch)
        writer.int64(each.rows)
        writer.tags({})
    return writer.finish()


def _decode_batches(data: bytes) -> tuple[BatchRows, ...]:
    reader = FieldReader(data, flexible=True)
    batches = []
    for _ in range(reader.array()):
        batches.append(BatchRows(reader.string(), reader.int64()))
        reader.tags()
    reader.finish()
    return tuple(batches)


def record_of(job: Job) -> CoordinatorRecord:
    return CoordinatorRecord(encode_key(job.id), encode_value(job), job)


def tombstone_of(job: JobId) -> CoordinatorRecord:
    return CoordinatorRecord(encode_key(job), None)
