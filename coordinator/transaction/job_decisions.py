"""What the shard decides about jobs (docs/semantics.md T31 to T38); `jobs.py` has the states.

Promises
- The decision is one record.  CommitJob writes it only when every winner is prepared, under the identity that
  the driver names; what follows from it is carried out in bounded batches, and again after a failover.
- The first decision stays.  A driver that asks for another one is told the first; a job that is aborted, or
  whose deadline has passed, is never committed without new attempts.
- A run that was aborted stays so: a task of it that comes late does not open the job again.  No driver would
  decide it then, and readers of committed records would wait for its deadline.
- Between the decision and what is carried out of it, nothing else ends an attempt: the shard refuses every
  request of an attempt whose job is not open (`AttemptPort`'s owner asks `JobBook.is_open`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

from ...wire.errors import ErrorCode, KafkaError
from ..batches import batch_bytes
from ..outcome import Context, CoordinatorRecord, Reply, Write
from . import job_records
from .decision_holds import DecisionHolds
from .events import (
    Done,
    InitProducerId,
    PrepareTransaction,
    ProducerReply,
    SendMarkers,
    TransactionConfig,
    TransactionEffect,
    TransactionEvent,
    TransactionOutcome,
    TransactionReply,
)
from .job_book import JobBook
from .job_events import (
    AbortJob,
    AttemptReply,
    CarryOutJob,
    CommitJob,
    ContinueJob,
    DecisionReply,
    DescribeJob,
    ForgetJobs,
    JobDescription,
    JobEvent,
    JobsReply,
    ListJobs,
    OpenAttempt,
    PrepareAttempt,
    PreparedReply,
    RenewedReply,
    RenewJob,
    TimeoutJob,
)
from .jobs import (
    ABORTED_RUNS_MAX,
    ATTEMPT_TIMEOUT_MS,
    ATTEMPTS_MAX,
    JOBS_MAX,
    OPEN_JOBS_MAX,
    UNNAMED,
    WINNERS_MAX,
    Job,
    JobId,
    JobState,
    Winner,
    attempt_of,
    check_attempt,
    check_job,
    check_rows,
    is_of_run,
    runs_of,
    transactional_id,
)
from .state import RULES, Action, Stimulus, TransactionMetadata, TransactionState

RENEWAL_SLACK: Final = 8
"""A deadline is set later by an eighth of the timeout, so that not every renewal needs a record."""
BATCH_BYTES_MAX: Final = 256 << 10
"""Of the ends of attempts in one batch; one that is larger has a batch of its own."""
ASKED_FOR_MS: Final = 3_600_000
"""For so long a driver may repeat its commit, and a task may come late.  A job that no later run asks for,
since its batch is named at random or nothing of it is committed, is forgotten then."""


class AttemptPort(Protocol):
    """The shard's transactions, as the jobs use them."""

    transactions: dict[str, TransactionMetadata]

    def open_attempt(self, event: InitProducerId, context: Context) -> TransactionOutcome: ...

    def prepare_attempt(self, event: PrepareTransaction, context: Context) -> TransactionOutcome: ...

    def end_attempt(
        self, current: TransactionMetadata, action: Action, context: Context, offset: int
    ) -> tuple[CoordinatorRecord, SendMarkers | None]:
        """The record that carries the action out at this offset, and its markers."""


class JobDecisions:
    """Of one shard."""

    def __init__(
        self,
        config: TransactionConfig,
        port: AttemptPort,
        holds: DecisionHolds,
        require_level: Callable[[], None],
    ) -> None:
        """`require_level()` raises UNSUPPORTED_VERSION before the cluster's upgrade is finished."""
        self.book = JobBook()
        self._config = config
        self._port = port
        self._holds = holds
        self._require_level = require_level
        self._activated_ms = 0
        self._next_scan_ms = 0
        self._next_forgetting_ms = 0

    def handle(self, event: JobEvent, context: Context) -> TransactionOutcome:
        match event:
            case OpenAttempt():
                return self._open(event, context)
            case PrepareAttempt():
                return self._prepare(event, context)
            case RenewJob():
                return self._renew(event, context)
            case CommitJob():
                return self._commit(event, context)
            case AbortJob():
                return self._abort(event, context)
            case TimeoutJob():
                return self._time_out(event.job, context)
            case CarryOutJob():
                return self._carry_out(event.job, context)
            case ForgetJobs():
                return self._forget(event.jobs, context)
            case ListJobs():
                return self._list(event)
            case DescribeJob():
                return self._describe(event.job)

    # --- time -----------------------------------------------------------------------------------------------

    def activated(self, now_ms: int) -> list[TransactionEffect]:
        """What the former coordinator decided, and has not carried out."""
        self._activated_ms = now_ms
        return [ContinueJob(job_id) for job_id in self.book.unfinished]

    def due(self, now_ms: int) -> Iterator[TransactionEvent]:
        if now_ms >= self._next_scan_ms:
            self._next_scan_ms = now_ms + self._config.completion_retry_interval_ms
            yield from (CarryOutJob(job_id) for job_id in self._some(self.book.unfinished))
            late = (job_id for job_id in self.book.open if self._is_late(self.book.jobs[job_id], now_ms))
            yield from (TimeoutJob(job_id) for job_id in self._some(late))
            yield from self._forgetting(list(self._some(self.book.superseded)))
        if now_ms >= self._next_forgetting_ms:
            self._next_forgetting_ms = now_ms + self._config.expiration_scan_interval_ms
            yield from self._forgetting([j for j in self.book.jobs if self._is_forgettable(j, now_ms)])

    def _some(self, job_ids: Iterator[JobId] | dict[JobId, None]) -> Iterator[JobId]:
        return (job_id for _, job_id in zip(range(self._config.expiration_batch_max), job_ids, strict=False))

    def _forgetting(self, job_ids: Sequence[JobId]) -> Iterator[ForgetJobs]:
        size = self._config.expiration_batch_max
        for start in range(0, len(job_ids), size):
            yield ForgetJobs(tuple(job_ids[start : start + size]))

    def _is_late(self, job: Job, now_ms: int) -> bool:
        deadline_ms = max(job.deadline_ms, self._activated_ms + self._config.job_failover_grace_ms)
        # A coordinator whose clock was ahead wrote a deadline that is too far away.
        longest_ms = self._config.max_timeout_ms + self._config.max_timeout_ms // RENEWAL_SLACK
        if job.deadline_ms - now_ms > longest_ms:
            deadline_ms = self._activated_ms + longest_ms
        return deadline_ms < now_ms

    def _is_forgettable(self, job_id: JobId, now_ms: int) -> bool:
        job = self.book.jobs.get(job_id)
        if job is None or job.state is JobState.OPEN or job_id in self.book.attempts:
            return False
        if self.book.is_superseded(job_id):
            return True
        is_last = self.book.last_committed.get(job_id.sink) == job_id
        retention_ms = self._config.job_retention_ms
        while_asked_ms = min(retention_ms, ASKED_FOR_MS)
        if job_id.batch.startswith(UNNAMED) or job.state is JobState.ABORTED:
            retention_ms = while_asked_ms
        # The clock of the coordinator that decided may be behind, and the driver still wait for its answer.
        known_until_ms = max(job.decided_ms + retention_ms, self._activated_ms + while_asked_ms)
        return not is_last and known_until_ms < now_ms

    def _forget(self, job_ids: Sequence[JobId], context: Context) -> TransactionOutcome:
        names = [job_id for job_id in job_ids if self._is_forgettable(job_id, context.now_ms)]
        return Write([job_records.tombstone_of(job_id) for job_id in names], Done())

    # --- attempts -------------------------------------------------------------------------------------------

    def _open(self, event: OpenAttempt, context: Context) -> TransactionOutcome:
        self._require_level()
        check_job(event.job)
        check_attempt(event.attempt)
        job = self.book.jobs.get(event.job)
        if self.book.is_superseded(event.job) or (job and job.state is JobState.COMMITTED):
            return Reply(AttemptReply(JobState.COMMITTED, rows=self.book.rows_of(event.job)))
        if job is not None and job.has_aborted(event.attempt):
            message = f"attempt {event.attempt} is not opened: its run of job {event.job} was aborted"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, message)
        if event.job in self.book.unfinished:
            message = f"job {event.job}: the attempts of its last run are being aborted: retry"
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, message)
        renewed = self._opened_or_renewed(event.job, job, event.timeout_ms, context)
        name = event.transactional_id
        known = self._port.transactions.get(name)
        if known is not None and known.state is TransactionState.PREPARED:
            message = f"{name} is prepared already: give the next attempt another name"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, message)
        if known is None and len(self.book.attempts.get(event.job, ())) >= ATTEMPTS_MAX:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"job {event.job} has {ATTEMPTS_MAX} attempts")
        init = InitProducerId(name, ATTEMPT_TIMEOUT_MS, two_phase_commit=True)
        # the job's record comes first: no attempt is ever without its job
        context = replace(context, next_offset=context.next_offset + len(renewed))
        outcome = self._port.open_attempt(init, context)
        if not isinstance(outcome, Write):
            return outcome
        reply = outcome.reply
        if isinstance(reply, ProducerReply):
            reply = AttemptReply(JobState.OPEN, reply.producer_id, reply.producer_epoch)
        return replace(outcome, records=[*renewed, *outcome.records], reply=reply)

    def _prepare(self, event: PrepareAttempt, context: Context) -> TransactionOutcome:
        job = self._require_open(event.job, f"attempt {event.attempt} cannot be prepared")
        renewed = []
        if event.timeout_ms:
            renewed = self._opened_or_renewed(event.job, job, event.timeout_ms, context)
        known = self._port.transactions.get(event.transactional_id)
        identity = event.producer_id, event.producer_epoch
        if known is not None and known.state is TransactionState.EMPTY and known.client_identity == identity:
            return Write(renewed, PreparedReply(False))
        prepare = PrepareTransaction(event.transactional_id, *identity)
        outcome = self._port.prepare_attempt(prepare, context)
        records = outcome.records if isinstance(outcome, Write) else ()
        return Write([*records, *renewed], PreparedReply(True))

    def _renew(self, event: RenewJob, context: Context) -> TransactionOutcome:
        job = self._known(event.job)
        if job.state is not JobState.OPEN:
            return Reply(RenewedReply(job.state, -1))
        renewed = self._opened_or_renewed(event.job, job, event.timeout_ms, context)
        deadline_ms = max(job.deadline_ms, context.now_ms + event.timeout_ms)
        return Write(renewed, RenewedReply(JobState.OPEN, deadline_ms))

    def _opened_or_renewed(
        self, job_id: JobId, job: Job | None, timeout_ms: int, context: Context
    ) -> list[CoordinatorRecord]:
        """The record of the job, open until `timeout_ms` from now at least; none when it is so already."""
        if not 0 < timeout_ms <= self._config.max_timeout_ms:
            limit = f"the timeout {timeout_ms} ms of job {job_id} must lie between 1 and "
            limit += f"{self._config.max_timeout_ms} ms (transaction.max.timeout.ms)"
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT, limit)
        is_open = job is not None and job.state is JobState.OPEN
        if job is not None and is_open and job.deadline_ms >= context.now_ms + timeout_ms:
            return []
        forgotten = self._room_for(job_id)
        if not is_open and (forgotten is None or len(self.book.open) >= OPEN_JOBS_MAX):
            message = f"this coordinator has {len(self.book.open)} open jobs and {len(self.book.jobs)} in all"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{message}: at most {OPEN_JOBS_MAX} and {JOBS_MAX}")
        deadline_ms = context.now_ms + timeout_ms + timeout_ms // RENEWAL_SLACK
        aborted_runs = () if job is None else job.aborted_runs
        opened = Job(job_id, JobState.OPEN, deadline_ms, aborted_runs=aborted_runs)
        return [*(forgotten or ()), job_records.record_of(opened)]

    def _known(self, job_id: JobId) -> Job:
        check_job(job_id)
        job = self.book.jobs.get(job_id)
        if job is None:
            why = "was never opened, or is forgotten"
            if self.book.is_superseded(job_id):
                why = f"is forgotten: batch {self.book.last_committed[job_id.sink].batch} is committed"
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"job {job_id} {why}")
        return job

    def _require_open(self, job_id: JobId, refused: str) -> Job:
        job = self._known(job_id)
        if job.state is not JobState.OPEN:
            message = f"{refused}: job {job_id} is {job.state.name.lower()}"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, message)
        return job

    # --- the decision ---------------------------------------------------------------------------------------

    def _commit(self, event: CommitJob, context: Context) -> TransactionOutcome:
        wanted = tuple(sorted(event.winners))
        if len(wanted) > WINNERS_MAX or len({winner.attempt for winner in wanted}) < len(wanted):
            message = f"job {event.job}: at most {WINNERS_MAX} winners, each once, not {len(wanted)}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        check_rows(event.rows)
        job = self._known(event.job)
        if job.state is JobState.COMMITTED:
            return Reply(_decided(job, is_yours=wanted == job.winners))
        if job.state is JobState.ABORTED or self.book.is_superseded(event.job):
            why = "is aborted" if job.state is JobState.ABORTED else "comes after a later batch"
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, f"job {event.job} {why}: nothing of it is committed"
            )
        for winner in wanted:
            self._require_prepared(event.job, winner)
        if self._holds.is_held(context.now_ms):
            return self._holds.keep(event.job, context)
        committed = replace(
            job,
            state=JobState.COMMITTED,
            winners=wanted,
            rows=event.rows,
            first_batches=self.book.first_batches_below(event.job),
        )
        return self._decide(committed, context)

    def _require_prepared(self, job_id: JobId, winner: Winner) -> None:
        """An attempt that has written nothing needs no more than its identity."""
        found = self._port.transactions.get(transactional_id(job_id, winner.attempt))
        identity = winner.producer_id, winner.producer_epoch
        states = TransactionState.PREPARED, TransactionState.EMPTY
        if found is None or found.client_identity != identity or found.state not in states:
            state = "unknown" if found is None else f"{found.state.display_name} of {found.client_identity}"
            message = f"job {job_id}: winner {winner.attempt} of {identity} is not prepared: it is {state}"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, message)

    def _abort(self, event: AbortJob, context: Context) -> TransactionOutcome:
        job_id = event.job
        check_job(job_id)
        job = self.book.jobs.get(job_id)
        if self.book.is_superseded(job_id) and (job is None or job.state is not JobState.OPEN):
            return Reply(DecisionReply(JobState.COMMITTED, (), False, -1))
        if job is None:
            return self._abort_unopened(event, context)
        names = self.book.attempts.get(job_id, {})
        after = job.aborted(_runs_of_all(names) if event.run is None else [event.run])
        if job.state is JobState.ABORTED and after is not job:  # its deadline was faster, or an operator
            return self._decide(after, context, is_first=False)
        if job.state is not JobState.OPEN:
            return Reply(_decided(job, is_yours=job.state is JobState.ABORTED))
        if event.run is not None and not any(is_of_run(name, event.run) for name in names):
            remembered = [] if after is job else [job_records.record_of(after)]
            return Write(remembered, _decided(job, is_yours=False))
        return self._decide(replace(after, state=JobState.ABORTED), context)

    def _abort_unopened(self, event: AbortJob, context: Context) -> TransactionOutcome:
        """The tasks of the run may be on their way."""
        forgotten = self._room_for(event.job)
        if event.run is None or forgotten is None:
            return Reply(DecisionReply(None, (), False, -1))
        self._require_level()
        job = Job(event.job, JobState.ABORTED, -1, aborted_runs=(event.run,))
        decision = self._decide(job, context, is_first=False)
        return replace(decision, records=[*forgotten, *decision.records])

    def _time_out(self, job_id: JobId, context: Context) -> TransactionOutcome:
        job = self.book.jobs.get(job_id)
        if job is None or job.state is not JobState.OPEN or not self._is_late(job, context.now_ms):
            return Reply(Done())
        if self._holds.waits(job_id):
            return Reply(Done())
        return replace(self._decide(replace(job, state=JobState.ABORTED), context), reply=Done())

    def _decide(
        self, job: Job, context: Context, *, is_first: bool = True
    ) -> Write[TransactionReply, TransactionEffect]:
        """`is_first`: of a job that was open."""
        decided = replace(job, decided_ms=context.now_ms)
        record = job_records.record_of(decided)
        held, effects = self._holds.tokens_of(job.id), (ContinueJob(job.id, job.state if is_first else None),)
        return Write((record,), _decided(decided, is_yours=True), effects, resume=held)

    def _room_for(self, job_id: JobId) -> list[CoordinatorRecord] | None:
        """What has to be written for a new job to have room: where as many are remembered as may be, the
        record that forgets an aborted one.  None where there is no room."""
        if job_id in self.book.jobs or len(self.book.jobs) < JOBS_MAX:
            return []
        aborted = next((each for each in self.book.aborted if each not in self.book.attempts), None)
        return None if aborted is None else [job_records.tombstone_of(aborted)]

    # --- what follows from it -------------------------------------------------------------------------------

    def _carry_out(self, job_id: JobId, context: Context) -> TransactionOutcome:
        """The next batch: each attempt that is open or prepared gets its end, each that has ended is
        forgotten."""
        job = self.book.jobs.get(job_id)
        if job is None or job_id not in self.book.unfinished:
            return Reply(Done())
        winners = {winner.attempt for winner in job.winners}
        records: list[CoordinatorRecord] = []
        effects: list[TransactionEffect] = []
        size = 0
        for name in self.book.attempts[job_id]:
            current, found = self._port.transactions[name], attempt_of(name)
            assert found is not None
            stimulus = Stimulus.JOB_COMMITTED if found[1] in winners else Stimulus.JOB_ABORTED
            action = RULES[current.state, stimulus]
            if action is Action.IGNORE:
                continue
            record, markers = self._port.end_attempt(
                current, action, context, context.next_offset + len(records)
            )
            size += batch_bytes((record,))
            if len(records) == self._config.job_batch_max or (records and size > BATCH_BYTES_MAX):
                effects.append(ContinueJob(job_id))
                break
            records.append(record)
            if markers is not None:
                effects.append(markers)
        return Write(records, Done(), effects)

    # --- views ----------------------------------------------------------------------------------------------

    def _list(self, event: ListJobs) -> TransactionOutcome:
        found = (
            job
            for job in self.book.jobs.values()
            if (not event.states or job.state in event.states) and event.sink in ("", job.id.sink)
        )
        return Reply(JobsReply(tuple((job, len(self.book.attempts.get(job.id, ()))) for job in found)))

    def _describe(self, job_id: JobId) -> TransactionOutcome:
        job = self._known(job_id)
        names = self.book.attempts.get(job_id, ())
        return Reply(JobDescription(job, tuple(self._port.transactions[name] for name in names)))


def _runs_of_all(names: Iterable[str]) -> list[str]:
    """The runs that an operator's abort ends; none when there are so many that these are no runs."""
    runs = sorted(runs_of(names))
    return runs if len(runs) <= ABORTED_RUNS_MAX else []


def _decided(job: Job, *, is_yours: bool) -> DecisionReply:
    return DecisionReply(job.state, job.winners, is_yours, job.decided_ms, job.rows)
