"""What a task tells the driver, and what the driver makes of all of them: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from ...wire.errors import ErrorCode, KafkaError


class WriteError(KafkaError):
    """A write that cannot continue.  `code` is Kafka's."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A prepared attempt under the identity that it has written with."""

    name: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """Of one task attempt.  Each names the job: the driver's side of a stream does not know the query.

    `attempt` is None when the task wrote nothing: it had no rows, or the job is committed already
    (`is_replay`, with `rows_committed` of all tasks of the run that counts, when they are known).  `run`: of
    the job, in the end of each attempt's name."""

    sink: str
    batch: str
    rows: int
    attempt: Attempt | None = None
    is_replay: bool = False
    run: str | None = None
    rows_committed: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What there is to decide.  `sink` and `run` are None when no task names one.  `rows_committed`: of the
    run of the job that was committed before, when that is known."""

    sink: str | None
    winners: tuple[Attempt, ...]
    rows: int
    rows_replayed: int
    run: str | None = None
    rows_committed: int | None = None


def outcome_of(messages: Sequence[WriterCommitMessage | None], batch: str) -> Outcome:
    """Of all tasks of this batch; those without a message have failed.  Raises WriteError for messages of
    different jobs."""
    results = [message for message in messages if isinstance(message, TaskResult)]
    jobs = {(result.sink, result.batch) for result in results}
    if len(jobs) > 1 or any(named != batch for _, named in jobs):
        found = ", ".join(sorted(f"{sink}/{named}" for sink, named in jobs))
        raise WriteError(
            ErrorCode.INVALID_REQUEST, f"the tasks of batch {batch} wrote for other jobs: {found}"
        )
    return Outcome(
        next((sink for sink, _ in jobs), None),
        tuple(result.attempt for result in results if result.attempt is not None),
        sum(result.rows for result in results if not result.is_replay),
        sum(result.rows for result in results if result.is_replay),
        next((result.run for result in results), None),
        next((result.rows_committed for result in results if result.rows_committed is not None), None),
    )
