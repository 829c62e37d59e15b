"""The transaction coordinator of this node: the shards on `__transaction_state`, their effects, and what
request handlers ask them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Final

from ...controller.state.cluster_state import ClusterState
from ...controller.state.model import metadata_level
from ...coordinator.running_shard import RuntimeConfig
from ...coordinator.runtime import CoordinatorRuntime
from ...coordinator.shard_view import ShardView
from ...coordinator.transaction.events import (
    CompleteHeld,
    MarkersWritten,
    NeedProducerIds,
    SendMarkers,
    TransactionConfig,
    TransactionEffect,
    TransactionEvent,
    TransactionReply,
)
from ...coordinator.transaction.job_events import CarryOutJob, ContinueJob
from ...coordinator.transaction.jobs import JobState, attempt_of
from ...coordinator.transaction.markers import MarkerBatch
from ...coordinator.transaction.shard import TransactionShard
from ...coordinator.transaction.state import TransactionPartition
from ...replication.manager import ReplicaManager
from ...runtime import logs
from ...runtime.clock import Clock
from ...runtime.tasks import OnFailure, log_failure, spawn
from ...storage.log.log import Log
from ...wire.errors import ErrorCode, KafkaError
from ..cluster.cluster_view import ClusterView
from ..cluster.internal_topics import TRANSACTION_STATE, transaction_partition_for
from ..cluster.peers import Peers
from ..lifecycle.broker_lifecycle import BrokerLifecycle
from ..observation.metrics import JobsView
from ..settings.configuration import Configuration
from .coordinator_host import CoordinatorHost, ReplicatedStateLog
from .marker_sender import Codes, MarkerSender
from .marker_writing import Marker, MarkerWrites
from .producer_ids import ProducerIds

log = logs.get(__name__)
_FILL_FAILED = log_failure("producer ids", consequence="the next InitProducerId asks again")

# Producer ids kept in memory, because a shard cannot wait for the controller.
PRODUCER_IDS_AT_HAND: Final = 50
COMPLETION_WAIT_MS: Final = 1000


class TransactionCoordination:
    """The shards of this node's transaction coordinator, their host, and the effects they ask for.
    Everything runs on the node's loop.  `new_writes()` makes a batch of markers for the partitions that this
    node leads."""

    def __init__(
        self,
        configuration: Configuration,
        cluster: ClusterView,
        replicas: ReplicaManager,
        lifecycle: BrokerLifecycle,
        producer_ids: ProducerIds,
        peers: Peers,
        new_writes: Callable[[], MarkerWrites],
        clock: Clock,
        on_failure: OnFailure,
        on_invalid: Callable[[AssertionError], None] | None = None,
    ) -> None:
        """`on_failure(error)`: a defect ended a task.  `on_invalid(error)`: the shards look at their
        invariants, and one does not hold."""
        self._cluster = cluster
        self._replicas = replicas
        self._fresh_ids = producer_ids
        self._new_writes = new_writes
        self._clock = clock
        self._config = TransactionConfig(
            max_timeout_ms=configuration.integer("transaction.max.timeout.ms"),
            expiration_ms=configuration.integer("transactional.id.expiration.ms"),
            timeout_scan_interval_ms=configuration.integer(
                "transaction.abort.timed.out.transaction.cleanup.interval.ms"
            ),
            completion_wait_ms=COMPLETION_WAIT_MS,
            max_producer_epoch=configuration.integer("transaction.max.producer.epoch"),
            job_retention_ms=configuration.integer("job.retention.ms"),
        )
        runtime: CoordinatorRuntime[TransactionEvent, TransactionReply, TransactionEffect] = (
            CoordinatorRuntime(
                TRANSACTION_STATE,
                lambda partition, epoch: TransactionShard(
                    self._config,
                    self._take_producer_id,
                    epoch,
                    partial(self._is_only_replica, partition),
                    lambda: metadata_level(cluster.state.features),
                ),
                ReplicatedStateLog(TRANSACTION_STATE, replicas),
                self._execute,
                config=RuntimeConfig(validate=on_invalid is not None),
                on_failed=self._on_failed,
                on_invalid=on_invalid,
                steady_ms=clock.steady_ms,
            )
        )
        self._host = CoordinatorHost(
            TRANSACTION_STATE,
            runtime,
            clock,
            holds_session=lambda: lifecycle.holds_session,
            leads=lambda partition: cluster.leads(TRANSACTION_STATE, partition),
            on_failure=on_failure,
        )
        topics = Topics(lambda: cluster.state, lambda: cluster.serving)
        self._markers = MarkerSender(
            topics, peers, clock, self._markers_written, cluster.node_id, self._write_markers_here, on_failure
        )
        self._producer_ids: deque[int] = deque()
        self._jobs_decided = dict.fromkeys(JobState, 0)
        self._refill: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._host.start()
        self._markers.start()

    async def stop(self) -> None:
        if self._refill is not None:
            self._refill.cancel()
        await self._markers.stop()
        await self._host.stop()

    # --- leadership -----------------------------------------------------------------------------------------

    def on_elected(self, partition: int, leader_epoch: int, replica_log: Log) -> None:
        """The replica manager's: this node leads the state partition in `leader_epoch`."""
        # those of an earlier leadership: the shard finds the pending ones in its log
        self._markers.cancel(partition)
        self._host.on_elected(partition, leader_epoch, replica_log)
        self._refill_producer_ids()

    def on_resigned(self, partition: int, leader_epoch: int) -> None:
        self._host.on_resigned(partition, leader_epoch)
        self._markers.cancel(partition)

    def _on_failed(self, partition: int, leader_epoch: int, reason: str) -> None:
        # the shard that is loaded next finds its decided transactions in the log
        self._markers.cancel(partition)
        self._host.on_failed(partition, leader_epoch, reason)

    def on_high_watermark(self, partition: int, offset: int) -> None:
        self._host.on_high_watermark(partition, offset)

    # --- questions ------------------------------------------------------------------------------------------

    async def ask(self, transactional_id: str, event: TransactionEvent) -> Any:
        """Submits to the shard of `transactional_id`; raises KafkaError (NOT_COORDINATOR, ...)."""
        partitions = await self._cluster.state_partitions(TRANSACTION_STATE)
        return await self._host.ask_partition(transaction_partition_for(transactional_id, partitions), event)

    async def ask_partition(self, partition: int, event: TransactionEvent) -> Any:
        """Submits to the shard of a state partition; raises KafkaError (NOT_COORDINATOR, ...)."""
        return await self._host.ask_partition(partition, event)

    async def ask_all(self, event: TransactionEvent) -> list[Any]:
        """Asks every active shard of this node; raises when one is missing.  A tool would abort as hanging
        (KIP-664) a transaction that no coordinator lists."""
        return list(await self._host.ask_all(event, whole=True))

    def partition(self, topic: str, index: int) -> TransactionPartition:
        """The partition with its topic id, which a later topic of the same name does not have."""
        found = self._cluster.state.topics.get(topic)
        return TransactionPartition(topic, index, found.topic_id if found else None)

    def refusals(self, wanted: Collection[tuple[str, int]]) -> dict[tuple[str, int], ErrorCode]:
        """Empty when the transaction may have all of these partitions; else a code for each, because the
        coordinator adds all or none.  A transaction with a partition that does not exist could never
        complete, and the shard does not expect a marker in its own log."""
        topics = self._cluster.state.topics
        bad = {
            (topic, index): ErrorCode.INVALID_TOPIC_EXCEPTION
            if topic == TRANSACTION_STATE
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for topic, index in wanted
            if topic == TRANSACTION_STATE or topic not in topics or index not in topics[topic].partitions
        }
        return dict.fromkeys(wanted, ErrorCode.OPERATION_NOT_ATTEMPTED) | bad if bad else {}

    @property
    def shards(self) -> Iterable[TransactionShard]:
        return self._host.shards(TransactionShard)

    def views(self) -> Iterable[ShardView]:
        """The state of all shards, for /metrics."""
        return self._host.runtime.views()

    def jobs(self) -> JobsView:
        """Of the shards on this node, and what they have decided since its start."""
        began_ms = (
            shard.transactions[name].start_ms
            for shard in self.shards
            for name in (*shard.ongoing, *shard.prepared)
            if attempt_of(name) is not None
        )
        now_ms = self._clock.wall_ms()
        return JobsView(
            open=sum(len(shard.jobs.book.open) for shard in self.shards),
            oldest_open_s=max(0.0, (now_ms - min(began_ms, default=now_ms)) / 1000),
            committed=self._jobs_decided[JobState.COMMITTED],
            aborted=self._jobs_decided[JobState.ABORTED],
        )

    @property
    def markers_abandoned(self) -> int:
        return self._markers.cancelled

    def _is_only_replica(self, partition: int) -> bool:
        try:
            assignment = self._replicas.replica(TRANSACTION_STATE, partition).assignment
        except KafkaError:
            return False
        return set(assignment.replicas) == {self._cluster.node_id}

    # --- effects --------------------------------------------------------------------------------------------

    def _execute(self, partition: int, leader_epoch: int, effect: TransactionEffect) -> None:
        match effect:
            case SendMarkers():
                self._markers.send(partition, effect)
            case NeedProducerIds():
                self._refill_producer_ids()
            case ContinueJob():
                if effect.decided is not None:
                    self._jobs_decided[effect.decided] += 1
                self._host.runtime.submit(partition, CarryOutJob(effect.job), None)
            case CompleteHeld():
                for event in effect.events:
                    self._markers_written(partition, event)

    def _markers_written(self, state_partition: int, event: MarkersWritten) -> None:
        self._host.runtime.submit(state_partition, event, None)

    async def _write_markers_here(self, batch: MarkerBatch) -> Codes:
        if not self._cluster.serving:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "this node is still starting")
        writes = self._new_writes()
        for entry in batch.transactions:
            send = entry.send
            marker = Marker(
                send.producer_id,
                send.producer_epoch,
                send.coordinator_epoch,
                send.commit,
                send.transaction_version,
            )
            for partition in entry.partitions:
                writes.append(marker, partition.topic, partition.partition)
        await writes.all_known()
        return writes.codes

    # --- producer ids ---------------------------------------------------------------------------------------

    def _take_producer_id(self) -> int | None:
        if len(self._producer_ids) <= PRODUCER_IDS_AT_HAND // 2:
            self._refill_producer_ids()
        return self._producer_ids.popleft() if self._producer_ids else None

    def _refill_producer_ids(self) -> None:
        if self._refill is None or self._refill.done():
            self._refill = spawn(self._fill(), "producer ids", _FILL_FAILED)

    async def _fill(self) -> None:
        try:
            while len(self._producer_ids) < PRODUCER_IDS_AT_HAND:
                self._producer_ids.append(await self._fresh_ids.next())
        except KafkaError as error:
            log.warning("no_producer_ids", error=error)  # the next InitProducerId asks again


class Topics:
    """The marker sender's view of the metadata.

    Markers go by the topic's name, as the request for them does.  When a topic was deleted and created again,
    a marker meant for the old one goes to the new one of its name: a coordinator whose metadata lags enlists
    the old id for a partition of the new topic, whose leader must not wait for a marker for ever; where
    nothing is open a marker ends nothing.
    """

    def __init__(self, state: Callable[[], ClusterState], serving: Callable[[], bool]) -> None:
        self._state = state
        self._serving = serving

    def leader_of(self, partition: TransactionPartition) -> int | None:
        topic = self._state().topics.get(partition.topic)
        found = topic.partitions.get(partition.partition) if topic is not None else None
        return found.leader if found is not None and found.leader >= 0 else None

    def is_gone(self, partition: TransactionPartition) -> bool:
        """The topic was deleted, and no topic of its name has this partition now.

        Its id is absent, and this node's metadata is newer than every enlistment in its queue: an enlistment
        made here took the id from this very metadata; one made by an earlier coordinator took it from
        metadata older than the election of this one (a coordinator that applies the election of its successor
        enlists nothing more), and this node has applied its election.
        """
        state = self._state()
        if (
            not self._serving()
            or partition.topic_id is None
            or state.topic_by_id(partition.topic_id) is not None
        ):
            return False
        topic = state.topics.get(partition.topic)
        return topic is None or partition.partition not in topic.partitions
