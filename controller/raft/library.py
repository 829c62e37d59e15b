"""PySyncObj, behind one seam: the only file that imports it or touches a private name of it.

What a tick does, in this order; the steps with a name are the voter's (`TickSteps`), the others the
library's:

1. not a leader, the election timer has ended, and `may_start_election`: it becomes a candidate of the next
   term, votes for itself, and asks the others for their votes; a quorum of one: `become_leader`
2. a leader: the commit index rises to the last entry of its own term that a majority has
3. a leader that no majority has answered for `leader_fallback_s` becomes a follower
4. `apply_committed`
5. a leader, when a heartbeat is due or 4. has applied entries: `send_appends`
6. `take_proposals`
7. `compact`

The library has no state of its own: the assignments of `_kept_as` say which field of `VoterState` each of its
variables is.  Its own code for the voter's steps (network, dump files, queue, apply) is never used;
docs/raft.md has a table of why.

The time of a tick is the step's (`VoterState.now`), not the clock's: a step depends on nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Protocol

import pysyncobj.syncobj as library
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from .contract import Role
from .failure import RaftFatal
from .messages import VoteRequest
from .state import VoterState

LIBRARY_VERSION = "0.3.17"


class TickSteps(Protocol):
    """Where a tick asks the voter, in the order in which it does."""

    def may_start_election(self) -> bool:
        """The election is due: may it begin?"""

    def become_leader(self) -> None:
        """A quorum of one voter: its own vote is the majority."""

    def apply_committed(self) -> bool:
        """True: the followers have to learn the new commit index at once."""

    def send_appends(self) -> None:
        """A heartbeat is due, or there is a new commit index."""

    def take_proposals(self) -> None: ...

    def compact(self) -> None: ...


class _TickTime(threading.local):
    now = 0.0


_tick_time = _TickTime()
library.monotonicTime = lambda: _tick_time.now


def _kept_as(name: str, convert: Callable[[Any], Any] = lambda value: value) -> property:
    """The library's variable is this field of the voter's state."""

    def write(tick: LibraryTick, value: Any) -> None:
        if tick.is_made:  # else it is the library's initial value
            setattr(tick.state, name, convert(value))

    return property(attrgetter(f"state.{name}"), write)


class LibraryTick(SyncObj):  # type: ignore[misc]
    """The library's tick over a voter's state."""

    is_made = False

    _SyncObj__raftState = _kept_as("role", Role)
    _SyncObj__raftCurrentTerm = _kept_as("term")
    _SyncObj__votedForNodeId = _kept_as("voted_for")
    _SyncObj__raftLeader = _kept_as("leader_id")
    _SyncObj__raftCommitIndex = _kept_as("commit_index")
    _SyncObj__raftElectionDeadline = _kept_as("election_deadline")
    _SyncObj__raftMatchIndex = _kept_as("match_index")
    _SyncObj__lastResponseTime = _kept_as("answered_at")
    _SyncObj__newAppendEntriesTime = _kept_as("heartbeat_at")

    def __init__(self, state: VoterState, steps: TickSteps) -> None:
        if VERSION != LIBRARY_VERSION:
            raise RaftFatal(
                f"PySyncObj {VERSION} is installed; this file is written for exactly {LIBRARY_VERSION}"
            )
        self.state, self._steps = state, steps
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=True,
            commandsWaitLeader=False,
            dynamicMembershipChange=False,
            fullDumpFile=None,
            journalFile=None,
            raftMinTimeout=state.timings.election_s_min,
            raftMaxTimeout=state.timings.election_s_max,
            appendEntriesPeriod=state.timings.heartbeat_s,
            leaderFallbackTimeout=state.timings.leader_fallback_s,
            connectionTimeout=max(3.5, state.timings.election_s_max),
        )
        transport = _VoteRequests(state)
        super().__init__(Node(state.node_id), state.others, conf, nodeClass=int, transport=transport)
        self._poller = _NoPoller()
        self._SyncObj__raftLog = _LogOfLibrary(state)
        self.is_made = True

    def tick(self) -> None:
        _tick_time.now = self.state.now
        self._onTick(0)

    # ---- where the library asks ----------------------------------------------------------------------------

    def _SyncObj__connectedToAnyone(self) -> bool:
        return self._steps.may_start_election()

    def _SyncObj__generateRaftTimeout(self) -> float:
        return self.state.election_timeout_s() if self.is_made else 0.0

    def _SyncObj__setCurrentTerm(self, term: int, vote: int | None) -> None:
        self.state.set_term(term, vote)

    def _SyncObj__onBecomeLeader(self) -> None:
        self._steps.become_leader()

    def _SyncObj__applyLogEntries(self) -> bool:
        return self._steps.apply_committed()

    def _SyncObj__sendAppendEntries(self) -> None:
        self._steps.send_appends()

    def _checkCommandsToApply(self) -> None:
        self._steps.take_proposals()

    def _SyncObj__tryLogCompaction(self) -> None:
        self._steps.compact()

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        raise RaftFatal("PySyncObj's own dump files are never used")

    def _SyncObj__onMessageReceived(self, node: Any, message: Any) -> None:
        raise RaftFatal("PySyncObj's own messages are never used")


class _LogOfLibrary:
    """The log as the library reads it in a tick: by position."""

    def __init__(self, state: VoterState) -> None:
        self._entries = state.log.entries

    def __getitem__(self, item: Any) -> Any:
        return self._entries[item]

    def setRaftCommitIndex(self, index: int) -> None:
        """Not kept: it is volatile in Raft, and one beyond the end of the log would be dangerous."""

    def onOneSecondTimer(self) -> None: ...


class _VoteRequests(Transport):  # type: ignore[misc]
    """The library sends one kind of message by itself: the vote requests with which it begins an election."""

    def __init__(self, state: VoterState) -> None:
        super().__init__(None, None, None)
        self._state = state

    def send(self, node_id: int, message: dict[str, Any]) -> bool:
        if message["type"] != "request_vote":
            raise RaftFatal(f"PySyncObj tried to send {message['type']!r}, which nothing here understands")
        request = VoteRequest(
            message["term"], message["last_log_index"], message["last_log_term"], preliminary=False
        )
        self._state.send(node_id, request)
        return True


class _NoPoller:
    """The library polls its sockets in every tick; it has none."""

    def poll(self, timeout: float) -> None: ...
