"""What a shard knows of its jobs: the records of jobs, and which attempts belong to them.

`replay` and `attempt_changed` alone change it; the shard calls both from its own `replay`.
"""

from __future__ import annotations

from collections.abc import Iterator

from .jobs import FIRST_BATCHES_MAX, BatchRows, Job, JobId, JobState, attempt_of


class JobBook:
    """attempts: of each job the transactional ids that have an entry, in the order in which they came.
    aborted: in the order of their decisions.  unfinished: the decided jobs that still have attempts.
    superseded: decided jobs of a sink, by number, below its last committed one."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, Job] = {}
        self.open: dict[JobId, None] = {}
        self.attempts: dict[JobId, dict[str, None]] = {}
        self.aborted: dict[JobId, None] = {}
        self.unfinished: dict[JobId, None] = {}
        self.last_committed: dict[str, JobId] = {}
        self.superseded: dict[JobId, None] = {}
        self._of_sink: dict[str, dict[JobId, None]] = {}

    def replay(self, job_id: JobId, job: Job | None) -> None:
        self.open.pop(job_id, None)
        self.aborted.pop(job_id, None)
        self.superseded.pop(job_id, None)
        if job is None:
            self.jobs.pop(job_id, None)
            if self.last_committed.get(job_id.sink) == job_id:
                del self.last_committed[job_id.sink]
            of_sink = self._of_sink.get(job_id.sink, {})
            of_sink.pop(job_id, None)
            if not of_sink:
                self._of_sink.pop(job_id.sink, None)
        else:
            self.jobs[job_id] = job
            self._of_sink.setdefault(job_id.sink, {})[job_id] = None
            if job.state is JobState.OPEN:
                self.open[job_id] = None
            elif job.state is JobState.COMMITTED:
                self._note_committed(job_id)
            else:
                self.aborted[job_id] = None
            self._note_superseded(job_id)
        self._note_unfinished(job_id)

    def _note_committed(self, job_id: JobId) -> None:
        number, last = job_id.number, self.last_committed.get(job_id.sink)
        if number is None or (last is not None and number <= (last.number or 0)):
            return
        self.last_committed[job_id.sink] = job_id
        for other in self._of_sink[job_id.sink]:
            self._note_superseded(other)

    def _note_superseded(self, job_id: JobId) -> None:
        if job_id not in self.open and self.is_superseded(job_id):
            self.superseded[job_id] = None

    def is_superseded(self, job_id: JobId) -> bool:
        """Whether a later batch of the sink is committed, so that this one was as well (streams commit one
        batch after the other), or never will be."""
        last, number = self.last_committed.get(job_id.sink), job_id.number
        return last is not None and number is not None and job_id != last and number <= (last.number or 0)

    def rows_of(self, job_id: JobId) -> int | None:
        """How many rows a batch was committed with; None when it is not, or no record says
        so."""
        job = self.jobs.get(job_id)
        if job is not None and job.state is JobState.COMMITTED:
            return job.rows
        if job_id.number is None or (last := self.last_committed.get(job_id.sink)) is None:
            return None
        if last.number == job_id.number:  # written otherwise, as `07`
            return self.jobs[last].rows
        batches = self.jobs[last].first_batches
        return next((rows for batch, rows in batches if int(batch) == job_id.number), None)

    def first_batches_below(self, job_id: JobId) -> tuple[BatchRows, ...]:
        """What the record of the sink's next batch remembers."""
        if job_id.number is None or (last_id := self.last_committed.get(job_id.sink)) is None:
            return ()
        last = self.jobs[last_id]
        if last.rows is None:
            return last.first_batches
        return (*last.first_batches, BatchRows(last_id.batch, last.rows))[:FIRST_BATCHES_MAX]

    def attempt_changed(self, transactional_id: str, *, exists: bool) -> None:
        """The shard's entry of a transactional id was written, or removed."""
        found = attempt_of(transactional_id)
        if found is None:
            return
        job_id, _ = found
        if exists:
            self.attempts.setdefault(job_id, {})[transactional_id] = None
        elif job_id in self.attempts:
            self.attempts[job_id].pop(transactional_id, None)
            if not self.attempts[job_id]:
                del self.attempts[job_id]
        self._note_unfinished(job_id)

    def _note_unfinished(self, job_id: JobId) -> None:
        job = self.jobs.get(job_id)
        if job is not None and job.state is not JobState.OPEN and job_id in self.attempts:
            self.unfinished[job_id] = None
        else:
            self.unfinished.pop(job_id, None)

    def is_open(self, transactional_id: str) -> bool:
        """Whether this is an attempt of an open job, or no attempt at all."""
        found = attempt_of(transactional_id)
        return found is None or found[0] in self.open

    def violations(self, transactional_ids: Iterator[str]) -> Iterator[str]:
        """What the indexes say against the entries."""
        attempts: dict[JobId, set[str]] = {}
        for name in transactional_ids:
            if (found := attempt_of(name)) is not None:
                attempts.setdefault(found[0], set()).add(name)
        if attempts != {job_id: set(names) for job_id, names in self.attempts.items()}:
            yield "the attempts of jobs disagree with the entries"
        for job_id in attempts.keys() - self.jobs.keys():
            yield f"job {job_id} has attempts, and is not known"
        decided = {job_id for job_id, job in self.jobs.items() if job.state is not JobState.OPEN}
        if set(self.open) != self.jobs.keys() - decided:
            yield "the index of open jobs disagrees with the jobs"
        if set(self.aborted) != {job_id for job_id in decided if self.jobs[job_id].state is JobState.ABORTED}:
            yield "the index of aborted jobs disagrees with the jobs"
        if set(self.unfinished) != decided & attempts.keys():
            yield "the index of unfinished jobs disagrees with the jobs"
        committed: dict[str, int] = {}
        for job_id, job in self.jobs.items():
            if job.state is JobState.COMMITTED and job_id.number is not None:
                committed[job_id.sink] = max(committed.get(job_id.sink, 0), job_id.number)
        if committed != {sink: job_id.number for sink, job_id in self.last_committed.items()}:
            yield "the last committed batches disagree with the jobs"
