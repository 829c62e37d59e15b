"""The progress of a running workload for the harness: acknowledged commits, disturbances and defects.

The checker uses the history, after the run; the harness uses this, during the run: when commits stop and
continue, and for which client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from ..checks.history import Partition

DISTURBANCES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Commit:
    """An acknowledged transaction; times are seconds of the run's monotonic clock."""

    process: str
    transactional_id: str
    partitions: frozenset[Partition]
    invoked: float
    acknowledged: float


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """An operation whose records were all acknowledged: a commit, or records without a transaction."""

    client: str
    """The client, over all its lives."""
    invoked: float
    acknowledged: float


@dataclass(slots=True)
class Progress:
    """The workload's processes write it on one event loop; any task on this loop may wait for a commit."""

    commits: list[Commit] = field(default_factory=list)
    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    disturbances: list[str] = field(default_factory=list)
    """What failed without being meant to; the first `DISTURBANCES_MAX` in words, the others in `disturbed`
    alone."""
    disturbed: int = 0
    zombies: int = 0
    """How often a producer was left behind that still wanted to commit when another had its transactional
    id."""
    defects: list[str] = field(default_factory=list)
    """Errors that no fault explains: the client library or the workload itself is broken."""
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def committed(self, commit: Commit) -> None:
        self.commits.append(commit)
        self.acknowledged(commit.process, commit.invoked, commit.acknowledged)
        self._news.set()

    def acknowledged(self, process: str, invoked: float, acknowledged: float) -> None:
        self.acknowledgements.append(Acknowledgement(process.partition("/")[0], invoked, acknowledged))

    def disturbance(self, sentence: str) -> None:
        self.disturbed += 1
        if len(self.disturbances) < DISTURBANCES_MAX:
            self.disturbances.append(sentence)

    def defect(self, sentence: str) -> None:
        self.defects.append(sentence)

    async def first(self, matches: Callable[[Commit], bool], timeout_s: float) -> Commit | None:
        """The first matching commit, past or future; None when there is none within `timeout_s`."""
        seen = 0
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    for commit in self.commits[seen:]:
                        seen += 1
                        if matches(commit):
                            return commit
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return None

    def longest_pause_s(self, begin: float, end: float) -> float:
        """The longest time between `begin` and `end` without an acknowledgement to any client."""
        return _longest_s([ack.acknowledged for ack in self.acknowledgements], begin, end)

    def longest_client_pause_s(self, begin: float, end: float) -> float:
        """The longest time without an acknowledgement to one client, of the clients that ever had one."""
        by_client: dict[str, list[float]] = {}
        for ack in self.acknowledgements:
            by_client.setdefault(ack.client, []).append(ack.acknowledged)
        return max((_longest_s(times, begin, end) for times in by_client.values()), default=end - begin)

    def between(self, begin: float, end: float) -> list[Acknowledgement]:
        """The operations that began and were acknowledged between two instants."""
        return [ack for ack in self.acknowledgements if begin <= ack.invoked and ack.acknowledged <= end]


def _longest_s(times: list[float], begin: float, end: float) -> float:
    edges = [begin, *sorted(time for time in times if begin < time < end), end]
    return max(after - before for before, after in pairwise(edges))
