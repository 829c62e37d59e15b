"""The asyncio shell of replication on one node: its replicas with their roles, and the requests that wait for
them.

What it promises to the node

* `apply` is called with the metadata in the order it was applied; an assignment that is not newer changes
  nothing.  **The node must have applied the metadata up to its own registration before its first `apply`**:
  older metadata may name it leader in an epoch of its previous life, whose unflushed tail is lost.
* `append_now` is synchronous: nothing happens between its checks and the append.  The records are committed
  only when `when_committed` settles with NONE (`DelayedProduce`), or `on_high_watermark` reports an offset
  not below their end.
* `on_elected` (this node leads the partition in a new epoch) and `on_resigned` (it does not lead it) are
  called in the order of the epochs; `on_high_watermark` is called on a later turn of the loop, coalesced,
  only while this node still leads in that epoch.
* After the session with the controller has ended the manager appends and acknowledges nothing until it is
  renewed (`lease`).
* A replica that goes offline (`OfflineCause`) is offline until the process starts again; the manager
  reports it through `on_offline`.

Flow of a write with acks=all: append to the page cache -> waiting followers are woken and one flush is
started -> followers append, flush and fetch onwards -> each of these events may move the high watermark
(`_progress`) -> acknowledgements, readers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from uuid import UUID

from ..runtime import logs
from ..runtime.calm_logs import RateLimitedLines
from ..runtime.clock import Clock
from ..storage.directory.log_directory import LogDirectory
from ..storage.folders.data_folders import DataFolders
from ..storage.log.admission import CheckedBatches
from ..storage.log.group_commit import GroupCommit
from ..storage.log.log import AppendInfo, AppendOrigin, EpochEnd, Log, VerificationGuard
from ..storage.log.lookup import DecodedBatches
from ..storage.recovery.recovery import CorruptLog
from ..wire.errors import ErrorCode, KafkaError
from ..wire.fetch import FetchRequest, FetchResponse
from .broker_view import BrokerView, PartitionListener
from .fetching import offsets
from .fetching.client_fetches import ClientFetches, MayRead
from .fetching.configuration import ReplicationConfig, ReplicationLimits
from .fetching.fetcher import TransportFactory
from .fetching.fetcher_manager import FetcherManager
from .fetching.follower_fetches import FollowerFetches
from .isr import AlterPartition, IsrChanges
from .partition.assignment import Assignment
from .partition.lease import LeadershipLease
from .record_deletion import RecordDeletions
from .replica.delayed_produce import DelayedProduce
from .replica.flushes import ReplicaFlushes
from .replica.hosted import HostedReplicas
from .replica.replica import OfflineCause, Replica, Role, RoleChange
from .replica.replica_log_opener import ReplicaLogOpener
from .replica.waiters import AckCallback
from .upkeep import ReplicationUpkeep
from .waiting import WaitingRequests

_log = logs.get(__name__)


class ReplicaManager:
    """All replicas of one node; see the module's docstring for what it promises."""

    def __init__(
        self,
        node_id: int,
        directory: DataFolders,
        group_commit: GroupCommit,
        clock: Clock,
        alter_partition: AlterPartition,
        transport_factory: TransportFactory,
        *,
        listener: PartitionListener | None = None,
        broker: BrokerView | None = None,
        config: ReplicationConfig | None = None,
    ) -> None:
        """`alter_partition` sends ISR changes to the controller, `transport_factory` makes the connection to
        a leader."""
        self.node_id = node_id
        self._directory = directory
        self._clock = clock
        self._listener = listener = listener or PartitionListener()
        self._broker = broker = broker or BrokerView()
        self._config = config = config or ReplicationConfig()
        self._limits = limits = replace(config.limits)
        self._lag_max_s = config.replica_lag_time_max_ms / 1000
        self._is_closing = False
        self._moved: set[Replica] = set()  # high watermarks to report on the next turn of the loop
        self._role_lines = RateLimitedLines(_log, "role_changed", "roles_changed")
        self.lease = LeadershipLease(node_id, broker.holds_session)
        self._log_opener = ReplicaLogOpener(
            node_id, directory, clock, lambda: limits.producer_id_expiration_ms, self.apply,
            listener.on_offline,
            in_background=config.make_logs_in_background,
        )  # fmt: skip
        self.hosted = HostedReplicas(node_id, broker.partition_exists, self._log_opener.require_possible)
        self._delayed_produce = DelayedProduce(clock, self.lease, config.waiting_acks_max, self._progress)
        self._flushes = ReplicaFlushes(group_commit, self._progress, self.take_offline)
        self._client_fetches = ClientFetches(
            clock, self.replica, self.take_offline, broker.rack_of,
            topic_name_of=broker.topic_name_of, sessions_max=config.client_sessions_max,
        )  # fmt: skip
        self._follower_fetches = FollowerFetches(
            clock, self.replica, limits, self._follower_progressed, self.take_offline
        )
        self._fetchers = FetcherManager(
            node_id, clock, transport_factory, config.fetcher, limits,
            broker_epoch=broker.broker_epoch, flush=self._flush_followed,
            take_offline=self.take_offline, require_room=self._require_room, on_failure=listener.on_failure,
        )  # fmt: skip
        self._isr_changes = IsrChanges(
            clock, alter_partition, self._settled, self._follower_fetches.recent_fetchers, listener.on_failure
        )
        self._deletions = RecordDeletions(clock, self.lease, group_commit.note_start)
        self._waiting: tuple[WaitingRequests, ...] = (
            self._delayed_produce, self._client_fetches, self._follower_fetches, self._deletions,
        )  # fmt: skip
        self._upkeep = ReplicationUpkeep(
            clock, self.hosted, maintain=self._maintain, maintain_interval_s=self._lag_max_s / 2,
            summarize=self._summarize_lines, write_checkpoints=directory.write_checkpoints,
            checkpoint_interval_s=config.high_watermark_checkpoint_interval_ms / 1000,
            on_failure=listener.on_failure,
        )  # fmt: skip
        self._previous_on_offline, directory.on_offline = directory.on_offline, self._directory_failed
        directory.on_corrupt = self._log_damaged

    # ---- looking up ----------------------------------------------------------------------------------------

    def replica(self, topic: str, partition: int) -> Replica:
        """This node's replica; raises KafkaError as `HostedReplicas.require`."""
        return self.hosted.require(topic, partition)

    def leader_log(self, topic: str, partition: int, leader_epoch: int | None = None) -> Log:
        """The log of a partition that this node leads.

        Raises KafkaError NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH (None and -1: no
        epoch to check).
        """
        replica = self.replica(topic, partition)
        replica.require_leader_at(leader_epoch)
        return replica.log

    def change_limits(self, limits: ReplicationLimits) -> None:
        """Uses `limits` from now on.  Logs have theirs in their configuration."""
        former_ms = self._limits.producer_id_expiration_ms
        self._limits.change_to(limits)
        if limits.producer_id_expiration_ms != former_ms:
            for replica in self.hosted:
                replica.log.update_config(self._log_opener.log_config(replica.assignment))

    def offline_replicas(self) -> set[tuple[UUID, int]]:
        """(topic id, partition) of the replicas that this node has and cannot serve."""
        here = self._directory.damaged.items()
        damaged = {(topic_id, partition) for (_topic, partition), topic_id in here if topic_id is not None}
        return damaged | self.hosted.offline()

    # ---- metadata ------------------------------------------------------------------------------------------

    def apply(self, assignments: Iterable[Assignment]) -> None:
        """Gives each replica the role, ISR and configuration of its newest assignment: opens, leads, follows
        or deletes it.  The module's docstring says in which order the node must call this."""
        self._upkeep.start()
        for assignment in (wanted := list(assignments)):
            held = self.hosted.get((assignment.topic, assignment.partition))
            if held is not None and held.topic_id != assignment.topic_id:
                self.delete(*held.key)  # the topic was deleted and created again under the same name
        ready = self._log_opener.ready(wanted)
        for assignment in ready:
            replica = self._replica_for(assignment)
            if replica is None:
                continue
            old = replica.assignment
            if assignment.pins != replica.log.pins:
                replica.log.keep(assignment.pins)
            change = replica.apply(assignment, now_s=self._clock.monotonic(), lag_max_s=self._lag_max_s)
            if assignment.config != old.config:
                replica.log.update_config(self._log_opener.log_config(assignment))
                # a stricter flush policy holds at once, also when no append comes
                self._flushes.start(replica)
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
        for replica in self.hosted:
            if replica.leader is not None and replica.leader.brokers_changed(nodes):
                self._progress(replica)
                self._isr_changes.news_of_followers(replica)

    def _replica_for(self, assignment: Assignment) -> Replica | None:
        """The assignment's replica, created when this node is one of its replicas; None when it is not, or
        the log does not open."""
        replica = self.hosted.get((assignment.topic, assignment.partition))
        if (
            replica is not None
            and replica.role is Role.OFFLINE
            and self._log_opener.may_set_aside(assignment)
        ):
            self.hosted.remove(replica)
            replica = None
        if replica is None and self.node_id in assignment.replicas:
            if (log := self._log_opener.open(assignment)) is None:
                return None
            replica = Replica(self.node_id, assignment, log, self._broker.eligibility_of)
            self.hosted.add(replica)
        return replica

    async def logs_made(self, timeout_s: float) -> None:
        """Waits for the logs that threads are creating now.  Raises TimeoutError."""
        await self._log_opener.settled(timeout_s)

    def delete(self, topic: str, partition: int, topic_id: UUID | None = None) -> None:
        """The partition was deleted or moved away: waiting requests get NOT_LEADER_OR_FOLLOWER, and the log
        is removed.  With `topic_id`, only when the replica is that topic's: a new topic may have the same
        name already."""
        self._log_opener.forget((topic, partition), topic_id)
        replica = self.hosted.get((topic, partition))
        if replica is None or topic_id not in (None, replica.topic_id):
            return
        self.hosted.remove(replica)
        was_leader = replica.is_leader
        replica.go_offline("the partition was deleted")
        self._fetchers.stop(replica)
        self._end_waiting(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if was_leader:
            self._listener.on_resigned(topic, partition, replica.leader_epoch)
        self._log_opener.remove((topic, partition))

    def _role_changed(self, replica: Replica) -> None:
        self._fetchers.stop(replica)
        self._end_waiting(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._role_lines.line(self._clock.monotonic(), replica.role.value, **replica.log_fields())
        if replica.role is Role.LEADER:
            self._listener.on_elected(replica.topic, replica.partition, replica.leader_epoch, replica.log)
            self._flushes.start(replica)
            self._progress(replica)
            return
        if replica.role is Role.FOLLOWER:
            self._fetchers.follow(replica)
        self._listener.on_resigned(replica.topic, replica.partition, replica.leader_epoch)

    def _end_waiting(self, replica: Replica, code: ErrorCode) -> None:
        for kind in self._waiting:
            kind.end(replica, code)

    def suspend_leadership(self, reason: str) -> None:
        """The session with the controller ended, and another node may lead now.  Nothing is appended until
        the session is renewed. Producers that wait for acks=all get NOT_LEADER_OR_FOLLOWER, also for
        committed records, and look for the leader; so do clients that delete records."""
        self.lease.suspend(reason, self.hosted.leader_count, self._clock.monotonic())
        for replica in self.hosted:
            if replica.is_leader:
                self._end_waiting(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def resume_leadership(self) -> None:
        """The session was renewed: this node leads again the partitions that the metadata gives it."""
        self.lease.resume(self.hosted.leader_count, self._clock.monotonic())
        self._delayed_produce.complete_all()

    # ---- writing -------------------------------------------------------------------------------------------

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
                self.take_offline(replica, OfflineCause.DISK_FAILED, str(error))
            raise
        if not info.duplicate:
            leader.on_append(log_end, self._clock.monotonic())
            replica.watchers.records_appended()
            self._flushes.start(replica)
            self._progress(replica)
        return info

    def _require_room(self, replica: Replica) -> None:
        """Raises KAFKA_STORAGE_ERROR when the disk is full except for the node's reserve."""
        if self._broker.is_out_of_room(replica.topic, replica.partition):
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
        self._delayed_produce.when_committed(
            self.hosted.get((topic, partition)), leader_epoch, next_offset, timeout_ms, callback
        )

    # ---- progress ------------------------------------------------------------------------------------------

    def _progress(self, replica: Replica) -> None:
        """A flush, a fetch or the ISR changed: moves the high watermark, completes acknowledgements, wakes
        fetches."""
        moved = replica.advance_high_watermark(self._clock.monotonic())
        if self._config.validate:
            self._validate(replica)
        if not moved or replica.leader is None:
            return
        self._delayed_produce.complete(replica)
        replica.watchers.high_watermark_moved()
        if not self._moved:
            asyncio.get_running_loop().call_soon(self._report_high_watermarks)
        self._moved.add(replica)

    def _validate(self, replica: Replica, *, whole: bool = False) -> None:
        try:
            replica.validate(whole=whole)
        except AssertionError as error:
            self._listener.on_failure(error)

    async def _flush_followed(self, replicas: Sequence[Replica]) -> None:
        """The replicas have appended what their leader sent."""
        if self._config.validate:
            for replica in replicas:
                self._validate(replica)
        await self._flushes.flush_followed(replicas)

    def _report_high_watermarks(self) -> None:
        moved, self._moved = self._moved, set()
        for replica in moved:
            if replica.is_leader and not self._is_closing:
                self._listener.on_high_watermark(replica.topic, replica.partition, replica.log.high_watermark)

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

    def _directory_failed(self, directory: LogDirectory, error: OSError) -> None:
        if self._previous_on_offline is not None:
            self._previous_on_offline(directory, error)
        for replica in self.hosted:
            if replica.log.is_offline:
                self.take_offline(replica, OfflineCause.DISK_FAILED, str(error))

    def _log_damaged(self, log: Log, error: CorruptLog) -> None:
        replica = self.hosted.get((log.topic, log.partition))
        if replica is not None and replica.log is log:
            self.take_offline(replica, OfflineCause.LOG_DAMAGED, str(error))

    def take_offline(self, replica: Replica, cause: OfflineCause, reason: str) -> None:
        """The replica is offline from now on, and requests get KAFKA_STORAGE_ERROR, also those that wait."""
        was_leader = replica.is_leader
        if replica not in self.hosted or not replica.go_offline(reason):
            return
        _log.error(
            "replica_offline",
            topic=replica.topic,
            partition=replica.partition,
            cause=cause.value,
            reason=reason,
        )
        self._fetchers.stop(replica)
        self._end_waiting(replica, ErrorCode.KAFKA_STORAGE_ERROR)
        if was_leader:
            self._listener.on_resigned(replica.topic, replica.partition, replica.leader_epoch)
        self._listener.on_offline(replica.topic, replica.partition, reason)

    # ---- reading -------------------------------------------------------------------------------------------

    async def fetch(
        self,
        request: FetchRequest,
        *,
        by_id: bool = False,
        turn: Any = nullcontext,
        may_read: MayRead = lambda _topic: True,
        owner: str = "",
    ) -> FetchResponse:
        """Answers a fetch of a client or a follower, waiting up to its `max_wait_ms`; see
        `ClientFetches.fetch`."""
        if request.replica_id >= 0:
            return await self._follower_fetches.fetch(request)
        return await self._client_fetches.fetch(
            request, by_id=by_id, turn=turn, may_read=may_read, owner=owner
        )

    def throttled_fetch(self, request: FetchRequest, *, by_id: bool, owner: str = "") -> FetchResponse:
        """See `ClientFetches.throttled`."""
        return self._client_fetches.throttled(request, by_id=by_id, owner=owner)

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
        return await self._deletions.delete_before(self.replica(topic, partition), before_offset, timeout_ms)

    def epoch_end(self, topic: str, partition: int, current_leader_epoch: int, epoch: int) -> EpochEnd:
        """Where `epoch` ends in this leader's log (OffsetForLeaderEpoch; docs/semantics.md E3).  Raises
        KafkaError."""
        replica = self.replica(topic, partition)
        replica.require_leader_at(current_leader_epoch)
        return replica.log.epoch_end(epoch)

    # ---- upkeep and the end --------------------------------------------------------------------------------

    def _maintain(self, replica: Replica) -> None:
        """From time to time: removes lagging followers from the ISR, sends a lost ISR change again, and moves
        a high watermark that a silent follower held back."""
        self._isr_changes.maintain(replica)
        self._progress(replica)
        if self._config.validate:
            self._validate(replica, whole=True)

    def _summarize_lines(self, now_s: float, *, at_once: bool = False) -> None:
        """Writes the log lines that count what had no line of its own."""
        self.lease.summarize(self.hosted.leader_count, now_s)
        for lines in (
            self._role_lines,
            self._isr_changes.lines,
            self._deletions.lines,
            *self._fetchers.lines(),
        ):
            lines.summarize(now_s, at_once=at_once)

    async def shutdown(self, clean: bool = True) -> None:
        """Stops every task and answers every waiting request; with `clean`, flushes the logs and writes the
        checkpoints."""
        self._is_closing = True
        self._flushes.close()
        self._upkeep.begin_close()
        self._summarize_lines(self._clock.monotonic(), at_once=True)
        await self._log_opener.close()
        await self._isr_changes.close()
        await self._fetchers.close()
        for replica in self.hosted:
            self._end_waiting(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._delayed_produce.close()
        if clean:
            await self._flushes.flush_followed(
                [replica for replica in self.hosted if replica.role is not Role.OFFLINE]
            )
        await self._upkeep.close()
        if clean:
            self._upkeep.write_checkpoints()
