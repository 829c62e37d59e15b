"""One broker as its request handlers see it: the metadata, the replicas, the coordinators, and the way to the controller.

The broker acts only on metadata that it has applied itself, in order (DESIGN 4).  Everything here runs on the node's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from ..controller.client import ControllerClient
from ..controller.features import check_known
from ..controller.metadata_follower import MetadataFollower
from ..controller.model import RESOURCES_LEVEL, ApplyResult, TopicState, metadata_level
from ..controller.reachability import Life
from ..controller.state import ClusterState
from ..proto import controller_pb2 as pb
from ..replication.assignment import Assignment, Eligibility, IsrChange, IsrResult
from ..replication.leader import REFUSED
from ..replication.manager import ReplicaManager
from ..runtime import logs
from ..runtime.clock import Clock
from ..storage.data_folders import DataFolders
from ..wire.api import ApiKey
from ..wire.errors import ErrorCode, KafkaError
from . import internal_topics
from .batch_threads import BatchThreads
from .client_metrics import ClientMetrics
from .configuration import Configuration
from .described_topics import DescribedTopics
from .disk_reserve import DiskReserves
from .group_coordination import GroupCoordination
from .membership import Membership
from .metrics import Metrics
from .producer_ids import ProducerIds
from .reachability import Asked, Question, ReachedBy
from .refused_batches import RefusedBatches
from .run_time_settings import RunTimeSettings
from .transaction_coordination import TransactionCoordination
from .transaction_enlistment import TransactionEnlistment

log = logs.get(__name__)

# How long a request waits for a topic that it just caused to be created to become known here.
TOPIC_WAIT_S: Final = 5.0
# How long a coordinator waits to hear of the state topic whose creation sent the client here.
STATE_TOPIC_WAIT_S: Final = 1.0
# Replicas that could not be opened (a full disk) are tried again, ever more rarely.
OPEN_PAUSE_FIRST_S: Final = 2.0
OPEN_PAUSE_MAX_S: Final = 300.0
CLIENT_METRICS: Final = frozenset((ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY))


class Broker:
    """The parts are made by `node.py` and set once before the first request."""

    replicas: ReplicaManager
    transactions: TransactionCoordination
    groups: GroupCoordination
    enlistment: TransactionEnlistment
    membership: Membership
    metrics: Metrics
    metadata: MetadataFollower
    directory: DataFolders
    reserves: DiskReserves
    batch_threads: BatchThreads

    def __init__(self, configuration: Configuration, clock: Clock, controller: ControllerClient) -> None:
        self.configuration = configuration
        self.clock = clock
        self.controller = controller
        self.node_id = configuration.node_id
        self.producer_ids = ProducerIds(self._allocate_producer_ids)
        self.refused_batches = RefusedBatches()
        self.reached_by = ReachedBy()
        self.brokers_changed: Callable[[], None] = lambda: None
        self.client_metrics = ClientMetrics()
        self.described_topics = DescribedTopics()
        self.handled_keys: frozenset[int] = frozenset()
        self.settings = RunTimeSettings(configuration)
        self.on_settings: Callable[[RunTimeSettings], None] = lambda _settings: None
        self._creating: dict[str, asyncio.Task[TopicState]] = {}
        self._serving_since_index: int | None = None
        self._unopened: set[tuple[str, int]] = set()
        self._open_pause_s = OPEN_PAUSE_FIRST_S
        self._open_again_at_s = 0.0

    @property
    def announced_keys(self) -> frozenset[int]:
        """The requests that clients are told of now: client metrics only while there is a subscription to them, or by setting."""
        always = self.configuration.flag("client.metrics.always.announced")
        if always or self.client_metrics.has_subscriptions(self.state.resource_configs):
            return self.handled_keys
        return self.handled_keys - CLIENT_METRICS

    # --- metadata ---------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        return self.metadata.state

    @property
    def metadata_index(self) -> int:
        return self.metadata.applied_index

    @property
    def controller_id(self) -> int:
        return -1 if self.controller.active_id is None else self.controller.active_id

    def rack_of(self, node_id: int) -> str:
        """The rack of a broker that is up; empty when it has none."""
        broker = self.state.brokers.get(node_id)
        return "" if broker is None or broker.fenced else broker.rack

    def on_metadata(self, state: ClusterState, result: ApplyResult) -> None:
        """Called once for every applied entry, in order.  Nothing is acted on before this life's own registration: older
        metadata may name this node leader by what its former life had.  Raises UnknownLevel when the cluster has agreed on
        what this version does not know."""
        check_known(self.node_id, state.features)
        if result.changed_brokers or result.from_snapshot:
            self.brokers_changed()
        epoch = self.membership.broker_epoch
        if epoch < 0 or state.index < epoch:
            return
        topics_inherit_anew = self._take_up_settings(state)
        if self._serving_since_index is None:
            self._serving_since_index = state.index
            self.groups.topics_changed()  # since a heartbeat that came before this node served
            self._delete_what_is_not_ours(state)
            topics = state.topics.values()
            self.directory.expect((t.name, n) for t in topics for n, p in t.partitions.items() if self.node_id in p.replicas)
            self.replicas.apply(self._assignments(state, ((t.name, p) for t in state.topics.values() for p in t.partitions)))
            return
        for topic in result.deleted_topics:
            self.settings.forget_topic(topic.name)
            for partition in topic.partitions:
                self.replicas.delete(topic.name, partition, topic.topic_id)
        if result.deleted_topics or result.changed_topics:
            self.groups.topics_changed()
        if result.deleted_topics:
            self.groups.topics_deleted(topic.name for topic in result.deleted_topics)
        changed = set(result.changed_partitions)
        for name in result.changed_topics:
            found = state.topics.get(name)
            if found is not None:
                changed.update((name, partition) for partition in found.partitions)
        if topics_inherit_anew:
            changed.update((topic.name, partition) for topic in state.topics.values() for partition in topic.partitions)
        if changed:
            self.replicas.apply(self._assignments(state, sorted(changed)))
        if result.changed_brokers or result.from_snapshot:
            self.replicas.brokers_changed(state.brokers if result.from_snapshot else result.changed_brokers)

    def isr_eligibility(self, topic_id: UUID, partition: int, node_id: int, broker_epoch: int) -> Eligibility:
        """As the controller judges a follower that is to join an ISR, in the metadata that this node has."""
        follower = self.state.brokers.get(node_id)
        if follower is None:
            return Eligibility.NOT_NOW
        if 0 <= broker_epoch < follower.broker_epoch:
            return Eligibility.NEVER
        if broker_epoch > follower.broker_epoch:
            return Eligibility.NOT_NOW
        if follower.shutting_down:  # which stays so for the rest of this life
            return Eligibility.NEVER
        offline = (topic_id.bytes, partition) in follower.offline_replicas
        return Eligibility.NOT_NOW if follower.fenced or offline else Eligibility.YES

    def _take_up_settings(self, state: ClusterState) -> bool:
        """What was changed at run time; True when topics inherit something else from now on."""
        if not self.settings.update(state.node_configs):
            return False
        self.replicas.change_limits(self.settings.replication_limits())
        self.on_settings(self.settings)
        return self.settings.update_topics(state.node_configs)

    def setting(self, name: str) -> int:
        """A number that may change while the node runs."""
        return self.settings.number(name)

    def asked_who_this_is(self, question: Question) -> bool:
        """Another broker has found this one, if it is the one that was meant."""
        own_life = self.node_id, self.membership.broker_epoch
        asked = self.reached_by.asked(question, own_life, self._is_registered)
        if asked is Asked.NOTED and question.asker[0] in self.membership.not_reached_by:
            self.membership.beat_soon()
        return asked is not Asked.REFUSED

    def _is_registered(self, life: Life) -> bool:
        broker = self.state.brokers.get(life[0])
        return broker is not None and broker.broker_epoch == life[1]

    @property
    def serving(self) -> bool:
        """The metadata was applied up to this life's registration."""
        return self._serving_since_index is not None

    def in_sync_everywhere(self) -> bool:
        """Every partition that is kept here and has a leader counts this node among its in-sync replicas.  One that only moves
        here does not count: that may take long, and nothing relies on this node yet."""
        return all(
            self.node_id in partition.isr
            for topic in self.state.topics.values()
            for partition in topic.partitions.values()
            if self.node_id in partition.settled_replicas and partition.leader >= 0
        )

    def _assignments(self, state: ClusterState, keys: Iterable[tuple[str, int]]) -> list[Assignment]:
        found = []
        for name, index in keys:
            topic = state.topics.get(name)
            partition = topic.partitions.get(index) if topic else None
            if topic is None or partition is None:
                continue  # deleted by a later entry of the same step
            found.append(
                Assignment(
                    topic=name,
                    topic_id=topic.topic_id,
                    partition=index,
                    replicas=partition.replicas,
                    isr=partition.isr,
                    leader=partition.leader,
                    leader_epoch=partition.leader_epoch,
                    partition_epoch=partition.partition_epoch,
                    config=self.settings.topic_config(topic),
                    elr=partition.elr,
                    adding=partition.adding,
                )
            )
        return found

    def replica_offline(self, topic: str, partition: int) -> None:
        """A replica could not be opened, or its disk failed; only the former can be helped by trying again."""
        if not self._unopened:
            self._open_pause_s = OPEN_PAUSE_FIRST_S
            self._open_again_at_s = self.clock.monotonic() + self._open_pause_s
        self._unopened.add((topic, partition))
        self.membership.beat_soon()

    def offline_replicas(self) -> set[tuple[bytes, int]]:
        """(topic id, partition) of what this node holds and cannot serve: the controller lets others lead."""
        found = {(topic_id.bytes, partition) for topic_id, partition in self.replicas.offline_replicas()}
        for name, partition in self._unopened:
            topic = self.state.topics.get(name)
            if topic is not None and partition in topic.partitions and not self._is_open(name, partition):
                found.add((topic.topic_id.bytes, partition))
        return found

    def damaged_replicas(self) -> set[tuple[bytes, int]]:
        """Of the offline ones, those whose flushed records are not what they were, or nobody knows whose they are."""
        found = set()
        for (name, partition), topic_id in self.directory.damaged.items():
            topic = self.state.topics.get(name)
            if topic_id is None and topic is not None and partition in topic.partitions:
                topic_id = topic.topic_id  # the one that cannot be served from here
            if topic_id is not None:
                found.add((topic_id.bytes, partition))
        return found

    def is_out_of_room(self, topic: str, partition: int) -> bool:
        """The disk of this replica is full: what clients would write takes what the node itself needs."""
        folder = self.directory.folder_of(topic, partition) if self.reserves.given_up else None
        return folder is not None and self.reserves.given_up_at(folder.path)

    def _is_open(self, topic: str, partition: int) -> bool:
        try:
            return not self.replicas.replica(topic, partition).log.is_offline
        except KafkaError:
            return False

    def open_again(self) -> None:
        """Called from time to time: takes up what the metadata gives this node and what it could not open so far."""
        if not self._unopened or self.clock.monotonic() < self._open_again_at_s:
            return
        wanted, self._unopened = self._unopened, set()
        pause_s = min(2 * self._open_pause_s, OPEN_PAUSE_MAX_S)
        self.replicas.apply(self._assignments(self.state, sorted(wanted)))
        if self._unopened:
            self._open_pause_s = pause_s
            self._open_again_at_s = self.clock.monotonic() + pause_s

    def _delete_what_is_not_ours(self, state: ClusterState) -> None:
        """Logs of topics that were deleted, and of partitions that moved away, while this node was down."""
        for (name, partition), topic_id in list(self.directory.topic_ids.items()):
            topic = state.topics.get(name)
            if topic is None or topic.topic_id != topic_id:
                log.info("log_of_deleted_topic_removed", topic=name, partition=partition, topic_id=topic_id)
                self.directory.delete(name, partition)
            elif partition in topic.partitions and self.node_id not in topic.partitions[partition].replicas:
                log.info("log_that_moved_away_removed", topic=name, partition=partition, topic_id=topic_id)
                self.directory.delete(name, partition)

    # --- calls to the controller ----------------------------------------------------------------------------------------

    async def alter_partitions(self, changes: list[IsrChange]) -> AsyncIterator[Sequence[IsrResult]]:
        """The ISR changes that the leaders on this node ask for.

        An answer is given only when this node has applied all that the controller had: an ISR must not count together with an
        older min.insync.replicas, or this leader would acknowledge what an eligible successor lacks (KIP-966).  A refusal leaves
        the leader with the ISR that it counted with before it asked, and waits for nothing.
        """
        request = pb.AlterPartitionsRequest(node_id=self.node_id, broker_epoch=self.membership.broker_epoch)
        for change in changes:
            request.changes.add(
                topic_id=change.topic_id.bytes,
                partition=change.partition,
                leader_epoch=change.leader_epoch,
                partition_epoch=change.partition_epoch,
                isr=[member.node_id for member in change.isr],
                isr_broker_epochs=[member.broker_epoch for member in change.isr],
            )
        reply = await self.controller.alter_partitions(request)
        results = [
            IsrResult(
                topic=change.topic,
                partition=change.partition,
                error=ErrorCode(view.error),
                leader=view.leader,
                leader_epoch=view.leader_epoch,
                partition_epoch=view.partition_epoch,
                isr=tuple(view.isr),
            )
            for change, view in zip(changes, reply.partitions, strict=True)
        ]
        yield [result for result in results if result.error in REFUSED]
        others = [result for result in results if result.error not in REFUSED]
        if others:
            await self.metadata.wait_for_index(reply.metadata_index, TOPIC_WAIT_S)  # TimeoutError: asked again
            yield others

    async def _allocate_producer_ids(self) -> tuple[int, int]:
        request = pb.AllocateProducerIdsRequest(node_id=self.node_id, broker_epoch=self.membership.broker_epoch)
        reply = await self.controller.allocate_producer_ids(request, timeout_s=10.0)
        return reply.first_id, reply.count

    async def create_topics(self, request: pb.CreateTopicsRequest, timeout_s: float) -> pb.CreateTopicsReply:
        """Creates topics and waits until this node knows them."""
        reply = await self.controller.create_topics(request, timeout_s)
        if not request.validate_only:
            await self.wait_for_metadata(reply.metadata_index)
        return reply

    async def wait_for_metadata(self, index: int) -> None:
        """So that whoever changed the metadata through this node can read the change from it, and write to what was created."""
        try:
            await self.metadata.wait_for_index(index, TOPIC_WAIT_S)
            await self.replicas.logs_made(TOPIC_WAIT_S)
        except TimeoutError:
            log.warning("metadata_lags", wanted=index, applied=self.metadata_index)

    async def auto_create(self, name: str) -> ErrorCode:
        """A client asked for a topic that does not exist; creates it when that is configured."""
        if name in internal_topics.INTERNAL_TOPICS or not self.configuration.flag("auto.create.topics.enable"):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            await self._create_once(name)
        except KafkaError as error:
            return error.code
        return ErrorCode.LEADER_NOT_AVAILABLE  # the client asks again and finds it

    async def ensure_internal_topic(self, name: str) -> TopicState:
        """A state topic, created at its first use.  Raises KafkaError when it cannot be created now."""
        return self.state.topics.get(name) or await self._create_once(name)

    async def _create_once(self, name: str) -> TopicState:
        """Concurrent requests for one topic share one creation."""
        task = self._creating.get(name)
        if task is None:
            task = asyncio.create_task(self._create(name), name=f"create {name}")
            self._creating[name] = task
            task.add_done_callback(lambda _done: self._creating.pop(name, None))
        return await asyncio.shield(task)

    async def _create(self, name: str) -> TopicState:
        internal = name in internal_topics.INTERNAL_TOPICS
        if internal:
            partitions, replicas, config = internal_topics.settings(name, self.configuration)
        else:
            partitions, config = self.configuration.integer("num.partitions"), self.new_topic_config({})
            replicas = self.configuration.integer("default.replication.factor")
        request = pb.CreateTopicsRequest(allow_internal=internal)
        request.topics.add(name=name, partitions=partitions, replication_factor=replicas, config=config)
        reply = await self.create_topics(request, timeout_s=10.0)
        result = reply.topics[0]
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise KafkaError(ErrorCode(result.error), result.message)
        found = self.state.topics.get(name)
        if found is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{name} was created but is not known here yet")
        return found

    async def state_partitions(self, topic: str) -> int:
        """How many partitions a state topic has.  Raises COORDINATOR_NOT_AVAILABLE when this node does not come to know it: the
        client that asks here was sent by a node that does, and metadata are on their way."""
        deadline_s = self.clock.monotonic() + STATE_TOPIC_WAIT_S
        while (count := self.partition_count(topic)) == 0:
            try:
                await self.metadata.wait_for_index(self.metadata_index + 1, deadline_s - self.clock.monotonic())
            except TimeoutError:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic} does not exist yet") from None
        return count

    def leads(self, topic: str, partition: int) -> bool:
        """By the metadata as applied here, which may be ahead of the logs that are being made."""
        found = self.state.topics.get(topic)
        place = found.partitions.get(partition) if found is not None and self.serving else None
        return place is not None and place.leader == self.node_id

    def new_topic_config(self, given: Mapping[str, str]) -> dict[str, str]:
        """The configuration of a new topic.  As long as the cluster has no min.insync.replicas of its own, that of this node's
        file is written into the topic, so that all nodes mean the same by it (`controller/topic_defaults.py`)."""
        if metadata_level(self.state.features) >= RESOURCES_LEVEL:
            return dict(given)
        return {"min.insync.replicas": str(self.configuration.integer("min.insync.replicas")), **given}

    def topic_name(self, topic_id: UUID) -> str | None:
        topic = self.state.topic_by_id(topic_id)
        return topic.name if topic else None

    def partition_count(self, topic: str) -> int:
        """0 when the topic does not exist."""
        found = self.state.topics.get(topic)
        return len(found.partitions) if found else 0
