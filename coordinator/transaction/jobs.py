"""Job transactions: one decision for the transactions of many producers (docs/semantics.md T31 to T38).

A *job* is one batch of a *sink*.  Each of its *attempts* is an ordinary transactional id,
`tidegate.job/<sink>/<batch>/<attempt>`, with a producer of its own.  All that belongs to a sink hashes to one
state partition (`coordination_key`), so that one shard has the job and its attempts, and the decision is one
record of its log.

The job's states:

    OPEN ------ commit, every winner is prepared ----> COMMITTED    for ever
      |                                                    ^
      +-- abort, or the deadline passes --> ABORTED        |  a commit of another driver changes nothing
              ^                                |
              +--------- opened again ---------+  once every former attempt is forgotten

A run of a job names its attempts `...-<run>`; its abort changes nothing of a job that only other runs have
attempts in.  What is left of the run, tasks that its engine has not stopped yet, opens no attempt afterwards.

A decided job is *carried out* attempt by attempt: winners commit, all others abort, and each is forgotten
once its markers are written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

from ...wire.errors import ErrorCode, KafkaError
from .state import NO_TIMEOUT_MS

PREFIX: Final = "tidegate.job/"
UNNAMED: Final = "unnamed-"
"""A batch that its engine names at random begins so: no other run ever asks for it."""
SINK_BYTES_MAX: Final = 200
BATCH_BYTES_MAX: Final = 64
ATTEMPT_BYTES_MAX: Final = 64
ATTEMPTS_MAX: Final = 10_000
"""Of one job."""
WINNERS_MAX: Final = 10_000
"""Their record stays below 1 MiB."""
OPEN_JOBS_MAX: Final = 1_000
JOBS_MAX: Final = 100_000
"""Of one shard, open or remembered."""
ABORTED_RUNS_MAX: Final = 8
"""That a job remembers."""
FIRST_BATCHES_MAX: Final = 16
"""Of a numbered sink that were counted: their rows are remembered for ever beside those of its last one."""
ROWS_MAX: Final = (1 << 63) - 1
"""Of one job."""
ATTEMPT_TIMEOUT_MS: Final = NO_TIMEOUT_MS
"""The job alone has a deadline."""


class JobState(IntEnum):
    """With the numbers of the record, and of `jobs.proto`."""

    OPEN = 1
    COMMITTED = 2
    ABORTED = 3


class JobId(NamedTuple):
    sink: str
    batch: str

    @property
    def number(self) -> int | None:
        """Of a numbered batch, else None."""
        return int(self.batch) if self.batch.isascii() and self.batch.isdecimal() else None

    def __str__(self) -> str:
        return f"{self.sink}/{self.batch}"


class Winner(NamedTuple):
    """An attempt under the identity that it was prepared with."""

    attempt: str
    producer_id: int
    producer_epoch: int


class BatchRows(NamedTuple):
    """How many rows a batch of digits was committed with."""

    batch: str
    rows: int


@dataclass(slots=True, frozen=True)
class Job:
    """deadline_ms: of an open job; decided_ms: of a decided one, else -1.  winners: ascending, of a committed
    one.  aborted_runs: the last ones that were aborted by name, or by an operator; they open no attempt.
    rows: of a committed one, as its driver counts; None when it did not say.  first_batches: of a committed
    one with a number, the rows of its sink's first batches below it."""

    id: JobId
    state: JobState
    deadline_ms: int
    decided_ms: int = -1
    winners: tuple[Winner, ...] = ()
    aborted_runs: tuple[str, ...] = ()
    rows: int | None = None
    first_batches: tuple[BatchRows, ...] = ()

    def has_aborted(self, attempt: str) -> bool:
        """Whether this is an attempt of a run that was aborted."""
        return any(is_of_run(attempt, run) for run in self.aborted_runs)

    def aborted(self, runs: Iterable[str]) -> Job:
        """The same one when it remembers all of them."""
        new = [run for run in dict.fromkeys(runs) if run not in self.aborted_runs]
        return replace(self, aborted_runs=(*self.aborted_runs, *new)[-ABORTED_RUNS_MAX:]) if new else self


def transactional_id(job: JobId, attempt: str) -> str:
    return f"{PREFIX}{job.sink}/{job.batch}/{attempt}"


def attempt_of(transactional_id: str) -> tuple[JobId, str] | None:
    """The job and the attempt that have this transactional id; None for an ordinary one."""
    if not transactional_id.startswith(PREFIX):
        return None
    of_job, _, attempt = transactional_id[len(PREFIX) :].rpartition("/")
    sink, _, batch = of_job.rpartition("/")
    return (JobId(sink, batch), attempt) if sink and batch and attempt else None


def is_of_run(attempt: str, run: str) -> bool:
    """Of an attempt, or of its transactional id."""
    return attempt.endswith(f"-{run}")


def runs_of(attempts: Iterable[str]) -> set[str]:
    """Of attempts, or of their transactional ids: what each one's name ends with after its last `-`."""
    names = (attempt.rpartition("/")[2].rpartition("-") for attempt in attempts)
    return {run for _, dash, run in names if dash and run}


def coordination_key(transactional_id: str) -> str:
    """What the state partition of a transactional id is hashed from: of an attempt its sink, of any other the
    id itself."""
    found = attempt_of(transactional_id)
    return transactional_id if found is None else PREFIX + found[0].sink


def check_job(job: JobId) -> None:
    """Raises INVALID_REQUEST for an id that no record may hold."""
    _check("sink", job.sink, SINK_BYTES_MAX, slashes=True)
    _check("batch", job.batch, BATCH_BYTES_MAX)


def check_attempt(attempt: str) -> None:
    _check("attempt", attempt, ATTEMPT_BYTES_MAX)


def check_run(run: str) -> None:
    _check("run", run, ATTEMPT_BYTES_MAX)


def check_rows(rows: int | None) -> None:
    """Raises INVALID_REQUEST for a number that no record may hold."""
    if rows is not None and not 0 <= rows <= ROWS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a job of {rows} rows: 0 to {ROWS_MAX} are possible")


def _check(what: str, text: str, bytes_max: int, *, slashes: bool = False) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    if not 0 < size <= bytes_max:
        message = f"the {what} of a job has {size} bytes: 1 to {bytes_max} are possible"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if not text.isprintable() or ("/" in text and not slashes):
        allowed = "printable characters" if slashes else "printable characters other than /"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the {what} {text!r} of a job: only {allowed}")
