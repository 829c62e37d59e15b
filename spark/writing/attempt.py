"""One task attempt of a job, in a task.  The order makes the write exactly-once (docs/semantics.md T31-T38):

1. OpenAttempt, at the first row: a job that is committed already is written no more, its rows are only
   counted, and the driver compares.  The name has random characters: no two runs of a job share an attempt.
2. The records, numbered, with acks=all; meanwhile a thread renews the job.
3. Every acknowledgement.
4. PrepareAttempt.
5. The driver learns the attempt's identity, and decides.

An attempt that fails, or that Spark gives up for a faster one, says nothing: what the driver does not name
aborts with the decision, or at the job's deadline.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final, Protocol, Self

import pyarrow as pa

from ...client.requests.transaction_requests import Identity
from ...proto import jobs_pb2 as pb
from ...runtime.clock import Clock, SystemClock
from ...runtime.logs import get
from ...wire.errors import ErrorCode, KafkaError
from .jobs_client import JobsClient
from .options import UNNAMED
from .results import Attempt, TaskResult, WriteError
from .rows import Layout, Rows, rows_of

log = get(__name__)

RENEWALS_A_TIMEOUT: Final = 3
RANDOM_CHARACTERS: Final = 12


class RecordProducer(Protocol):
    """What `AttemptProducer` can do."""

    def start(self) -> None: ...

    def send(self, rows: Rows) -> None: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...


MakeProducer = Callable[[str, Identity], RecordProducer]
"""Of a transactional id and an identity."""


def random_name() -> str:
    """From the system's randomness: code of the user may have seeded `random` in the same worker."""
    return SystemClock().uuid().hex[:RANDOM_CHARACTERS]


def attempt_name(partition: int, task_attempt: int) -> str:
    """Unique over all runs of a job: task attempts count anew in each run."""
    return f"{partition}-{task_attempt}-{random_name()}"


def job_name() -> str:
    """Of a batch that the user does not name."""
    return f"{UNNAMED}{SystemClock().uuid().hex}"


def write_attempt(
    batches: Iterable[pa.RecordBatch],
    layout: Layout,
    job: pb.Job,
    name: str,
    jobs: JobsClient,
    make_producer: MakeProducer,
    timeout_ms: int,
    *,
    clock: Clock | None = None,
) -> TaskResult:
    """Writes and prepares.  Raises KafkaError, RowError."""
    with Renewal(jobs, timeout_ms) as renewal:
        return _write(
            batches, layout, job, name, jobs, make_producer, timeout_ms, renewal, clock or SystemClock()
        )


def _write(
    batches: Iterable[pa.RecordBatch],
    layout: Layout,
    job: pb.Job,
    name: str,
    jobs: JobsClient,
    make_producer: MakeProducer,
    timeout_ms: int,
    renewal: Renewal,
    clock: Clock,
) -> TaskResult:
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return TaskResult(job.sink, job.batch, 0)
    opened = jobs.open_attempt(name, timeout_ms)
    renewal.attempt_is_open = True
    if opened.state == pb.COMMITTED:
        rows = first.num_rows + sum(batch.num_rows for batch in filled)  # Spark wants them all taken
        committed = opened.rows if opened.HasField("rows") else None
        return TaskResult(job.sink, job.batch, rows, is_replay=True, rows_committed=committed)
    attempt = Attempt(name, opened.producer_id, opened.producer_epoch)
    producer = make_producer(opened.transactional_id, Identity(opened.producer_id, opened.producer_epoch))
    rows = 0
    try:
        producer.start()
        while first is not None:
            for some in rows_of(first, layout, clock.wall_ms()):
                renewal.check()
                producer.send(some)
                rows += len(some)
            first = next(filled, None)
        producer.finish()
        renewal.check()
    finally:
        producer.close()
    if not jobs.prepare_attempt(attempt, timeout_ms).has_written:
        raise WriteError(
            ErrorCode.INVALID_TXN_STATE,
            f"the coordinator knows of no record of attempt {name}, which wrote {rows}: the nodes are older "
            "than transaction.version 2, or the attempt was opened again",
        )
    return TaskResult(job.sink, job.batch, rows, attempt)


class Renewal:
    """Moves the deadline of the job while the task is there, from a thread of its own.

    Also before the task has a row: others may have prepared meanwhile, and only a task that is running can
    renew for them.  Until its own attempt is open, the state of the job is none of its business.
    """

    def __init__(self, jobs: JobsClient, timeout_ms: int) -> None:
        self._jobs, self._timeout_ms = jobs, timeout_ms
        self._ended = threading.Event()
        self._error: KafkaError | None = None
        self.attempt_is_open = False
        self._thread = threading.Thread(target=self._renew, name="job-renewal", daemon=True)

    def check(self) -> None:
        """Raises why the job cannot go on."""
        if self._error is not None:
            raise self._error

    def join(self, timeout_s: float) -> None:
        """Waits until it renews no more."""
        self._thread.join(timeout_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _renew(self) -> None:
        while self._error is None and not self._ended.wait(self._timeout_ms / 1000 / RENEWALS_A_TIMEOUT):
            was_open = self.attempt_is_open
            try:
                state = self._jobs.renew(self._timeout_ms).state
            except KafkaError as error:
                if was_open:
                    self._error = error
                else:
                    log.debug("job_not_renewed", reason=error)  # no task has opened it yet
                continue
            except Exception as error:  # a defect must not look like a job that is renewed
                self._error = WriteError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the renewal failed: {error!r}")
                continue
            if was_open and state != pb.OPEN:
                self._error = WriteError(
                    ErrorCode.INVALID_TXN_STATE,
                    f"the job is {pb.JobState.Name(state).lower()}, while this task writes: its deadline "
                    "passed, an operator aborted it, or another run of it has ended",
                )
