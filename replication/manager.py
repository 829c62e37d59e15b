"""The asyncio shell of replication on one node: its replicas with their roles, and the requests that wait for
them.

What it promises to the node

* `apply` is called with the metadata in the order it was applied; an assignment that is not newer changes
  nothing.  **The node must have applied the metadata up to its own registration before its first `apply`**:
  older metadata may name it leader in an epoch of its previous life, whose unflushed tail is lost.
* `append_now` is synchronous: nothing happens between its checks and the append.  The records are committed
  only when `wait_committed` says NONE, or `on_high_watermark` reports an offset not below their end.
* `on_elected` (this node leads the partition in a new epoch) and `on_resigned` (it does not lead it) are
  called in the order of the epochs; `on_high_watermark` is called on a later turn of the loop, coalesced,
  only while this node still leads in that epoch.
* After the session with the controller has ended the manager appends and acknowledges nothing until it is
  renewed (`lease`).
* A failed disk takes the replica offline until the process starts again; the manager reports it through
  `on_offline`.

Flow of a write with acks=all: append to the page cache -> waiting followers are woken and one flush is
started -> followers append, flush and fetch onwards -> each of these events may move the high watermark
(`_progress`) -> acknowledgements, readers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any
from uuid import UUID

from tidegate.runtime import logs
from tidegate.runtime.calm_logs import RateLimitedLines
from tidegate.runtime.clock import Clock, Timer
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.folders.data_folders import DataFolders
from tidegate.storage.log.admission import CheckedBatches
from tidegate.storage.log.group_commit import GroupCommit
from tidegate.storage.log.log import AppendInfo, AppendOrigin, EpochEnd, Log, VerificationGuard
from tidegate.storage.log.lookup import DecodedBatches
from tidegate.storage.recovery.recovery import CorruptLog
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.fetch import FetchRequest, FetchResponse

from .fetching import offsets
from .fetching.client_fetches import ClientFetches
from .fetching.configuration import ReplicationConfig, ReplicationLimits
from .fetching.fetcher import LeaderFetcher, TransportFactory
from .fetching.follower_fetches import FollowerFetches
from .isr import AlterPartition, IsrChanges
from .partition.assignment import Assignment
from .partition.leader import PartitionLeader
from .partition.lease import Lease
from .record_deletion import RecordDeletions
from .replica.catch_up_throttle import CatchUpThrottle
from .replica.delayed import SWEEP_INTERVAL_S, AckCallback
from .replica.replica import Replica, Role, RoleChange
from .replica.replica_log_opener import ReplicaLogOpener

Key = tuple[str, int]
OnElected = Callable[[str, int, int, Log], None]
OnResigned = Callable[[str, int, int], None]
OnHighWatermark = Callable[[str, int, int], None]
OnOffline = Callable[[str, int, str], None]

_log = logs.get(__name__)


def _ignore_offline(topic: str, partition: int, reason: str) -> None:
    """The default `on_offline`: the manager has written the log line already."""


class ReplicaManager:
    """All replicas of one node; see the module's docstring for what it promises."""

    def __init__(
        self,
        node_id: int,
        log_directory: LogDirectory | DataFolders,
        group_commit: GroupCommit,
        clock: Clock,
        alter_partition: AlterPartition,
        transport_factory: TransportFactory,
        on_elected: OnElected,
        on_resigned: OnResigned,
        on_high_watermark: OnHighWatermark,
        *,
        on_offline: OnOffline = _ignore_offline,
        broker_epoch: Callable[[], int] = lambda: -1,
        exists: Callable[[str, int], bool] = lambda _topic, _partition: False,
        holds_session: Callable[[], bool] = lambda: True,
        is_out_of_room: Callable[[str, int], bool] = lambda _topic, _partition: False,
        config: ReplicationConfig | None = None,
        make_logs_in_background: bool = False,
    ) -> None:
        """`broker_epoch()` is the epoch of the node's registration, which its fetches as a follower carry;
        `exists(topic, partition)`: the partition is in the metadata; `holds_session()`: the session with the
        controller is not over. `is_out_of_room(topic, partition)`: the rest of that disk is reserved, so the
        partition takes no records. `make_logs_in_background`: threads create the logs of new partitions,
        whose roles begin when they are there (`replica_log_opener`)."""
        self.node_id = node_id
        self._directory = log_directory
        self._group_commit = group_commit
        self._clock = clock
        self._transport_factory = transport_factory
        self._on_elected = on_elected
        self._on_resigned = on_resigned
        self._on_high_watermark = on_high_watermark
        self._on_offline = on_offline
        self._broker_epoch = broker_epoch
        self._exists = exists
        self.lease = Lease(node_id, holds_session)
        self._is_out_of_room = is_out_of_room
        self._config = config or ReplicationConfig()
        self._lag_max_s = self._config.replica_lag_time_max_ms / 1000
        self._replicas: dict[Key, Replica] = {}
        self._fetchers: dict[int, LeaderFetcher] = {}
        self._client_fetches = ClientFetches(
            clock, self.replica, self.storage_failed, self._config.rack_of,
            topic_name_of=self._config.topic_name_of, sessions_max=self._config.client_sessions_max,
        )  # fmt: skip
        self._follower_fetches = FollowerFetches(
            clock, self.replica, self._config.limits, self._follower_progressed, self.storage_failed
        )
        self._follower_throttle = CatchUpThrottle(self._config.limits.follower_throttled_bytes_per_s)
        self._isr_changes = IsrChanges(
            clock, alter_partition, self._settled, self._follower_fetches.recent_fetchers
        )
        self._role_lines = RateLimitedLines(_log, "role_changed", "roles_changed")
        self._moved: set[Replica] = set()  # high watermarks to report on the next turn of the loop
        self._waiting_acks, self._acking, self._started = 0, set[Replica](), False
        self._sweep: Timer | None = None
        self._closing, self._tasks = False, set[asyncio.Task[None]]()
        self._log_opener = ReplicaLogOpener(
            node_id, log_directory, clock, self._config.limits.producer_id_expiration_ms, self.apply,
            on_offline,
            in_background=make_logs_in_background,
        )  # fmt: skip
        self._deletions = RecordDeletions(clock, group_commit.note_start)
        self._previous_on_offline, log_directory.on_offline = log_directory.on_offline, self._directory_failed
        log_directory.on_corrupt = self._log_damaged

    # -- looking up ------------------------------------------------------------------------------------------

    def replica(self, topic: str, partition: int) -> Replica:
        """This node's replica.  Raises KAFKA_STORAGE_ERROR when the node could not open its log,
        NOT_LEADER_OR_FOLLOWER when the partition exists and the node has no replica of it (yet), so that the
        client reads the metadata again, and UNKNOWN_TOPIC_OR_PARTITION when the partition does not exist."""
        found = self._replicas.get((topic, partition))
        if found is None:
            self._log_opener.require_possible((topic, partition))
            elsewhere = self._exists(topic, partition)
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if elsewhere else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise KafkaError(code, f"node {self.node_id} holds no replica of {topic}-{partition}")
        return found

    def leader_log(self, topic: str, partition: int, leader_epoch: int | None = None) -> Log:
        """The log of a partition that this node leads.

        Raises KafkaError NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH (None and -1: no
        epoch to check).
        """
        replica = self.replica(topic, partition)
        replica.require_leader_at(leader_epoch)
        return replica.log

    @property
    def replicas(self) -> Iterable[Replica]:
        """All replicas, for metrics and inspection."""
        return self._replicas.values()

    @property
    def leader_count(self) -> int:
        return len(self._leaders())

    def _leaders(self) -> list[PartitionLeader]:
        return [replica.leader for replica in self._replicas.values() if replica.leader is not None]

    def change_limits(self, limits: ReplicationLimits) -> None:
        """Uses `limits` from now on."""
        self._follower_fetches.change_limits(limits)
        self._follower_throttle.set_limit(limits.follower_throttled_bytes_per_s)
        if self._log_opener.expire_producer_ids_after(limits.producer_id_expiration_ms):
            for replica in self._replicas.values():
                replica.log.update_config(self._log_opener.log_config(replica.assignment))

    @property
    def under_replicated_count(self) -> int:
        """Partitions led here whose ISR is smaller than their replica set."""
        return sum(1 for leader in self._leaders() if leader.is_under_replicated())

    @property
    def under_min_isr_count(self) -> int:
        """Partitions led here that reject acks=all because their ISR is below min.insync.replicas."""
        return sum(leader.is_under_min_isr() for leader in self._leaders())

    def offline_replicas(self) -> set[tuple[UUID, int]]:
        """(topic id, partition) of the replicas that this node has and cannot serve."""
        here = self._directory.damaged.items()
        damaged = {(topic_id, partition) for (_topic, partition), topic_id in here if topic_id is not None}
        return damaged | {
            (each.topic_id, each.partition) for each in self._replicas.values() if each.role is Role.OFFLINE
        }

    # -- metadata --------------------------------------------------------------------------------------------

    def apply(self, assignments: Iterable[Assignment]) -> None:
        """Gives each replica the role, ISR and configuration of its newest assignment: opens, leads, follows
        or deletes it.  The module's docstring says in which order the node must call this."""
        self._start_tasks()
        for assignment in (wanted := list(assignments)):
            held = self._replicas.get((assignment.topic, assignment.partition))
            if held is not None and held.topic_id != assignment.topic_id:
                self.delete(*held.key)  # the topic was deleted and created again under the same name
        ready = self._log_opener.ready(wanted)
        for assignment in ready:
            replica = self._replica_for(assignment)
            if replica is None:
                continue
            old = replica.assignment
            change = replica.apply(assignment, now_s=self._clock.monotonic(), lag_max_s=self._lag_max_s)
            if assignment.config != old.config:
                replica.log.update_config(self._log_opener.log_config(assignment))
                self._start_flush(replica)  # a stricter flush policy holds at once, also when no append comes
            if change is RoleChange.NEW_LEADER_EPOCH:
                self._role_changed(replica)
            elif change is RoleChange.ISR:
                self._settled(replica)
                if replica.assignment.replicas != old.replicas:
                    replica.watchers.state_changed()  # removed followers get an error
            if self.node_id not in replica.assignment.replicas:
                _log.info(
                    "replica_moved_away",
                    topic=assignment.topic,
                    partition=assignment.partition,
                    to=assignment.replicas,
                )
                self.delete(*replica.key)

    def brokers_changed(self, nodes: Container[int]) -> None:
        """The applied metadata has changed for these brokers: as followers they may join the ISR now, or must
        not hold the high watermark any more."""
        for replica in self._replicas.values():
            if replica.leader is not None and replica.leader.brokers_changed(nodes):
                self._progress(replica)
                self._isr_changes.news_of_followers(replica)

    def _replica_for(self, assignment: Assignment) -> Replica | None:
        """The assignment's replica, created when this node is one of its replicas; None when it is not, or
        the log does not open."""
        key = (assignment.topic, assignment.partition)
        replica = self._replicas.get(key)
        if (
            replica is not None
            and replica.role is Role.OFFLINE
            and self._log_opener.may_set_aside(assignment)
        ):
            del self._replicas[key]
            replica = None
        if replica is None and self.node_id in assignment.replicas:
            if (log := self._log_opener.open(assignment)) is None:
                return None
            replica = self._replicas[key] = Replica(
                self.node_id, assignment, log, self._config.eligibility_of
            )
        return replica

    async def logs_made(self, timeout_s: float) -> None:
        """Waits for the logs that threads are creating now.  Raises TimeoutError."""
        await self._log_opener.settled(timeout_s)

    def delete(self, topic: str, partition: int, topic_id: UUID | None = None) -> None:
        """The partition was deleted or moved away: waiting requests get NOT_LEADER_OR_FOLLOWER, and the log
        is removed.  With `topic_id`, only when the replica is that topic's: a new topic may have the same
        name already."""
        self._log_opener.forget((topic, partition), topic_id)
        replica = self._replicas.get((topic, partition))
        if replica is None or topic_id not in (None, replica.topic_id):
            return
        del self._replicas[topic, partition]
        was_leader = replica.is_leader
        replica.go_offline("the partition was deleted")
        self._stop_following(replica)
        self._fail_waiting(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if was_leader:
            self._on_resigned(topic, partition, replica.leader_epoch)
        self._log_opener.remove((topic, partition))

    def _role_changed(self, replica: Replica) -> None:
        self._stop_following(replica)
        self._fail_waiting(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._role_lines.line(self._clock.monotonic(), replica.role.value, **replica.log_fields())
        if replica.role is Role.LEADER:
            self._on_elected(replica.topic, replica.partition, replica.leader_epoch, replica.log)
            self._start_flush(replica)
            self._progress(replica)
            return
        if replica.role is Role.FOLLOWER:
            self._fetcher(replica.leader_id).assign(replica)
        self._on_resigned(replica.topic, replica.partition, replica.leader_epoch)

    def _fetcher(self, leader_id: int) -> LeaderFetcher:
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = LeaderFetcher(
                self.node_id, leader_id, self._clock, self._transport_factory(leader_id),
                self._config.fetcher,
                broker_epoch=self._broker_epoch, flush=self._flush_followed, on_failed=self.storage_failed,
                require_room=self._require_room, throttle=self._follower_throttle,
            )  # fmt: skip
            self._fetchers[leader_id] = fetcher
            fetcher.start()
        return fetcher

    def _stop_following(self, replica: Replica) -> None:
        for fetcher in self._fetchers.values():
            fetcher.remove(replica.key)

    def _fail_waiting(self, replica: Replica, code: ErrorCode) -> None:
        self._waiting_acks -= replica.acks.fail(code)
        self._acking.discard(replica)
        replica.watchers.state_changed()
        self._deletions.progressed(replica)

    def suspend_leadership(self, reason: str) -> None:
        """The session with the controller ended, and another node may lead now.  Nothing is appended until
        the session is renewed. Producers that wait for acks=all get NOT_LEADER_OR_FOLLOWER, also for
        committed records, and look for the leader."""
        self.lease.suspend(reason, self.leader_count, self._clock.monotonic())
        for replica in tuple(self._acking):
            self._fail_waiting(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def resume_leadership(self) -> None:
        """The session was renewed: this node leads again the partitions that the metadata gives it."""
        self.lease.resume(self.leader_count, self._clock.monotonic())
        for replica in tuple(self._acking):
            self._acknowledge(replica)

    # -- writing ---------------------------------------------------------------------------------------------

    def append_now(
        self,
        topic: str,
        partition: int,
        batches: bytes | bytearray | memoryview,
        *,
        origin: AppendOrigin,
        guard: VerificationGuard | None = None,
        required_acks: int = -1,
        expected_leader_epoch: int | None = None,
        transaction_version: int = 0,
        checked: CheckedBatches | None = None,
    ) -> AppendInfo:
        """Appends as the leader, synchronously.  Raises KafkaError with the protocol's codes; then nothing
        was appended.

        `expected_leader_epoch` fences a caller whose state belongs to one leadership (coordinators).
        """
        replica = self.replica(topic, partition)
        self.lease.require()
        leader = replica.require_leader_at(expected_leader_epoch)
        leader.check_before_append(required_acks)
        self._require_room(replica)
        log_end = replica.log.log_end_offset
        try:
            info = replica.log.append_leader(
                batches,
                leader_epoch=leader.leader_epoch,
                origin=origin,
                now_ms=self._clock.wall_ms(),
                guard=guard,
                transaction_version=transaction_version,
                checked=checked,
            )
        except KafkaError as error:
            if replica.log.is_offline:  # a failed disk; a bad batch or a full disk only rejects the append
                self.storage_failed(replica, str(error))
            raise
        if not info.duplicate:
            leader.on_append(log_end, self._clock.monotonic())
            replica.watchers.records_appended()
            self._start_flush(replica)
            self._progress(replica)
        return info

    def _require_room(self, replica: Replica) -> None:
        """Raises KAFKA_STORAGE_ERROR when the disk is full except for the node's reserve."""
        if self._is_out_of_room(replica.topic, replica.partition):
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the disk of node {self.node_id} is full: make room there"
            )

    async def wait_committed(
        self, topic: str, partition: int, leader_epoch: int, next_offset: int, timeout_ms: int
    ) -> ErrorCode:
        """Waits until everything below `next_offset` is committed under this leader epoch; the
        acknowledgement for acks=all.

        NONE, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, REQUEST_TIMED_OUT or
        NOT_ENOUGH_REPLICAS_AFTER_APPEND; after any but NONE the records may still be committed later.
        """
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self.when_committed(
            topic,
            partition,
            leader_epoch,
            next_offset,
            timeout_ms,
            lambda code: None if done.done() else done.set_result(code),
        )
        return await done

    def when_committed(
        self,
        topic: str,
        partition: int,
        leader_epoch: int,
        next_offset: int,
        timeout_ms: int,
        callback: AckCallback,
    ) -> None:
        """`wait_committed` with a callback, called exactly once, maybe before this returns."""
        replica = self._replicas.get((topic, partition))
        leader = None if replica is None else replica.leader
        if replica is None or leader is None or leader.leader_epoch != leader_epoch:
            offline = replica is not None and replica.role is Role.OFFLINE
            callback(ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        code = leader.commit_state(next_offset) if self.lease.is_good else ErrorCode.NOT_LEADER_OR_FOLLOWER
        if code is None and (timeout_ms <= 0 or self._waiting_acks >= self._config.waiting_acks_max):
            code = ErrorCode.REQUEST_TIMED_OUT
        if code is not None:
            callback(code)
            return
        self._waiting_acks += 1
        replica.acks.add(next_offset, self._clock.monotonic() + timeout_ms / 1000, callback)
        self._acking.add(replica)
        if self._sweep is None:
            self._sweep = self._clock.call_later(SWEEP_INTERVAL_S, self._sweep_acks)

    def _sweep_acks(self) -> None:
        self._sweep = None
        now_s = self._clock.monotonic()
        for replica in tuple(self._acking):
            self._progress(replica)  # a silent follower stops holding the high watermark by time alone
            under_min = replica.leader is not None and replica.leader.is_under_min_isr()
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if under_min else ErrorCode.REQUEST_TIMED_OUT
            self._waiting_acks -= replica.acks.expire(now_s, code)
            if not replica.acks:
                self._acking.discard(replica)
        if self._acking:
            self._sweep = self._clock.call_later(SWEEP_INTERVAL_S, self._sweep_acks)

    # -- progress --------------------------------------------------------------------------------------------

    def _progress(self, replica: Replica) -> None:
        """A flush, a fetch or the ISR changed: moves the high watermark, completes acknowledgements, wakes
        fetches."""
        if not replica.advance_high_watermark(self._clock.monotonic()) or replica.leader is None:
            return
        self._acknowledge(replica)
        replica.watchers.high_watermark_moved()
        if not self._moved:
            asyncio.get_running_loop().call_soon(self._report_high_watermarks)
        self._moved.add(replica)

    def _acknowledge(self, replica: Replica) -> None:
        if replica.acks and replica.leader is not None and self.lease.is_good:
            self._waiting_acks -= replica.acks.complete(replica.leader)

    def _report_high_watermarks(self) -> None:
        moved, self._moved = self._moved, set()
        for replica in moved:
            if replica.is_leader and not self._closing:
                self._on_high_watermark(replica.topic, replica.partition, replica.log.high_watermark)

    def _follower_progressed(self, replica: Replica, node_id: int) -> None:
        self._progress(replica)
        self._deletions.progressed(replica)
        if replica.leader is not None and node_id not in replica.leader.maximal_isr:
            self._isr_changes.submit(replica, replica.leader.propose_join(node_id))

    def _settled(self, replica: Replica) -> None:
        """The ISR changed: the high watermark may move, DeleteRecords may be complete, the next follower may
        join."""
        self._progress(replica)
        self._deletions.progressed(replica)
        self._isr_changes.propose_next(replica)

    def _start_flush(self, replica: Replica) -> None:
        """Starts a flush; there is one in flight per log, and the next one takes the records appended
        meanwhile."""
        if not replica.flushes_always and not replica.needs_flush:
            if replica.log.flush_due:
                self._group_commit.request(replica.log)
            return
        if replica.flush_running or not replica.log.needs_flush or self._closing:
            return
        replica.flush_running = True
        self._group_commit.when_flushed(replica.log, partial(self._flushed_alone, replica))

    def _flushed_alone(self, replica: Replica, error: KafkaError | None) -> None:
        replica.flush_running = False
        if self._closing:
            return
        if error is not None:
            self.storage_failed(replica, str(error))
            return
        self._progress(replica)
        if replica.role is not Role.OFFLINE:
            self._start_flush(replica)

    async def _flush_followed(self, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            if not replica.needs_flush and replica.log.flush_due and not replica.log.is_offline:
                self._group_commit.request(replica.log)
        wanted = {replica.log: replica for replica in replicas if replica.needs_flush}
        if notes := [self._note_start(replica) for replica in replicas if replica.log.start_note.is_due]:
            await asyncio.gather(*notes)
        for log, error in (await self._group_commit.flush_all(wanted)).items():
            self.storage_failed(wanted[log], str(error))

    async def _note_start(self, replica: Replica) -> None:
        try:
            await self._group_commit.note_start(replica.log)
        except KafkaError as error:  # the fetcher tries again
            _log.warning(
                "log_start_not_noted", topic=replica.topic, partition=replica.partition, error=str(error)
            )

    def _directory_failed(self, directory: LogDirectory, error: OSError) -> None:
        if self._previous_on_offline is not None:
            self._previous_on_offline(directory, error)
        for replica in tuple(self._replicas.values()):
            if replica.log.is_offline:
                self.storage_failed(replica, str(error))

    def _log_damaged(self, log: Log, error: CorruptLog) -> None:
        replica = self._replicas.get((log.topic, log.partition))
        if replica is not None and replica.log is log:
            self.storage_failed(replica, str(error))

    def storage_failed(self, replica: Replica, reason: str) -> None:
        """The replica's disk failed: it is offline from now on, and requests get KAFKA_STORAGE_ERROR, also
        those that wait."""
        was_leader = replica.is_leader
        if self._replicas.get(replica.key) is not replica or not replica.go_offline(reason):
            return
        _log.error("replica_offline", topic=replica.topic, partition=replica.partition, reason=reason)
        self._stop_following(replica)
        self._fail_waiting(replica, ErrorCode.KAFKA_STORAGE_ERROR)
        if was_leader:
            self._on_resigned(replica.topic, replica.partition, replica.leader_epoch)
        self._on_offline(replica.topic, replica.partition, reason)

    # -- reading ---------------------------------------------------------------------------------------------

    async def fetch(
        self, request: FetchRequest, *, by_id: bool = False, turn: Any = nullcontext
    ) -> FetchResponse:
        """Answers a fetch of a client or a follower, waiting up to its `max_wait_ms`; see
        `ClientFetches.fetch`."""
        if request.replica_id >= 0:
            return await self._follower_fetches.fetch(request)
        return await self._client_fetches.fetch(request, by_id=by_id, turn=turn)

    def list_offsets(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        isolation: int | None,
        epoch: int = -1,
        known: DecodedBatches | None = None,
    ) -> offsets.OffsetAnswer:
        """The offset for a timestamp or for one of the special values; see `offsets.list_offset`.  Raises
        KafkaError."""
        return offsets.list_offset(self.replica(topic, partition), epoch, timestamp, isolation, known)

    async def delete_records(self, topic: str, partition: int, before_offset: int, timeout_ms: int) -> int:
        """Removes records below an offset; see `RecordDeletions.delete_before`.  Raises KafkaError."""
        replica = self.replica(topic, partition)
        self.lease.require()
        return await self._deletions.delete_before(replica, before_offset, timeout_ms)

    def epoch_end(self, topic: str, partition: int, current_leader_epoch: int, epoch: int) -> EpochEnd:
        """Where `epoch` ends in this leader's log (OffsetForLeaderEpoch; docs/semantics.md E3).  Raises
        KafkaError."""
        replica = self.replica(topic, partition)
        replica.require_leader_at(current_leader_epoch)
        return replica.log.epoch_end(epoch)

    # -- tasks -----------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("replication_task_failed", task=task.get_name(), error=repr(error))

    def _start_tasks(self) -> None:
        if self._started or self._closing:
            return
        self._started = True
        self._spawn(self._maintain_isr(), "isr-maintenance")
        self._spawn(self._checkpoint_high_watermarks(), "high-watermark-checkpoint")

    async def _maintain_isr(self) -> None:
        """From time to time: removes lagging followers from ISRs, sends lost ISR changes again, and moves
        high watermarks that a silent follower held back."""
        while not self._closing:
            await self._clock.sleep(max(0.05, self._lag_max_s / 2))
            self._summarize_lines(self._clock.monotonic())
            for count, replica in enumerate(tuple(self._replicas.values()), start=1):
                try:
                    self._isr_changes.maintain(replica)
                    self._progress(replica)
                except Exception:  # a defect at one partition must not stop the others' maintenance
                    _log.exception("isr_maintenance_failed", topic=replica.topic, partition=replica.partition)
                if count % 500 == 0:
                    await asyncio.sleep(0)  # thousands of partitions must not hold the loop

    def _summarize_lines(self, now_s: float, *, at_once: bool = False) -> None:
        """Writes the log lines that count what had no line of its own."""
        self.lease.summarize(self.leader_count, now_s)
        for lines in (
            self._role_lines,
            self._isr_changes.lines,
            *(fetcher.lines for fetcher in self._fetchers.values()),
        ):
            lines.summarize(now_s, at_once=at_once)

    async def _checkpoint_high_watermarks(self) -> None:
        while not self._closing:
            await self._clock.sleep(self._config.high_watermark_checkpoint_interval_ms / 1000)
            self._write_checkpoints()

    def _write_checkpoints(self) -> None:
        try:
            self._directory.write_checkpoints()
        except OSError as error:
            # only costs recovery time; a failing disk fails appends
            _log.error("checkpoint_not_written", error=str(error))

    async def shutdown(self, clean: bool = True) -> None:
        """Stops every task and answers every waiting request; with `clean`, flushes the logs and writes the
        checkpoints."""
        self._closing = True
        self._summarize_lines(self._clock.monotonic(), at_once=True)
        await self._log_opener.close()
        await self._isr_changes.close()
        await asyncio.gather(*(fetcher.close() for fetcher in self._fetchers.values()))
        self._fetchers.clear()
        for replica in self._replicas.values():
            self._fail_waiting(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = None
        if clean:
            await self._flush_followed(
                [replica for replica in self._replicas.values() if replica.role is not Role.OFFLINE]
            )
        for task in (tasks := tuple(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if clean:
            self._write_checkpoints()
