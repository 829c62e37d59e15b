"""The metadata log as the rest of the node uses it: propose a command, get its result, read the state.

Two threads meet here.  The Raft thread decides what is committed; the event loop owns `state` and all of its
readers.  Committed entries come from the Raft thread in log order through one queue; the event loop applies
each, and only then answers its proposer: a caller that has a result sees it in `state`.

* `is_active`: this node leads and has applied the no-op of its own term, hence everything committed before
  it; `term` is then the controller epoch.  Safety never rests on it: commands carry the epoch in which they
  were planned, and `apply` rejects them in another.
* A proposal ends in one of three ways: the result; `NotController` (surely not applied, now or later);
  `ProposalUnknown` (it may be applied, now or later; repeat it only under the same proposer and sequence, or
  as a compare-and-set).

  A proposal is   kept in         until
  proposed        `_proposed`     Raft accepts it at an index, or refuses it (NotController)
  accepted        `_waiting`      the entry at its index is applied: the result, or NotController for another
                  as well         term's entry; a snapshot covers it, or the node stops: ProposalUnknown
* Snapshots: the event loop freezes the state between two entries, a worker thread encodes it and makes it
  durable, then the Raft thread trims the journal.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime import logs
from ...wire.errors import ErrorCode, KafkaError
from ..raft.contract import FollowerView, Proposal, QuorumStatus, RaftTimings, Role
from ..raft.core import RaftCore
from ..raft.failure import RaftFatal
from ..raft.journal import JOURNAL_ID_MAX, DurableJournal
from ..raft.messages import Entry
from ..raft.snapshot_store import Snapshot, SnapshotStore
from ..raft.thread import (
    BindCluster,
    Inspect,
    RaftThread,
    SnapshotStored,
    Stop,
    exit_process,
)
from ..raft.transport import PeerEvent, QuorumTransport
from ..state.cluster_state import ClusterState
from ..state.features import UnknownLevel, check_known
from ..state.model import ApplyResult
from ..state.snapshot import features_in

if TYPE_CHECKING:
    from ...runtime.clock import Clock
    from ...runtime.connections.tls import MutualTls
    from ...runtime.disk import Disk, FileLock

log = logs.get(__name__)

TURN_S_MAX = 0.02  # of applying entries before the loop may do something else; one entry may exceed it
TAIL_ENTRIES_MAX = 20_000  # kept in memory for followers that are a little behind
TAIL_BYTES_MAX = 32 << 20
PROPOSALS_IN_FLIGHT_MAX = 10_000
PROPOSED_BYTES_MAX = 64 << 20
STOP_S_MAX = 10.0

Subscriber = Callable[[bytes, ApplyResult], None]


class MetadataLogUnusable(Exception):
    """The quorum's folder cannot be used: the message says which file, why, and what to do."""


class NotController(KafkaError):
    """This node is not the active controller, and nothing was or will be applied.  `leader_id`: the active
    controller, -1 unknown."""

    def __init__(self, leader_id: int = -1) -> None:
        leader = "not known at the moment" if leader_id < 0 else f"node {leader_id}"
        super().__init__(ErrorCode.NOT_CONTROLLER, f"this node is not the active controller; it is {leader}")
        self.leader_id = leader_id


class ProposalUnknown(KafkaError):
    """Proposed, but whether it was or will be committed is not known."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


@dataclass(slots=True, frozen=True)
class LogEntry:
    """One committed entry; an empty command is a no-op."""

    index: int
    term: int
    command: bytes


@dataclass(slots=True, frozen=True)
class QuorumView:
    """This voter's view of the quorum, for people and tools."""

    status: QuorumStatus
    followers: dict[int, FollowerView]


@dataclass(slots=True, frozen=True)
class _Applied:
    entries: list[Entry]


@dataclass(slots=True, frozen=True)
class _Accepted:
    future: asyncio.Future[ApplyResult]
    index: int
    term: int


@dataclass(slots=True, frozen=True)
class _Refused:
    future: asyncio.Future[ApplyResult]
    reason: str


@dataclass(slots=True, frozen=True)
class _SnapshotWanted:
    pass


_FromRaft = _Applied | Snapshot | QuorumStatus | _Accepted | _Refused | _SnapshotWanted


class MetadataLog:
    """One voter of the metadata quorum and the state it has replicated."""

    def __init__(
        self,
        *,
        node_id: int,
        voters: Mapping[int, tuple[str, int]],
        listen: tuple[str, int],
        directory: Path,
        disk: Disk,
        clock: Clock,
        cluster_id: str = "",
        tls: MutualTls | None = None,
        timings: RaftTimings | None = None,
        die: Callable[[str], None] = exit_process,
        validate: bool = False,
    ) -> None:
        """`validate`: the voter is held against its invariants, and the node stops when one does not hold."""
        if node_id not in voters or len(voters) not in (1, 3, 5):
            raise ValueError(
                f"node {node_id} must be one of 1, 3 or 5 quorum voters, they are {sorted(voters)}"
            )
        self.node_id = node_id
        self.voters = dict(voters)
        self.state = ClusterState()
        self.status = QuorumStatus(Role.FOLLOWER, 0, -1, False, 0, 0)
        self._listen, self._directory, self._disk, self._clock = listen, directory, disk, clock
        self._cluster_id, self._tls = cluster_id, tls
        self._timings = timings or RaftTimings()
        self._die_now, self._validate = die, validate
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock: FileLock | None = None
        self._thread: RaftThread | None = None
        self._transport: QuorumTransport | None = None
        self._snapshots: SnapshotStore | None = None
        self._from_raft: deque[_FromRaft] = deque()
        self._turn_scheduled = False
        self._pending: deque[LogEntry] = deque()  # committed entries that are not applied yet
        self._waiting: dict[int, tuple[int, asyncio.Future[ApplyResult]]] = {}
        self._proposed: dict[asyncio.Future[ApplyResult], int] = {}  # with the sizes of their commands
        self._proposed_bytes = 0
        self._subscribers: list[Subscriber] = []
        self._role_listeners: list[Callable[[bool], None]] = []
        self._tail: deque[LogEntry] = deque()
        self._tail_bytes = 0
        self._applied_event = asyncio.Event()
        self._snapshot_task: asyncio.Task[None] | None = None
        self._encoded: tuple[int, bytes] | None = None
        self._features_checked: dict[str, int] = {}
        self._bound = False
        self._stopping = False

    # ---- life ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Opens the folder, listens, and runs.  Raises MetadataLogUnusable, PortInUse, OSError."""
        self._loop = asyncio.get_running_loop()
        self._disk.make_directory(self._directory)
        try:
            self._lock = self._disk.lock(self._directory / "lock")
        except BlockingIOError as error:
            raise MetadataLogUnusable(f"{self._directory} is in use by another process") from error
        try:
            core = self._open()
        except RaftFatal as error:
            self._lock.release()
            raise MetadataLogUnusable(str(error)) from error
        self._thread = thread = RaftThread(core, self._die, self._clock.monotonic, validate=self._validate)
        thread.start()
        try:
            await asyncio.wrap_future(thread.run(self._require_transport().start()))
        except OSError:
            self._thread = None
            thread.post(Stop())
            await asyncio.to_thread(thread.join, STOP_S_MAX)
            self._lock.release()
            raise

    def _open(self) -> RaftCore:
        journal = DurableJournal(
            self._disk,
            self._directory / "raft",
            node_id=self.node_id,
            new_id=(self._clock.uuid().int & JOURNAL_ID_MAX) or 1,
            cluster_id=self._cluster_id,
        )
        self._cluster_id = journal.cluster_id
        self._snapshots = SnapshotStore(self._disk, self._directory / "raft")
        self._transport = QuorumTransport(
            node_id=self.node_id,
            cluster_id=journal.cluster_id,
            voters=self.voters,
            listen=self._listen,
            clock=self._clock,
            inbox=self._take_from_peer,
            on_failure=lambda error: self._die(f"the quorum's transport failed: {error!r}"),
            tls=self._tls,
        )
        self._check_stored_features()
        machine = _LoopStateMachine(self._post)
        return RaftCore(
            self.node_id,
            self.voters,
            journal,
            self._snapshots,
            machine,
            self._transport,
            timings=self._timings,
            random=self._clock.random,
            now=self._clock.monotonic,
        )

    def _check_stored_features(self) -> None:
        """Stops the start when the stored snapshot has a feature level that this version does not know."""
        latest = None if self._snapshots is None else self._snapshots.latest
        if latest is None:
            return
        try:
            check_known(self.node_id, features_in(bytes(latest.state)))
        except (UnknownLevel, ValueError) as problem:
            raise RaftFatal(f"the metadata snapshot of entry {latest.index}: {problem}") from problem

    async def stop(self) -> None:
        """Ends the thread after a last sync; proposals in flight end with ProposalUnknown."""
        self._stopping = True
        thread, self._thread = self._thread, None
        if thread is not None:
            await self._stop_transport(thread)
            thread.post(Stop())
            if not await asyncio.to_thread(thread.join, STOP_S_MAX):
                log.error("raft_thread_does_not_stop", waited_s=STOP_S_MAX)
        if self._snapshot_task is not None:
            await asyncio.gather(self._snapshot_task, return_exceptions=True)
        for future in list(self._proposed):
            if not future.done():
                future.set_exception(ProposalUnknown("the node is stopping"))
        self._waiting.clear()
        self._set_status(
            QuorumStatus(
                Role.FOLLOWER, self.status.term, -1, False, self.status.commit_index, self.status.last_index
            )
        )
        if self._lock is not None:
            self._lock.release()

    async def _stop_transport(self, thread: RaftThread) -> None:
        if not thread.is_alive:
            return
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await asyncio.wrap_future(thread.run(self._require_transport().stop()))
        except TimeoutError:
            log.error("quorum_connections_do_not_close", waited_s=STOP_S_MAX)

    @property
    def port(self) -> int:
        """The port of the quorum's own listener (0 for a quorum of one, which has none)."""
        return self._transport.port if self._transport is not None else 0

    @property
    def malformed_frames(self) -> int:
        return self._transport.malformed_frames if self._transport is not None else 0

    # ---- views ---------------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        return self.status.active and not self._stopping and self._is_alive

    @property
    def _is_alive(self) -> bool:
        """Whether the Raft thread would have noticed that its majority is gone: not while a flush of its
        journal hangs."""
        thread = self._thread
        return (
            thread is not None and self._clock.monotonic() - thread.alive_s <= self._timings.leader_fallback_s
        )

    @property
    def leader_id(self) -> int:
        return self.status.leader_id

    @property
    def term(self) -> int:
        return self.status.term

    @property
    def applied_index(self) -> int:
        return self.state.index

    def subscribe(self, subscriber: Subscriber) -> None:
        """`subscriber(command, result)` after every applied entry, in order; after a snapshot with an empty
        command."""
        self._subscribers.append(subscriber)

    def on_role_change(self, listener: Callable[[bool], None]) -> None:
        """`listener(is_active)` whenever this node becomes the active controller (again), or stops being
        it."""
        self._role_listeners.append(listener)

    async def quorum(self) -> QuorumView:
        """This voter's view at this moment, from the Raft thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[QuorumView] = loop.create_future()

        def look(core: RaftCore) -> None:
            view = QuorumView(core.status(), core.followers())
            loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(view))

        if self._thread is None:
            return QuorumView(self.status, {})
        self._thread.post(Inspect(look))
        return await asyncio.wait_for(future, STOP_S_MAX)

    def entries_after(self, index: int, entries_max: int, bytes_max: int) -> list[LogEntry] | None:
        """Applied entries from `index + 1` on, as many as fit (at least one when there is one); None: no
        longer in memory."""
        if index >= self.state.index:
            return []
        if not self._tail or self._tail[0].index > index + 1:
            return None
        skip, size = index + 1 - self._tail[0].index, 0
        found: list[LogEntry] = []
        for position in range(skip, min(len(self._tail), skip + entries_max)):
            entry = self._tail[position]
            size += len(entry.command)
            if found and size > bytes_max:
                break
            found.append(entry)
        return found

    async def wait_applied(self, index: int, timeout_s: float) -> bool:
        """True as soon as an entry after `index` is applied; False when none was within the time."""
        if self.state.index > index:
            return True
        try:
            await asyncio.wait_for(self._applied_event.wait(), timeout_s)
        except TimeoutError:
            return False
        return self.state.index > index

    async def encoded_snapshot(self) -> tuple[int, int, bytes]:
        """(index, term, bytes) of the present state, for a follower that is too far behind; encoded off the
        loop."""
        index, term = self.state.index, self.state.term
        if self._encoded is None or self._encoded[0] != index:
            data = await asyncio.to_thread(self.state.freeze())
            self._encoded = (index, data)
        return index, term, self._encoded[1]

    # ---- proposing -----------------------------------------------------------------------------------------

    def propose(self, command: bytes) -> asyncio.Future[ApplyResult]:
        """Proposes at once, after all earlier proposals; the future ends with the proposal.  Raises
        NotController, THROTTLING_QUOTA_EXCEEDED."""
        if not self.is_active or self._thread is None:
            raise NotController(self.leader_id)
        if len(self._proposed) >= PROPOSALS_IN_FLIGHT_MAX or self._proposed_bytes >= PROPOSED_BYTES_MAX:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                "too many metadata changes are in flight: try again later",
            )
        future: asyncio.Future[ApplyResult] = asyncio.get_running_loop().create_future()
        proposal = Proposal(
            command,
            accepted=lambda index, term: self._post(_Accepted(future, index, term)),
            refused=lambda reason: self._post(_Refused(future, reason)),
        )
        self._proposed[future] = len(command)
        self._proposed_bytes += len(command)
        future.add_done_callback(self._ended)
        self._thread.post(proposal)
        return future

    def _ended(self, future: asyncio.Future[ApplyResult]) -> None:
        self._proposed_bytes -= self._proposed.pop(future)

    async def propose_and_wait(self, command: bytes, timeout_s: float = 10.0) -> ApplyResult:
        """Raises NotController (surely not applied) or ProposalUnknown (the outcome is open)."""
        try:
            return await asyncio.wait_for(self.propose(command), timeout_s)
        except TimeoutError:
            raise ProposalUnknown(
                f"the quorum did not commit within {timeout_s:g} s; the outcome is unknown"
            ) from None

    async def barrier(self, timeout_s: float = 10.0) -> int:
        """A linearizable read: returns once everything committed before this call is in `state`; the index of
        the barrier."""
        return (await self.propose_and_wait(b"", timeout_s)).index

    # ---- from the Raft thread to the loop ------------------------------------------------------------------

    def _take_from_peer(self, event: PeerEvent) -> bool:
        return self._thread is None or self._thread.post(event)

    def _post(self, event: _FromRaft) -> None:
        """Called on any thread: queues an event for the event loop, in order."""
        self._from_raft.append(event)
        if not self._turn_scheduled and self._loop is not None:
            self._turn_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._turn)
            except RuntimeError:
                return  # the loop is closed: the process is ending

    def _turn(self) -> None:
        """Handles the queued events, for `TURN_S_MAX`."""
        self._turn_scheduled = False
        if self._stopping:
            return
        ends_at = self._clock.monotonic() + TURN_S_MAX
        before = self.state.index
        while self._pending or self._from_raft:
            if self._pending:
                self._apply(self._pending.popleft())
            else:
                self._handle(self._from_raft.popleft())
            if self._clock.monotonic() >= ends_at:
                break
        if self.state.index != before:
            event, self._applied_event = self._applied_event, asyncio.Event()
            event.set()
        if (self._pending or self._from_raft) and not self._turn_scheduled and self._loop is not None:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    def _handle(self, event: _FromRaft) -> None:
        match event:
            case _Applied(entries):
                self._pending.extend(LogEntry(index, term, command) for command, index, term in entries)
            case _Accepted(future, index, term):
                self._end_dropped(index)
                self._waiting[index] = (term, future)
            case _Refused(future, reason):
                if not future.done():
                    future.set_exception(self._refusal(reason))
            case QuorumStatus():
                self._set_status(event)
            case Snapshot():
                self._install(event)
            case _SnapshotWanted():
                self._snapshot_task = asyncio.create_task(self._make_snapshot())

    def _end_dropped(self, index: int) -> None:
        """An entry that this node proposed at `index` in an earlier term was replaced, and can never be
        committed."""
        _term, dropped = self._waiting.pop(index, (0, None))
        if dropped is not None and not dropped.done():
            dropped.set_exception(NotController(self.leader_id))

    def _refusal(self, reason: str) -> KafkaError:
        if self.is_active and "larger" in reason:
            return KafkaError(ErrorCode.INVALID_REQUEST, reason)
        return NotController(self.leader_id)

    def _apply(self, entry: LogEntry) -> None:
        if entry.index != self.state.index + 1:
            self._die(f"metadata entry {entry.index} came after {self.state.index}")
            return
        result = self.state.apply(entry.index, entry.term, entry.command)
        self._check_features()
        self._tail.append(entry)
        self._tail_bytes += len(entry.command)
        while len(self._tail) > TAIL_ENTRIES_MAX or (
            self._tail_bytes > TAIL_BYTES_MAX and len(self._tail) > 1
        ):
            self._tail_bytes -= len(self._tail.popleft().command)
        self._check_cluster()
        waiting = self._waiting.pop(entry.index, None)
        if waiting is not None and not waiting[1].done():
            if waiting[0] == entry.term:
                waiting[1].set_result(result)
            else:  # another leader's entry has this index: ours was dropped, and can never be committed
                waiting[1].set_exception(NotController(self.leader_id))
        for subscriber in self._subscribers:
            subscriber(entry.command, result)

    def _install(self, snapshot: Snapshot) -> None:
        try:
            result = self.state.restore(bytes(snapshot.state))
        except ValueError as error:
            self._die(f"the metadata snapshot of entry {snapshot.index}: {error}")
            return
        self._tail.clear()
        self._tail_bytes = 0
        self._check_features()
        self._check_cluster()
        for index in [index for index in self._waiting if index <= snapshot.index]:
            _, future = self._waiting.pop(index)
            if not future.done():
                future.set_exception(ProposalUnknown("a snapshot replaced the entries it was among"))
        for subscriber in self._subscribers:
            subscriber(b"", result)

    def _check_features(self) -> None:
        """Stops the node at an unknown feature level: it would apply later entries otherwise than the other
        nodes."""
        if self.state.features == self._features_checked:
            return
        self._features_checked = dict(self.state.features)
        try:
            check_known(self.node_id, self._features_checked)
        except UnknownLevel as problem:
            self._die(str(problem))

    def _check_cluster(self) -> None:
        """Stores the cluster id, once it is known, beside the vote: this folder then opens for no other
        cluster."""
        cluster_id = self.state.cluster_id
        if self._bound or not cluster_id:
            return
        self._bound = True
        if self._cluster_id and self._cluster_id != cluster_id:
            self._die(
                f"this node is configured for cluster {self._cluster_id}, but the quorum's cluster "
                f"is {cluster_id}"
            )
            return
        self._cluster_id = cluster_id
        if self._transport is not None:
            self._transport.cluster_id = cluster_id
        if self._thread is not None:
            self._thread.post(BindCluster(cluster_id))

    def _set_status(self, status: QuorumStatus) -> None:
        before, self.status = self.status, status
        was, now = before.active, status.active
        if (was, before.term) != (now, status.term) and (was or now):
            log.info("controller_role", active=now, term=status.term, leader=status.leader_id)
            if was:
                self._notify_role(False)
            if now:
                self._notify_role(True)

    def _notify_role(self, active: bool) -> None:
        for listener in self._role_listeners:
            listener(active)

    async def _make_snapshot(self) -> None:
        """Freezes the state between two entries, encodes and stores it off the loop, then lets the Raft
        thread trim the journal. A failure is fatal."""
        index, term, encode = self.state.index, self.state.term, self.state.freeze()
        store = self._snapshots
        if store is None:
            return
        try:
            await asyncio.to_thread(lambda: store.store(Snapshot.make(index, term, encode())))
        except BaseException as error:
            if not self._stopping:
                self._die(f"the metadata snapshot of entry {index} could not be stored: {error}")
            raise
        log.info("metadata_snapshot_stored", index=index, term=term)
        if self._thread is not None:
            self._thread.post(SnapshotStored(index))

    def _require_transport(self) -> QuorumTransport:
        assert self._transport is not None
        return self._transport

    def _die(self, reason: str) -> None:
        self._stopping = True
        self._die_now(reason)


class _LoopStateMachine:
    """The Raft thread's `StateMachine`: passes everything to the event loop."""

    __slots__ = ("_post",)

    def __init__(self, post: Callable[[_FromRaft], None]) -> None:
        self._post = post

    def applied(self, entries: list[Entry]) -> None:
        self._post(_Applied(entries))

    def installed(self, snapshot: Snapshot) -> None:
        self._post(snapshot)

    def snapshot_wanted(self) -> None:
        self._post(_SnapshotWanted())

    def status_changed(self, status: QuorumStatus) -> None:
        self._post(status)
