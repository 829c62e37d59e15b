"""What Spark calls: in the tasks `write`, on the driver `commit` or `abort`.

A batch is one job of the sink, named by the options `sinkId` and `jobId` or `batchId`, else at random;
`stream_writer.py` has the other writer.

The commit is one request that may be repeated; its first decision counts.  When it fails Spark calls `abort`,
which changes nothing of a job that is committed.

A job that was committed before is written no more.  When it then had another number of rows than now, this
is not the same batch, and the write fails: its rows would be nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ...client.requests.transaction_requests import Identity
from ...proto import jobs_pb2 as pb
from ...runtime.logs import get
from ...wire.errors import ErrorCode
from ..connecting.channels import Channels
from ..executors import SentToExecutors
from ..options import client_security
from ..worker_logs import log_as_a_worker
from ..worker_memory import keep_memory
from .attempt import attempt_name, job_name, random_name, write_attempt
from .attempt_producer import AttemptProducer
from .jobs_client import JobsClient
from .options import SINK_DEFAULT, WriteOptions
from .results import Outcome, TaskResult, WriteError, outcome_of
from .rows import Layout

log = get(__name__)

FIRST_BATCH: Final = "0"
"""Of a stream, which warns once."""

REPLAY_IS_KNOWN: Final = (
    "as many rows as it has now are written, and it is not written again; if another query or program has "
    "this sinkId, give it one of its own"
)
REPLAY_IS_UNKNOWN: Final = (
    "these rows are not written again, and how many it had is not remembered; if another query or program "
    "has this sinkId, or the checkpoint is lost and its micro-batches had other rows, they are written "
    "nowhere: give each one a sinkId of its own"
)

Messages = Sequence[WriterCommitMessage | None]


class Sink:
    """What a batch and a stream share; pickled to the tasks."""

    def __init__(self, options: WriteOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        self.run = random_name()

    def write(self, job: pb.Job, attempt: str, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        """In a task.  Raises KafkaError, RowError."""
        keep_memory()
        log_as_a_worker()
        security = client_security(self._options.security)

        def make_producer(transactional_id: str, identity: Identity) -> AttemptProducer:
            return AttemptProducer(self._options, security, transactional_id, identity)

        jobs = self.client(job)
        name = f"{attempt}-{self.run}"
        try:
            result = write_attempt(
                batches, self._layout, job, name, jobs, make_producer, self._options.job_timeout_ms
            )
            return replace(result, run=self.run)
        finally:
            jobs.close()

    def client(self, job: pb.Job) -> JobsClient:
        options = self._options
        channels = Channels(security=client_security(options.security))
        return JobsClient(job, options.bootstrap, options.job_bootstrap, channels, options.retry_timeout_ms)

    def commit(self, messages: Messages, batch: str) -> Outcome:
        """On the driver.  Raises WriteError when the job is not committed."""
        keep_memory()
        log_as_a_worker()
        if self._options.ignored and (batch == FIRST_BATCH or not batch.isdecimal()):
            log.warning("options_without_meaning_here", options=", ".join(self._options.ignored))
        if None in messages:
            raise WriteError(
                ErrorCode.INVALID_REQUEST,
                f"{messages.count(None)} of {len(messages)} tasks of batch {batch} have no result: a commit "
                "would leave their rows out",
            )
        outcome = outcome_of(messages, batch)
        if outcome.rows_replayed and self._are_the_same_rows(outcome, batch, outcome.rows_committed):
            log.warning(
                "batch_was_committed_before", sink=outcome.sink, batch=batch, rows=outcome.rows_replayed,
                advice=REPLAY_IS_UNKNOWN if outcome.rows_committed is None else REPLAY_IS_KNOWN,
            )  # fmt: skip
        if outcome.sink is None or not outcome.winners:
            return outcome  # the tasks had no rows: the job was never opened
        job = pb.Job(sink=outcome.sink, batch=batch)
        jobs = self.client(job)
        try:
            decision = jobs.commit(outcome.winners, outcome.rows)
        finally:
            jobs.close()
        if decision.outcome != pb.COMMITTED:
            raise WriteError(
                ErrorCode.INVALID_TXN_STATE,
                f"job {job.sink}/{batch} is {pb.JobState.Name(decision.outcome).lower()}, not committed",
            )
        if not decision.is_yours:
            self._are_the_same_rows(outcome, batch, decision.rows if decision.HasField("rows") else None)
            log.warning(
                "another_run_committed_the_batch", sink=job.sink, batch=batch, rows=outcome.rows,
                advice="its records count, and those of this run are aborted",
            )  # fmt: skip
        return outcome

    def _are_the_same_rows(self, outcome: Outcome, batch: str, committed: int | None) -> bool:
        """As far as it is known, by their number.  Raises WriteError when the run that counts had other rows,
        and the user does not accept that."""
        rows = outcome.rows + outcome.rows_replayed
        if committed is None or committed == rows:
            return True
        if not self._options.fail_on_replay_mismatch:
            log.warning(
                "batch_had_other_rows", sink=outcome.sink, batch=batch, rows=rows, committed=committed,
                advice="none of these rows is written by this run",
            )  # fmt: skip
            return False
        raise WriteError(
            ErrorCode.INVALID_REQUEST,
            f"batch {batch} of sink {outcome.sink} was committed with {committed:,} rows before, and has "
            f"{rows:,} now, which are not written. When its checkpoint is lost, or another query has this "
            "sinkId, give it a sinkId of its own, and start it where the written rows end. When it goes on "
            "from its checkpoint, or is the same job once more, its input has changed since: run it once "
            "with failOnReplayMismatch=false, which takes these rows for the written ones",
        )

    def abort(self, messages: Messages, batch: str) -> None:
        """On the driver: aborts the job unless it is committed, or another run has it.  Where no coordinator
        says so, the job's deadline ends it: that is no error, because Spark would hide the one that has
        failed the write behind it."""
        keep_memory()
        log_as_a_worker()
        outcome = outcome_of(messages, batch)
        sink = outcome.sink or self._options.sink
        if sink is None:
            return  # no task names the job: its deadline ends it, or the next run of it
        jobs = self.client(pb.Job(sink=sink, batch=batch))
        try:
            decision = jobs.abort(outcome.run)
        except WriteError as error:
            log.warning(
                "abort_not_confirmed", sink=sink, batch=batch, reason=error,
                advice="the job ends by its deadline (jobTimeoutMs), or by `tidegate jobs abort`; where the"
                " answer to its commit was lost it may be committed: `tidegate jobs describe` tells",
            )  # fmt: skip
            return
        finally:
            jobs.close()
        if decision.outcome == pb.COMMITTED:
            log.warning("batch_is_committed_all_the_same", sink=sink, batch=batch)
        elif decision.outcome == pb.OPEN:
            log.warning("another_run_has_the_batch", sink=sink, batch=batch, advice="it goes on")


def attempt_of(context: TaskContext) -> str:
    """The name of the attempt that a task is, which its run is added to."""
    return attempt_name(context.partitionId(), context.taskAttemptId())


class TidegateWriter(SentToExecutors, DataSourceArrowWriter):
    """Of one `save()`: built once, then pickled to the tasks, and to the commit."""

    def __init__(self, options: WriteOptions, layout: Layout) -> None:
        self._sink_name = options.sink or SINK_DEFAULT
        self._batch = options.job or job_name()
        self._sink = Sink(options, layout)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        return self._sink.write(
            pb.Job(sink=self._sink_name, batch=self._batch), attempt_of(context), iterator
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.commit(messages, self._batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        opened = TaskResult(
            self._sink_name, self._batch, 0, run=self._sink.run
        )  # tasks that failed may have opened it
        self._sink.abort([*messages, opened], self._batch)
