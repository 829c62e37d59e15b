"""Job transactions at one coordinator: who wins, what is refused, what is remembered (docs/semantics.md T31
to T38)."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.controller.state.model import TWO_PHASE_COMMIT_LEVEL
from tidegate.coordinator.fields import RecordFormatError
from tidegate.coordinator.transaction import job_decisions, job_records, jobs, records
from tidegate.coordinator.transaction.events import (
    AddPartitions,
    EndTxn,
    InitProducerId,
    MarkersWritten,
    PrepareTransaction,
    SendMarkers,
    TransactionConfig,
)
from tidegate.coordinator.transaction.job_events import (
    AbortJob,
    AttemptReply,
    CarryOutJob,
    CommitJob,
    ContinueJob,
    DecisionReply,
    DescribeJob,
    ForgetJobs,
    JobsReply,
    ListJobs,
    OpenAttempt,
    PrepareAttempt,
    PreparedReply,
    RenewedReply,
    RenewJob,
    TimeoutJob,
)
from tidegate.coordinator.transaction.jobs import (
    PREFIX,
    ROWS_MAX,
    BatchRows,
    Job,
    JobId,
    JobState,
    Winner,
    attempt_of,
    check_attempt,
    check_job,
    coordination_key,
    transactional_id,
)
from tidegate.coordinator.transaction.shard import TransactionShard
from tidegate.coordinator.transaction.state import TransactionPartition, TransactionState
from tidegate.wire.errors import ErrorCode, KafkaError

from .coordinator_doubles import Driver, MemoryLog, code_of

JOB = JobId("sink", "7")
PLACE = TransactionPartition("flights", 0)
HOUR_MS = 3_600_000
NONE, STATE, UNKNOWN = ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


class Coordinator(Driver):
    """One transaction shard behind a runtime; `settle` carries out decisions and writes markers."""

    def __init__(self, log: MemoryLog | None = None, first_id: int = 100) -> None:
        self.ids: Any = count(first_id)
        self.level = TWO_PHASE_COMMIT_LEVEL
        self.carries_out = True
        self.sent: list[SendMarkers] = []
        self.config = TransactionConfig(job_batch_max=3)
        super().__init__(
            lambda partition, epoch: TransactionShard(
                self.config, lambda: next(self.ids), epoch, finalised_level=lambda: self.level
            ),
            log=log,
        )

    def settle(self) -> None:
        self.commit()
        while self.carries_out and self.effects:
            effects, self.effects[:] = [effect for _, _, effect in self.effects], []
            for effect in effects:
                if isinstance(effect, ContinueJob):
                    self.runtime.submit(0, CarryOutJob(effect.job), None)
                elif isinstance(effect, SendMarkers):
                    self.sent.append(effect)
                    self.runtime.submit(0, MarkersWritten(effect.identity), None)
            self.commit()

    def ask(self, event: Any, partition: int = 0) -> Any:
        reply = super().ask(event, partition)
        self.settle()
        return reply

    def wait(self, milliseconds: int) -> None:
        """Timers run, and what they ask for."""
        self.now_ms += milliseconds
        for _ in range(4):
            self.now_ms += 100
            self.runtime.tick()
            self.settle()

    def open(self, attempt: str, job: JobId = JOB) -> Winner:
        found = self.ask(OpenAttempt(job, attempt, 60_000))
        assert isinstance(found, AttemptReply), found
        return Winner(attempt, found.producer_id, found.producer_epoch)

    def write(self, winner: Winner, job: JobId = JOB) -> Any:
        name = transactional_id(job, winner.attempt)
        return self.ask(AddPartitions(name, winner.producer_id, winner.producer_epoch, (PLACE,), 2))

    def prepare(self, winner: Winner, job: JobId = JOB) -> Any:
        return self.ask(PrepareAttempt(job, *winner))

    def prepared(self, attempt: str, job: JobId = JOB) -> Winner:
        winner = self.open(attempt, job)
        self.write(winner, job)
        assert self.prepare(winner, job) == PreparedReply(True)
        return winner

    def decide(self, *winners: Winner, job: JobId = JOB, rows: int | None = None) -> Any:
        return self.ask(CommitJob(job, winners, rows))

    @property
    def shard(self) -> TransactionShard:
        (_, _, shard), *_ = self.runtime.shards()
        assert isinstance(shard, TransactionShard)
        return shard

    def fail_over(self) -> Coordinator:
        after = Coordinator(log=self.log, first_id=next(self.ids))
        after.now_ms = self.now_ms
        after.load(epoch=(self.runtime.leader_epoch(0) or 0) + 1)
        after.settle()
        return after


@pytest.fixture
def coordinator() -> Coordinator:
    made = Coordinator()
    made.load()
    return made


def outcome(reply: Any) -> tuple[JobState | None, bool]:
    assert isinstance(reply, DecisionReply), reply
    return reply.outcome, reply.is_yours


def test_winners_commit_and_every_other_attempt_aborts(coordinator: Coordinator) -> None:
    first, second, loser = (coordinator.prepared(name) for name in "abc")
    writing, idle = coordinator.open("d"), coordinator.open("e")
    coordinator.write(writing)
    assert coordinator.prepare(idle) == PreparedReply(False)
    reply = coordinator.decide(second, first)
    assert (reply.outcome, reply.winners, reply.is_yours) == (JobState.COMMITTED, (first, second), True)
    ended = {send.producer_id: send.commit for send in coordinator.sent}
    assert ended == {
        first.producer_id: True, second.producer_id: True, loser.producer_id: False,
        writing.producer_id: False,
    }  # fmt: skip
    coordinator.wait(0)
    assert coordinator.shard.transactions == {}, "what has ended is forgotten"
    assert list(coordinator.shard.jobs.book.jobs) == [JOB]


def test_the_decision_is_one_record_and_the_rest_follows_from_it(coordinator: Coordinator) -> None:
    winners = [coordinator.prepared(f"w{number}") for number in range(5)]
    coordinator.prepared("loser")
    coordinator.carries_out = False
    before = coordinator.log.end[0]
    assert outcome(coordinator.decide(*winners)) == (JobState.COMMITTED, True)
    assert coordinator.log.end[0] == before + 1
    decided = [effect.decided for _, _, effect in coordinator.effects if isinstance(effect, ContinueJob)]
    assert decided == [JobState.COMMITTED], "what counts decisions sees each once"
    after = coordinator.fail_over()
    assert sorted(send.commit for send in after.sent) == [False, *5 * [True]]
    assert after.shard.decided == {}
    assert outcome(after.decide(*winners)) == (JobState.COMMITTED, True), "repeated"


def test_nothing_ends_an_attempt_between_the_decision_and_what_follows(coordinator: Coordinator) -> None:
    winner, loser = coordinator.prepared("a"), coordinator.open("b")
    coordinator.write(loser)
    coordinator.carries_out = False
    coordinator.decide(winner)
    for each in (winner, loser):
        name, identity = transactional_id(JOB, each.attempt), each[1:]
        for event in (
            EndTxn(name, *identity, False, 2), EndTxn(name, *identity, True, 2), InitProducerId(name, 1_000),
            AddPartitions(name, *identity, (PLACE,), 2), PrepareTransaction(name, *identity),
            PrepareAttempt(JOB, *each),
        ):  # fmt: skip
            assert code_of(coordinator.ask(event)) is not NONE, event
    assert coordinator.ask(OpenAttempt(JOB, "c", 1_000)) == AttemptReply(JobState.COMMITTED)
    coordinator.now_ms += 100 * HOUR_MS
    states = {entry.state for entry in coordinator.shard.transactions.values()}
    assert states == {TransactionState.PREPARED, TransactionState.ONGOING}


def test_a_winner_that_is_not_prepared_under_its_identity_is_refused(coordinator: Coordinator) -> None:
    good, writing = coordinator.prepared("a"), coordinator.open("b")
    coordinator.write(writing)
    for bad in (
        writing, good._replace(producer_epoch=5), good._replace(producer_id=9), good._replace(attempt="x")
    ):  # fmt: skip
        assert code_of(coordinator.decide(good, bad)) in (STATE, ErrorCode.INVALID_REQUEST), bad
    assert code_of(coordinator.decide(good, good._replace(producer_epoch=5))) is ErrorCode.INVALID_REQUEST
    assert coordinator.shard.jobs.book.jobs[JOB].state is JobState.OPEN, "the driver may still decide"
    assert outcome(coordinator.decide(good, coordinator.open("idle"))) == (JobState.COMMITTED, True)


def test_the_first_decision_is_the_answer_to_every_later_one(coordinator: Coordinator) -> None:
    first, second = coordinator.prepared("a"), coordinator.prepared("b")
    assert outcome(coordinator.decide(first)) == (JobState.COMMITTED, True)
    for later in (coordinator, coordinator.fail_over()):
        contradicting = later.decide(second)
        assert (contradicting.winners, contradicting.is_yours) == ((first,), False)
        assert outcome(later.ask(AbortJob(JOB))) == (JobState.COMMITTED, False)
        assert outcome(later.decide(first)) == (JobState.COMMITTED, True)


def test_an_aborted_job_is_never_committed_and_may_run_again(coordinator: Coordinator) -> None:
    former = coordinator.prepared("a")
    assert outcome(coordinator.ask(AbortJob(JOB))) == (JobState.ABORTED, True)
    assert outcome(coordinator.ask(AbortJob(JOB))) == (JobState.ABORTED, True)
    assert code_of(coordinator.decide(former)) is STATE
    coordinator.wait(0)
    again = coordinator.prepared("a")
    assert code_of(coordinator.decide(former)) is STATE, "a zombie that knows the same name"
    assert outcome(coordinator.decide(again)) == (JobState.COMMITTED, True)


def test_the_abort_of_a_run_that_has_lost_leaves_the_job_to_the_present_run(
    coordinator: Coordinator,
) -> None:
    """Run 1 passes its deadline and run 2 opens the job again; then the commit of run 1 is refused, and its
    engine aborts."""
    old = coordinator.prepared("0-1-run1")
    coordinator.wait(70_000)
    new = coordinator.prepared("0-1-run2")
    assert code_of(coordinator.decide(old)) is STATE
    for stranger in ("run1", "un2", "0-1-run2"):
        assert outcome(coordinator.ask(AbortJob(JOB, stranger))) == (JobState.OPEN, False)
    assert outcome(coordinator.decide(new)) == (JobState.COMMITTED, True)
    assert outcome(coordinator.ask(AbortJob(JOB, "run1"))) == (JobState.COMMITTED, False)


@pytest.mark.parametrize("run", ["run2", None])
def test_a_run_aborts_its_own_job_and_an_operator_any(coordinator: Coordinator, run: str | None) -> None:
    coordinator.prepared("0-1-run1")
    coordinator.open("1-2-run2")
    assert outcome(coordinator.ask(AbortJob(JOB, run))) == (JobState.ABORTED, True)
    assert outcome(coordinator.ask(AbortJob(JOB, "run3"))) == (JobState.ABORTED, True)


@pytest.mark.parametrize("when", ["before it opens", "while it is open", "after its deadline"])
def test_a_task_that_comes_after_its_run_is_aborted_does_not_open_the_job(
    coordinator: Coordinator, when: str
) -> None:
    """The engine of the run decides nothing more: readers would wait for the deadline."""
    if when != "before it opens":
        coordinator.prepared("0-1-run1")
    if when == "after its deadline":
        coordinator.wait(70_000)
    for _ in range(2):
        assert outcome(coordinator.ask(AbortJob(JOB, "run1"))) == (JobState.ABORTED, True)
    for later in (coordinator, coordinator.fail_over()):
        assert code_of(later.ask(OpenAttempt(JOB, "1-2-run1", 60_000))) is STATE
        assert not later.shard.jobs.book.open
    later = coordinator.fail_over()
    new = later.prepared("0-1-run2")
    assert code_of(later.ask(OpenAttempt(JOB, "2-3-run1", 60_000))) is STATE, "of another run's job"
    assert outcome(later.decide(new)) == (JobState.COMMITTED, True)


def test_an_abort_is_remembered_while_another_run_has_the_job(coordinator: Coordinator) -> None:
    other = coordinator.prepared("0-0-run2")
    assert outcome(coordinator.ask(AbortJob(JOB, "run1"))) == (JobState.OPEN, False)
    assert code_of(coordinator.ask(OpenAttempt(JOB, "1-1-run1", 60_000))) is STATE
    assert outcome(coordinator.decide(other)) == (JobState.COMMITTED, True)


def test_an_abort_is_counted_once(coordinator: Coordinator) -> None:
    coordinator.carries_out = False
    coordinator.prepared("0-0-run1")
    for run in ("run1", "run2", None):
        coordinator.ask(AbortJob(JOB, run))
    coordinator.ask(AbortJob(JobId("sink", "8"), "run3"))
    decisions = [each.decided for *_, each in coordinator.effects if isinstance(each, ContinueJob)]
    assert [each for each in decisions if each] == [JobState.ABORTED]


def test_where_jobs_have_no_room_an_aborted_one_is_forgotten(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no client keeps others out by jobs that come to nothing."""
    monkeypatch.setattr(job_decisions, "JOBS_MAX", 3)
    kept, first, second, new = (JobId("sink", batch) for batch in ("kept", "a", "b", "new"))
    committed(coordinator, kept)
    for job in (first, second):
        coordinator.ask(AbortJob(job, "run1"))
    coordinator.open("0-0-run2", new)
    assert set(coordinator.shard.jobs.book.jobs) == {kept, second, new}
    coordinator.ask(AbortJob(JobId("sink", "c"), "run1"))
    assert set(coordinator.fail_over().shard.jobs.book.jobs) == {kept, new, JobId("sink", "c")}


def test_an_aborted_job_with_attempts_is_not_forgotten_for_room(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_decisions, "JOBS_MAX", 1)
    coordinator.prepared("0-0-run1")
    coordinator.carries_out = False
    coordinator.ask(AbortJob(JOB, "run1"))
    refused = coordinator.ask(OpenAttempt(JobId("sink", "new"), "a", 1_000))
    assert code_of(refused) is ErrorCode.POLICY_VIOLATION
    assert outcome(coordinator.ask(AbortJob(JobId("sink", "new"), "run1"))) == (None, False)


def test_so_many_runs_of_one_job_are_no_runs(coordinator: Coordinator) -> None:
    """Attempts that are numbered at their end."""
    names = [f"run1-{number}" for number in range(jobs.ABORTED_RUNS_MAX + 1)]
    for name in names:
        coordinator.open(name)
    coordinator.ask(AbortJob(JOB))
    coordinator.wait(0)
    for name in names:
        coordinator.open(name.replace("run1", "run2"))


def test_an_operators_abort_ends_the_runs_that_are_there(coordinator: Coordinator) -> None:
    """Their engines try their tasks again, and would open the job anew."""
    coordinator.prepared("0-1-run1")
    coordinator.open("1-2-run2")
    coordinator.open("nameless")
    coordinator.ask(AbortJob(JOB))
    for name in ("0-9-run1", "1-9-run2"):
        assert code_of(coordinator.ask(OpenAttempt(JOB, name, 60_000))) is STATE
    coordinator.wait(0)
    for name in ("0-9-run3", "nameless"):
        coordinator.open(name)


def test_the_last_runs_that_were_aborted_are_remembered(coordinator: Coordinator) -> None:
    """Their engines may abort in any order, each one more than once."""
    many = jobs.ABORTED_RUNS_MAX + 1
    for run in [*range(many), many - 2]:
        coordinator.ask(AbortJob(JOB, f"run{run}"))
    for run in range(1, many):
        assert code_of(coordinator.ask(OpenAttempt(JOB, f"0-1-run{run}", 60_000))) is STATE
    coordinator.open("0-1-run0")


def test_an_abort_of_what_was_never_opened_waits_for_the_upgrade_and_is_bounded(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_decisions, "JOBS_MAX", 0)
    assert outcome(coordinator.ask(AbortJob(JOB, "run1"))) == (None, False)
    monkeypatch.undo()
    coordinator.level = TWO_PHASE_COMMIT_LEVEL - 1
    assert code_of(coordinator.ask(AbortJob(JOB, "run1"))) is ErrorCode.UNSUPPORTED_VERSION
    assert coordinator.shard.jobs.book.jobs == {}


def test_a_job_that_was_aborted_opens_again_only_without_its_former_attempts(
    coordinator: Coordinator,
) -> None:
    coordinator.prepared("a")
    coordinator.carries_out = False
    coordinator.ask(AbortJob(JOB))
    assert code_of(coordinator.ask(OpenAttempt(JOB, "b", 1_000))) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_what_was_never_opened_is_not_decided(coordinator: Coordinator) -> None:
    assert code_of(coordinator.decide()) is UNKNOWN
    assert outcome(coordinator.ask(AbortJob(JOB))) == (None, False)
    assert code_of(coordinator.ask(RenewJob(JOB, 1_000))) is UNKNOWN
    assert code_of(coordinator.ask(DescribeJob(JOB))) is UNKNOWN
    assert coordinator.shard.jobs.book.jobs == {}


def test_a_job_whose_deadline_passes_is_aborted_as_a_whole(coordinator: Coordinator) -> None:
    winner = coordinator.prepared("a")
    coordinator.wait(50_000)
    renewed = coordinator.ask(RenewJob(JOB, 60_000))
    assert isinstance(renewed, RenewedReply)
    assert renewed.deadline_ms >= coordinator.now_ms + 60_000
    coordinator.wait(55_000)
    assert coordinator.shard.jobs.book.open
    coordinator.wait(20_000)
    assert code_of(coordinator.decide(winner)) is STATE
    assert coordinator.ask(RenewJob(JOB, 60_000)) == RenewedReply(JobState.ABORTED, -1)
    assert [send.commit for send in coordinator.sent] == [False]


def test_what_a_timer_asks_for_is_judged_again_when_it_comes(coordinator: Coordinator) -> None:
    winner = coordinator.prepared("a")
    for early in (TimeoutJob(JOB), CarryOutJob(JOB)):
        coordinator.ask(early)
        assert coordinator.shard.jobs.book.jobs[JOB].state is JobState.OPEN
    coordinator.now_ms += 1000 * HOUR_MS
    coordinator.ask(ForgetJobs((JOB,)))
    assert coordinator.shard.jobs.book.jobs[JOB].state is JobState.OPEN
    assert outcome(coordinator.decide(winner)) == (JobState.COMMITTED, True)
    coordinator.ask(TimeoutJob(JOB))
    assert coordinator.shard.jobs.book.jobs[JOB].state is JobState.COMMITTED


def test_an_aborted_job_is_not_even_committed_without_winners(coordinator: Coordinator) -> None:
    coordinator.prepared("a")
    coordinator.ask(AbortJob(JOB))
    assert code_of(coordinator.decide()) is STATE


def test_a_prepared_attempt_has_no_timeout_of_its_own(coordinator: Coordinator) -> None:
    winner = coordinator.prepared("a")
    for _ in range(100):
        coordinator.wait(HOUR_MS // 100)
        assert coordinator.ask(RenewJob(JOB, 800_000))
    assert outcome(coordinator.decide(winner)) == (JobState.COMMITTED, True)


def test_an_election_gives_the_tasks_time_to_find_the_coordinator(coordinator: Coordinator) -> None:
    winner = coordinator.prepared("a")
    coordinator.now_ms += HOUR_MS
    after = coordinator.fail_over()
    after.wait(after.config.job_failover_grace_ms // 2)
    assert outcome(after.decide(winner)) == (JobState.COMMITTED, True)


def test_renewals_close_to_each_other_write_one_record(coordinator: Coordinator) -> None:
    coordinator.open("a")
    before = coordinator.log.end[0]
    for _ in range(20):
        coordinator.now_ms += 300
        coordinator.ask(RenewJob(JOB, 60_000))
    assert coordinator.log.end[0] == before


# --- what is remembered -------------------------------------------------------------------------------------


def committed(coordinator: Coordinator, job: JobId, rows: int | None = None) -> None:
    decided = coordinator.decide(coordinator.prepared("a", job), job=job, rows=rows)
    assert outcome(decided) == (JobState.COMMITTED, True)
    assert decided.rows == rows
    coordinator.wait(0)


def rows_told(coordinator: Coordinator, job: JobId) -> int | None:
    """To a task of a later run."""
    found = coordinator.ask(OpenAttempt(job, "later", 1_000))
    assert isinstance(found, AttemptReply), found
    assert (found.state, found.producer_id) == (JobState.COMMITTED, -1)
    rows: int | None = found.rows
    return rows


def test_later_runs_are_told_the_rows_of_the_first_decision(coordinator: Coordinator) -> None:
    named = JobId("sink", "day")
    committed(coordinator, named, 7)
    winner = Winner("another", 1, 1)
    for later in (coordinator, coordinator.fail_over()):
        assert rows_told(later, named) == 7
        again = later.decide(winner, job=named, rows=8)
        assert (again.is_yours, again.rows) == (False, 7)
        assert later.ask(DescribeJob(named)).job.rows == 7
    assert code_of(coordinator.decide(winner, job=named, rows=-1)) is ErrorCode.INVALID_REQUEST
    assert code_of(coordinator.decide(winner, job=named, rows=1 << 63)) is ErrorCode.INVALID_REQUEST


def test_a_numbered_sink_remembers_the_rows_of_its_first_batches_and_of_its_last(
    coordinator: Coordinator,
) -> None:
    """A stream that begins again at 0 with other micro-batches is found at the first one that differs."""
    batches = range(0, 60, 3)  # those without rows commit nothing
    for number in batches:
        committed(coordinator, JobId("sink", str(number)), 100 + number)
    other = JobId("other", "0")
    committed(coordinator, other)
    for later in (coordinator, coordinator.fail_over()):
        told = {number: rows_told(later, JobId("sink", str(number))) for number in range(58)}
        known = [*batches[: jobs.FIRST_BATCHES_MAX], batches[-1]]
        assert told == {number: 100 + number if number in known else None for number in range(58)}
        assert [rows_told(later, JobId("sink", batch)) for batch in ("003", "057")] == [103, 157]
        assert rows_told(later, other) is None
    assert list(coordinator.shard.jobs.book.jobs) == [JobId("sink", "57"), other]


def test_a_batch_whose_driver_did_not_count_leaves_what_is_known(coordinator: Coordinator) -> None:
    for number, rows in enumerate((5, None, 7)):
        committed(coordinator, JobId("sink", str(number)), rows)
    assert [rows_told(coordinator, JobId("sink", str(number))) for number in range(3)] == [5, None, 7]
    committed(coordinator, JobId("sink", "day"), 9)
    assert coordinator.ask(DescribeJob(JobId("sink", "day"))).job.first_batches == ()


def test_the_last_batch_of_a_stream_is_remembered_for_ever_and_stands_for_those_before(
    coordinator: Coordinator,
) -> None:
    for batch in ("8", "9", "10"):
        committed(coordinator, JobId("sink", batch))
    coordinator.wait(0)
    assert list(coordinator.shard.jobs.book.jobs) == [JobId("sink", "10")]
    coordinator.wait(10 * coordinator.config.job_retention_ms)
    for later in (coordinator, coordinator.fail_over()):
        for batch in ("0", "9", "10"):
            opened = later.ask(OpenAttempt(JobId("sink", batch), "b", 1_000))
            assert opened == AttemptReply(JobState.COMMITTED)
        assert outcome(later.ask(AbortJob(JobId("sink", "9")))) == (JobState.COMMITTED, False)
        assert code_of(later.decide(job=JobId("sink", "9"))) is UNKNOWN
    assert later.open("a", JobId("sink", "11"))
    assert later.open("a", JobId("other", "0"))


def test_a_sink_with_numbered_batches_takes_one_place_of_a_shards_jobs(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_decisions, "JOBS_MAX", 3)
    for batch in range(10):
        committed(coordinator, JobId("sink", str(batch)))
        coordinator.wait(6_000)
    assert list(coordinator.shard.jobs.book.jobs) == [JobId("sink", "9")]


def test_other_jobs_are_remembered_by_age(coordinator: Coordinator) -> None:
    named = JobId("backfill", "one")
    committed(coordinator, named)
    assert coordinator.ask(OpenAttempt(named, "b", 1_000)) == AttemptReply(JobState.COMMITTED)
    coordinator.wait(coordinator.config.job_retention_ms + HOUR_MS)
    assert coordinator.shard.jobs.book.jobs == {}


@pytest.mark.parametrize(("retention_ms", "remembered_ms"), [(24 * HOUR_MS, HOUR_MS), (60_000, 60_000)])
def test_a_batch_that_no_second_run_asks_for_is_forgotten_after_an_hour(
    retention_ms: int, remembered_ms: int
) -> None:
    made = Coordinator()
    made.config = TransactionConfig(job_retention_ms=retention_ms, expiration_scan_interval_ms=100)
    made.load()
    unnamed = JobId("sink", "unnamed-7f")
    committed(made, unnamed)
    made.wait(remembered_ms - 5_000)
    assert made.ask(OpenAttempt(unnamed, "b", 1_000)) == AttemptReply(JobState.COMMITTED)
    named = JobId("sink", "day")
    committed(made, named)
    made.wait(10_000)
    assert list(made.shard.jobs.book.jobs) == [named]


def test_an_aborted_job_is_remembered_for_as_long_as_its_tasks_may_come() -> None:
    made = Coordinator()
    made.config = TransactionConfig(expiration_scan_interval_ms=100)
    made.load()
    made.ask(AbortJob(JOB, "run1"))
    made.wait(HOUR_MS - 5_000)
    assert code_of(made.ask(OpenAttempt(JOB, "0-0-run1", 1_000))) is STATE
    made.wait(10_000)
    assert made.shard.jobs.book.jobs == {}


def test_a_coordinator_whose_clock_is_ahead_forgets_no_decision_that_a_driver_may_ask_for(
    coordinator: Coordinator,
) -> None:
    """Its predecessor has died before it answered."""
    unnamed = JobId("sink", "unnamed-7f")
    winner = coordinator.prepared("a", unnamed)
    coordinator.decide(winner, job=unnamed)
    coordinator.now_ms += 2 * HOUR_MS
    after = coordinator.fail_over()
    after.wait(0)
    assert outcome(after.decide(winner, job=unnamed)) == (JobState.COMMITTED, True)
    after.wait(2 * HOUR_MS)
    assert after.shard.jobs.book.jobs == {}


def test_a_list_and_a_description_say_what_there_is(coordinator: Coordinator) -> None:
    committed(coordinator, JOB)
    coordinator.prepared("a", JobId("sink", "8"))
    listed = coordinator.ask(ListJobs())
    assert isinstance(listed, JobsReply)
    assert [(job.id.batch, job.state.name, attempts) for job, attempts in listed.jobs] == [
        ("7", "COMMITTED", 0), ("8", "OPEN", 1)
    ]  # fmt: skip
    assert len(coordinator.ask(ListJobs(frozenset({JobState.OPEN}))).jobs) == 1
    assert coordinator.ask(ListJobs(sink="other")).jobs == ()
    (attempt,) = coordinator.ask(DescribeJob(JobId("sink", "8"))).attempts
    assert attempt.state is TransactionState.PREPARED


# --- bounds and bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sink", "batch", "attempt"),
    [
        ("", "1", "a"), ("s", "", "a"), ("s", "1", ""), ("s", "1/2", "a"), ("s", "1", "a/b"),
        ("s" * 201, "1", "a"), ("s", "1" * 65, "a"), ("s", "1", "a" * 65), ("s\n", "1", "a"),
        ("s", "1", "\ud800"),
    ],
)  # fmt: skip
def test_an_id_that_no_record_may_hold_is_refused(
    coordinator: Coordinator, sink: str, batch: str, attempt: str
) -> None:
    reply = coordinator.ask(OpenAttempt(JobId(sink, batch), attempt, 1_000))
    assert code_of(reply) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_deadline_out_of_bounds_is_refused(coordinator: Coordinator, timeout_ms: int) -> None:
    reply = coordinator.ask(OpenAttempt(JOB, "a", timeout_ms))
    assert code_of(reply) is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_the_number_of_everything_is_bounded(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in (("ATTEMPTS_MAX", 2), ("OPEN_JOBS_MAX", 2), ("JOBS_MAX", 3), ("WINNERS_MAX", 1)):
        monkeypatch.setattr(job_decisions, name, most)
    winners = [coordinator.prepared("a"), coordinator.prepared("b")]
    assert code_of(coordinator.ask(OpenAttempt(JOB, "c", 1_000))) is ErrorCode.POLICY_VIOLATION
    assert code_of(coordinator.decide(*winners)) is ErrorCode.INVALID_REQUEST
    coordinator.open("a", JobId("sink", "x"))
    assert code_of(coordinator.ask(OpenAttempt(JobId("s", "y"), "a", 1_000))) is ErrorCode.POLICY_VIOLATION
    coordinator.decide(job=JobId("sink", "x"))
    coordinator.open("a", JobId("sink", "y"))
    coordinator.decide(job=JobId("sink", "y"))
    assert code_of(coordinator.ask(OpenAttempt(JobId("s", "z"), "a", 1_000))) is ErrorCode.POLICY_VIOLATION


def test_a_prepared_attempt_is_not_opened_again(coordinator: Coordinator) -> None:
    """A late copy of OpenAttempt aborts nothing; over what is only written it fences, as a new instance
    does."""
    winner = coordinator.prepared("a")
    assert code_of(coordinator.ask(OpenAttempt(JOB, "a", 1_000))) is STATE
    writing = coordinator.open("b")
    coordinator.write(writing)
    assert code_of(coordinator.ask(OpenAttempt(JOB, "b", 1_000))) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.open("b").producer_epoch > writing.producer_epoch
    assert outcome(coordinator.decide(winner)) == (JobState.COMMITTED, True)


def test_kafkas_requests_neither_make_nor_commit_an_attempt(coordinator: Coordinator) -> None:
    name = transactional_id(JOB, "a")
    assert code_of(coordinator.ask(InitProducerId(name, 1_000))) is ErrorCode.INVALID_REQUEST
    winner = coordinator.prepared("a")
    assert code_of(coordinator.ask(EndTxn(name, *winner[1:], True, 2))) is ErrorCode.INVALID_REQUEST
    assert code_of(coordinator.ask(EndTxn(name, *winner[1:], False, 2))) is NONE, "its owner gives it up"
    assert code_of(coordinator.decide(winner)) is STATE


def test_jobs_wait_for_the_end_of_the_upgrade(coordinator: Coordinator) -> None:
    coordinator.level = TWO_PHASE_COMMIT_LEVEL - 1
    assert code_of(coordinator.ask(OpenAttempt(JOB, "a", 1_000))) is ErrorCode.UNSUPPORTED_VERSION
    assert coordinator.shard.transactions == {}


# --- names and records --------------------------------------------------------------------------------------

parts = st.text(
    st.characters(blacklist_characters="/", blacklist_categories=["C", "Z"]), min_size=1, max_size=15
)
sinks = st.lists(parts, min_size=1, max_size=3).map("/".join)
job_ids = st.builds(JobId, sinks, parts)
winners = st.builds(Winner, parts, st.integers(0, 2**63 - 1), st.integers(0, 32_767))


@given(job_ids, parts)
def test_an_attempts_transactional_id_names_its_job_and_hashes_by_its_sink(job: JobId, attempt: str) -> None:
    check_job(job)
    check_attempt(attempt)
    name = transactional_id(job, attempt)
    assert attempt_of(name) == (job, attempt)
    assert coordination_key(name) == PREFIX + job.sink
    assert len(records.encode_key(name)) < 1_000


def test_an_id_with_another_prefix_names_no_job() -> None:
    assert attempt_of("x" * len(PREFIX) + "sink/7/a") is None


@pytest.mark.parametrize("name", ["orders", "tidegate.job/", "tidegate.job/a", "tidegate.job/a/b", "x/y/z/w"])
def test_any_other_id_is_its_own_key(name: str) -> None:
    assert attempt_of(name) is None
    assert coordination_key(name) == name


@given(
    st.builds(
        Job, job_ids, st.sampled_from(JobState), st.integers(0, 2**60), st.integers(-1, 2**60),
        st.lists(winners, max_size=4).map(tuple), st.lists(st.text(max_size=4), max_size=3).map(tuple),
        st.none() | st.integers(0, ROWS_MAX),
        st.lists(
            st.builds(BatchRows, st.text("0123456789", min_size=1, max_size=4), st.integers(0, ROWS_MAX)),
            max_size=3,
        ).map(tuple),
    )
)  # fmt: skip
def test_a_job_survives_the_log(job: Job) -> None:
    record = job_records.record_of(job)
    assert job_records.decode_key(record.key) == job.id
    assert records.decode_key(record.key) is None, "an older coordinator passes it over"
    assert record.value is not None
    assert job_records.decode_value(job.id, record.value) == job
    for cut in range(len(record.value)):
        with pytest.raises(RecordFormatError):
            job_records.decode_value(job.id, record.value[:cut])


def test_a_record_of_a_later_release_stops_the_load() -> None:
    value = job_records.record_of(Job(JOB, JobState.OPEN, 5)).value or b""
    for damaged in (b"\x00\x01" + value[2:], value[:2] + b"\x07" + value[3:]):
        with pytest.raises(RecordFormatError, match="unknown"):
            job_records.decode_value(JOB, damaged)
    for runs in (b"\xff", b"\x02\x02\xff", b"\x02\x02r.", b""):
        with pytest.raises(RecordFormatError):
            job_records.decode_value(JOB, value[:-1] + b"\x01\x00" + bytes([len(runs)]) + runs)
    for tag, data in ((1, 7 * b"\0"), (1, 9 * b"\0"), (2, b""), (2, b"\x02\x027"), (2, b"\x01\x01")):
        with pytest.raises(RecordFormatError):
            job_records.decode_value(JOB, value[:-1] + bytes([1, tag, len(data)]) + data)
    assert job_records.decode_key(records.encode_key("t")) is None


def test_the_largest_decision_fits_into_a_batch() -> None:
    size = jobs.ATTEMPT_BYTES_MAX - 5
    many = tuple(Winner(f"{number:05}" + size * "x", 2**62, 9) for number in range(jobs.WINNERS_MAX))
    first = jobs.FIRST_BATCHES_MAX * (BatchRows(jobs.BATCH_BYTES_MAX * "9", ROWS_MAX),)
    job = Job(JOB, JobState.COMMITTED, 1, 2, many, rows=ROWS_MAX, first_batches=first)
    assert len(job_records.encode_value(job)) < (1 << 20) - 4096


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(KafkaError, match="the batch of a job has 65 bytes: 1 to 64 are possible"):
        check_job(JobId("s", "x" * 65))
