"""The metadata quorum, reduced to what it promises: one committed log, one active controller a term,
proposals that may get lost.

How the quorum keeps these promises is the Raft simulator's business.  Here the promises hold by construction,
with all that they leave open: a proposal takes time, its outcome may stay unknown to the controller that made
it, and a deposed controller may believe for up to `LEADER_FALLBACK_S` that it is active, answer heartbeats
and serve the log as it had it.

`VoterLog` stands where a controller has its `MetadataLog`; everything above it is the product's:
`ControllerLeadership`, `ControllerService`, `ControllerPlanner`, `ClusterState`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import cast

from ....controller.planning.planner import ControllerConfig
from ....controller.raft.contract import RaftTimings
from ....controller.service.controller_leadership import ControllerLeadership
from ....controller.service.metadata_log import LogEntry, MetadataLog, NotController, ProposalUnknown
from ....controller.service.service import ControllerService
from ....controller.state.cluster_state import FIRST_INDEX, ClusterState
from ....controller.state.model import ApplyResult
from ....runtime.clock import Clock
from .virtual_loop import Process, VirtualLoop

LEADER_FALLBACK_S = RaftTimings().leader_fallback_s
ELECTION_S_MIN = RaftTimings().election_s_min


class VoterLog:
    """The metadata log as one controller sees it."""

    def __init__(self, quorum: Quorum, node_id: int, process: Process) -> None:
        self.node_id = node_id
        self.process = process
        self.term = 0
        self.state = ClusterState()
        self._active = False
        self._slept = False
        self._quorum = quorum
        self._listener: Callable[[bool], None] = lambda _active: None
        self._applied = asyncio.Event()
        self._submitted: asyncio.Task[ApplyResult] | None = None

    @property
    def is_active(self) -> bool:
        """Not when it slept so long that it must have lost its majority, even before it learns of the
        loss."""
        return self._active and not self._slept

    @property
    def leader_id(self) -> int:
        return self.node_id if self.is_active else self._quorum.leader_id

    @property
    def is_leading(self) -> bool:
        """Whether it believes that it leads."""
        return self._active

    @property
    def applied_index(self) -> int:
        return self.state.index

    def on_role_change(self, listener: Callable[[bool], None]) -> None:
        self._listener = listener

    def set_active(self, active: bool) -> None:
        self._active, self._slept = active, False
        self.process.run(self._listener, active)

    def wake(self, slept_s: float) -> None:
        self._slept = self._active and slept_s > LEADER_FALLBACK_S

    def catch_up(self) -> None:
        for entry in self._quorum.entries[self.state.index - FIRST_INDEX :]:
            self.apply(entry)

    def apply(self, entry: LogEntry) -> ApplyResult:
        result = self.state.apply(entry.index, entry.term, entry.command)
        applied, self._applied = self._applied, asyncio.Event()
        applied.set()
        return result

    def propose(self, command: bytes) -> asyncio.Future[ApplyResult]:
        """Any number may be in flight: they are committed in this order."""
        if not self.is_active:
            raise NotController(self.leader_id)
        self._submitted = asyncio.get_running_loop().create_task(
            self._quorum.commit(self, command, self._submitted)
        )
        return self._submitted

    def entries_after(self, index: int, entries_max: int, bytes_max: int) -> list[LogEntry] | None:
        return self._quorum.entries[index - FIRST_INDEX : self.state.index - FIRST_INDEX][:entries_max]

    async def wait_applied(self, index: int, timeout_s: float) -> bool:
        if self.state.index <= index:
            try:
                await asyncio.wait_for(self._applied.wait(), timeout_s)
            except TimeoutError:
                return False
        return self.state.index > index


class Quorum:
    """The committed log and the active controller; `on_commit(state, result)` is called for every entry, at
    once."""

    def __init__(
        self, loop: VirtualLoop, random: Random, on_commit: Callable[[ClusterState, ApplyResult], None]
    ) -> None:
        self.entries: list[LogEntry] = []
        self.term = 0
        self.leader_id = -1
        self.ended_at_s: dict[int, float] = {}  # by term: when it was deposed
        self.logs: dict[int, VoterLog] = {}
        self.services: dict[int, ControllerService] = {}
        # since when, and the term that has ended meanwhile
        self._asleep: dict[int, tuple[float, int | None]] = {}
        self._loop = loop
        self._random = random
        self._on_commit = on_commit

    def add_controller(self, node_id: int, process: Process, clock: Clock, config: ControllerConfig) -> None:
        log = self.logs[node_id] = VoterLog(self, node_id, process)
        metadata = cast(MetadataLog, log)
        service = self.services[node_id] = ControllerService(metadata, config, clock)
        ControllerLeadership(metadata, service, config, clock, "simulated", self._die)

    def _die(self, reason: str) -> None:
        self._loop.unhandled.append(AssertionError(reason))

    @property
    def state(self) -> ClusterState:
        """The committed state."""
        newest = max(self.logs.values(), key=lambda log: log.state.index)
        return newest.state

    def elect(self, node_id: int, *, deposed_knows: bool) -> None:
        """Another controller takes over; the former one learns it at once, or only when it misses its
        majority."""
        former, log = self.logs.get(self.leader_id), self.logs[node_id]
        self.leader_id = -1
        self.ended_at_s[self.term] = self._loop.time()
        if former is not None and former is not log:
            former_term = former.term
            resign_s = 0.0 if deposed_knows else LEADER_FALLBACK_S * self._random.random()

            self._loop.world_later(resign_s, lambda: self._resign(former, former_term))
        self.term += 1
        term = self.term

        def win() -> None:
            if self.term == term and node_id in self._asleep:
                another = self._random.choice(
                    [each for each in self.logs if each not in self._asleep] or [node_id]
                )
                self._loop.world_later(ELECTION_S_MIN, lambda: self.elect(another, deposed_knows=True))
            elif self.term == term:
                self.leader_id, log.term = node_id, term
                log.catch_up()
                if log.is_active:
                    log.set_active(False)
                self.append(log, b"")
                log.set_active(True)

        self._loop.world_later(ELECTION_S_MIN * (1 + self._random.random()), win)

    def _resign(self, former: VoterLog, term: int) -> None:
        """A sleeping controller learns it when it wakes."""
        if former.node_id in self._asleep:
            self._asleep[former.node_id] = self._asleep[former.node_id][0], term
        elif former.term == term and former.is_leading:
            former.set_active(False)

    def pause(self, node_id: int) -> None:
        """Its process stands still.  When it is the leader, and for long enough, another voter is elected."""
        self._asleep[node_id] = self._loop.time(), None
        process = self.logs[node_id].process
        process.pause()
        term = self.term

        def missed() -> None:
            if self.term == term and node_id in self._asleep:
                self.elect(
                    self._random.choice([each for each in self.logs if each != node_id]), deposed_knows=False
                )

        if node_id == self.leader_id:
            self._loop.world_later(ELECTION_S_MIN * (1 + self._random.random()), missed)

    def resume(self, node_id: int) -> None:
        if node_id not in self._asleep:
            return
        since_s, deposed_term = self._asleep.pop(node_id)
        log = self.logs[node_id]
        log.wake(self._loop.time() - since_s)
        log.process.resume()
        if deposed_term is not None:
            self._loop.world_later(0.05 * self._random.random(), lambda: self._resign(log, deposed_term))

    async def commit(
        self, log: VoterLog, command: bytes, after: asyncio.Future[ApplyResult] | None
    ) -> ApplyResult:
        term = log.term
        await asyncio.sleep(
            0.001 + 0.01 * self._random.random() + (0.3 if self._random.random() < 0.02 else 0.0)
        )
        if after is not None and not after.done():
            await asyncio.wait([after])
        if log.term != term or not log.is_active or self.leader_id != log.node_id:
            await asyncio.sleep(self._random.random())
            raise ProposalUnknown("the controller was deposed meanwhile")
        result = self.append(log, command)
        if self._random.random() < 0.01:
            raise ProposalUnknown("the answer was lost")
        return result

    def append(self, log: VoterLog, command: bytes) -> ApplyResult:
        entry = LogEntry(FIRST_INDEX + 1 + len(self.entries), self.term, command)
        self.entries.append(entry)
        result = log.apply(entry)
        self._on_commit(log.state, result)
        return result
