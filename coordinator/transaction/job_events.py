"""The requests, timers, answers and effects of jobs (`jobs.py`): plain values."""

from __future__ import annotations

from dataclasses import dataclass

from .jobs import Job, JobId, JobState, Winner, transactional_id
from .state import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TransactionMetadata


@dataclass(slots=True, frozen=True)
class OpenAttempt:
    """A new producer for an attempt; opens the job, or renews it."""

    job: JobId
    attempt: str
    timeout_ms: int

    @property
    def transactional_id(self) -> str:
        return transactional_id(self.job, self.attempt)


@dataclass(slots=True, frozen=True)
class PrepareAttempt:
    """The attempt may win from now on.  timeout_ms: renews the job; 0 leaves its deadline."""

    job: JobId
    attempt: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int = 0

    @property
    def transactional_id(self) -> str:
        return transactional_id(self.job, self.attempt)


@dataclass(slots=True, frozen=True)
class RenewJob:
    """Moves the deadline of an open job."""

    job: JobId
    timeout_ms: int


@dataclass(slots=True, frozen=True)
class CommitJob:
    """The decision: these attempts commit, all others abort.  rows: of the winners together, as the driver
    counts."""

    job: JobId
    winners: tuple[Winner, ...]
    rows: int | None = None


@dataclass(slots=True, frozen=True)
class AbortJob:
    """The other decision; with a run, only while an attempt of that run belongs to the job."""

    job: JobId
    run: str | None = None


@dataclass(slots=True, frozen=True)
class TimeoutJob:
    """Timer: the job may have passed its deadline."""

    job: JobId


@dataclass(slots=True, frozen=True)
class CarryOutJob:
    """The shard's own: a decided job still has attempts."""

    job: JobId


@dataclass(slots=True, frozen=True)
class ForgetJobs:
    """Timer: these decided jobs may not be needed any more."""

    jobs: tuple[JobId, ...]


@dataclass(slots=True, frozen=True)
class ListJobs:
    """Filters are empty for all."""

    states: frozenset[JobState] = frozenset()
    sink: str = ""


@dataclass(slots=True, frozen=True)
class DescribeJob:
    job: JobId


JobEvent = (
    OpenAttempt
    | PrepareAttempt
    | RenewJob
    | CommitJob
    | AbortJob
    | TimeoutJob
    | CarryOutJob
    | ForgetJobs
    | ListJobs
    | DescribeJob
)


@dataclass(slots=True, frozen=True)
class AttemptReply:
    """The identity of the attempt's producer; none of a job that is committed already, whose rows it has when
    they are known."""

    state: JobState
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    rows: int | None = None


@dataclass(slots=True, frozen=True)
class PreparedReply:
    has_written: bool


@dataclass(slots=True, frozen=True)
class RenewedReply:
    state: JobState
    deadline_ms: int


@dataclass(slots=True, frozen=True)
class DecisionReply:
    """The first decision.  outcome None: the job is not known; OPEN: another run has it."""

    outcome: JobState | None
    winners: tuple[Winner, ...]
    is_yours: bool
    decided_ms: int
    rows: int | None = None


@dataclass(slots=True, frozen=True)
class JobDescription:
    """attempts: those that have not ended."""

    job: Job
    attempts: tuple[TransactionMetadata, ...]


@dataclass(slots=True, frozen=True)
class JobsReply:
    jobs: tuple[tuple[Job, int], ...]
    """Each with the number of its attempts that have not ended."""


JobReply = AttemptReply | PreparedReply | RenewedReply | DecisionReply | JobDescription | JobsReply


@dataclass(slots=True, frozen=True)
class ContinueJob:
    """Effect: the decision, or a part of what follows from it, is committed; submit `CarryOutJob`.  decided:
    the decision, when this effect is the one of its record."""

    job: JobId
    decided: JobState | None = None
