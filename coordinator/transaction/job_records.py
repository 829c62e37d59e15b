"""Jobs in __transaction_state: a key version of Tidegate's own, which older coordinators and other readers
pass over."""

from __future__ import annotations

from typing import Final

from ..fields import FieldReader, FieldWriter, RecordFormatError
from ..outcome import CoordinatorRecord
from .jobs import Job, JobId, JobState, Winner

KEY_VERSION: Final = 30_000
"""Far above the key versions of Kafka, which count up from 0."""
VALUE_VERSION: Final = 0
ABORTED_RUNS_TAG: Final = 0
"""A coordinator that does not know it lets what is left of these runs open the job again."""


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
    writer.tags({ABORTED_RUNS_TAG: _encode_runs(job.aborted_runs)} if job.aborted_runs else {})
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
    runs = reader.tags().get(ABORTED_RUNS_TAG)
    reader.finish()
    aborted_runs = () if runs is None else _decode_runs(runs)
    return Job(job, JobState(number), deadline_ms, decided_ms, tuple(winners), aborted_runs)


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


def record_of(job: Job) -> CoordinatorRecord:
    return CoordinatorRecord(encode_key(job.id), encode_value(job), job)


def tombstone_of(job: JobId) -> CoordinatorRecord:
    return CoordinatorRecord(encode_key(job), None)
