"""The group coordinator of this node: the shards on `__consumer_offsets`, and what request handlers ask
them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from ...controller.state.model import GROUP_VERSION, RESOURCES_LEVEL, metadata_level
from ...controller.state.resource_settings import CONSUMER_HEARTBEAT, CONSUMER_SESSION, ResourceType
from ...coordinator.group.classic.events import ClassicGroupConfig
from ...coordinator.group.consumer.events import ConsumerGroupConfig, TopicShape
from ...coordinator.group.consumer.groups import patterns
from ...coordinator.group.consumer.patterns import (
    MatchedTopics,
    UnsupportedPattern,
    is_former_pattern,
    topic_pattern,
)
from ...coordinator.group.events import GroupConfig, GroupEvent, GroupReply, TopicsDeleted
from ...coordinator.group.policy import MigrationPolicy
from ...coordinator.group.shard import GroupShard
from ...coordinator.outcome import ProducerIdentity
from ...coordinator.running_shard import RuntimeConfig
from ...coordinator.runtime import CoordinatorRuntime
from ...coordinator.shard_view import Phase, ShardView
from ...replication.manager import ReplicaManager
from ...runtime import logs
from ...runtime.clock import Clock
from ...runtime.tasks import OnFailure, log_failure, spawn
from ...runtime.turns import LoopTurns
from ...storage.log.log import Log
from ...wire.errors import ErrorCode, KafkaError
from ..cluster.cluster_view import ClusterView
from ..cluster.internal_topics import CONSUMER_OFFSETS, INTERNAL_TOPICS, partition_for
from ..lifecycle.broker_lifecycle import BrokerLifecycle
from ..settings.configuration import Configuration
from .coordinator_host import CoordinatorHost, ReplicatedStateLog

log = logs.get(__name__)
_LOOK_FAILED = log_failure("match topics", consequence="the next heartbeat with a pattern goes on")

# How long the partition leader waits for a marker to be committed; then the transaction coordinator sends it
# again.
MARKER_WAIT_S = 30.0
PATTERNS_S: Final = 0.002
"""The time in one turn of the loop for matching patterns; a hostile pattern may take 1.5 ms for a single
topic name."""
PATTERN_SHOWN_MAX: Final = 200
LOOKS_IN_A_ROW: Final = 16
"""So many turns of the loop match one pattern, which is compiled once for all of them, before the next
pattern has its turn."""
LEARNERS_MAX: Final = 1_000
"""Heartbeats that may wait for their patterns at the same time."""
PATTERNS_IN_USE_MAX: Final = 10_000
"""The coordinator rejects a new pattern beyond these: each keeps a reference for each topic that it
matches."""


def check_consumer_groups_enabled(cluster: ClusterView) -> None:
    """Raises KafkaError UNSUPPORTED_VERSION until the cluster's `group.version` allows consumer groups:
    before, a node that cannot read their records may become the coordinator."""
    if cluster.state.features.get(GROUP_VERSION, 0) < 1:
        message = f"{GROUP_VERSION} is 0, consumer groups need 1: `tidegate features upgrade`"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)


class ClusterTopics:
    """The topics of the metadata, as the group shards see them.  One task matches the topics with the groups'
    patterns, one pattern after another, and uses at most `PATTERNS_S` of a turn of the loop."""

    def __init__(
        self, cluster: ClusterView, patterns_in_use: Callable[[], Iterable[str]], now: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self.version = 0
        self._patterns_in_use = patterns_in_use
        self._matched = MatchedTopics(self._in_use)
        self._names_seen = (-1, 0)
        self._turns = LoopTurns(now, PATTERNS_S)
        self._account = self._turns.account()
        # pattern -> the heartbeats that wait until it is whole
        self._queue: dict[str, list[asyncio.Future[None]]] = {}
        self._learners: Counter[str] = Counter()
        self._work: asyncio.Task[None] | None = None

    def shapes(self, names: Iterable[str]) -> dict[str, TopicShape]:
        topics = self._cluster.state.topics
        return {
            name: TopicShape(topics[name].topic_id, len(topics[name].partitions))
            for name in names
            if name in topics
        }

    def _in_use(self) -> set[str]:
        return {*self._patterns_in_use(), *self._queue, *self._learners}

    def _has_room(self, pattern: str) -> bool:
        if self._matched.knows(pattern) or self._matched.count < PATTERNS_IN_USE_MAX:
            return True
        self._matched.forget()
        return self._matched.count < PATTERNS_IN_USE_MAX or pattern in self._in_use()

    def _is_whole(self, pattern: str) -> bool:
        topics = self._cluster.state.topics
        if self._names_seen != (self.version, len(topics)):
            self._names_seen = (self.version, len(topics))
            self._matched.set_names(name for name in topics if name not in INTERNAL_TOPICS)
        return self._matched.is_complete(pattern)

    def matching(self, pattern: str) -> Iterable[str] | None:
        """The topics that the pattern of an existing group matches; None until every topic has been
        matched."""
        if not self._is_whole(pattern):
            self._enqueue(pattern)
        return self._matched.matching(pattern)

    async def learn(self, pattern: str) -> None:
        """Returns when every topic has been matched with the pattern.  Raises UnsupportedPattern, and
        KafkaError COORDINATOR_LOAD_IN_PROGRESS when too many heartbeats wait for patterns, or the groups have
        too many patterns."""
        topic_pattern(pattern)
        if self._is_whole(pattern):
            return
        if self._learners.total() >= LEARNERS_MAX:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "too many patterns are being held against the topics"
            )
        if not self._has_room(pattern):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the groups have too many patterns")
        whole = asyncio.get_running_loop().create_future()
        self._enqueue(pattern).append(whole)
        self._learners[pattern] += 1
        try:
            await whole
        finally:
            self._learners -= Counter((pattern,))

    def _enqueue(self, pattern: str) -> list[asyncio.Future[None]]:
        if self._work is None or self._work.done():
            self._work = spawn(self._look(), "match topics", _LOOK_FAILED)
        return self._queue.setdefault(pattern, [])

    async def _look(self) -> None:
        looks = 0
        while self._queue:
            pattern = next(iter(self._queue))
            if not self._turns.admits():
                await self._turns.wait(self._account)
            begun = self._turns.begin()
            try:
                whole = self._is_whole(pattern) or self._matched.match_more(pattern, self._turns.has_time)
            except Exception as error:  # only the heartbeats with this pattern fail
                log.exception("pattern_not_learned", pattern=pattern[:PATTERN_SHOWN_MAX])
                for each in self._queue.pop(pattern):
                    if not each.done():
                        each.set_exception(
                            KafkaError(
                                ErrorCode.UNKNOWN_SERVER_ERROR, f"the pattern was not learned: {error!r}"
                            )
                        )
                continue
            finally:
                self._turns.end(self._account, begun)
            looks += 1
            if not whole and looks < LOOKS_IN_A_ROW:
                continue
            looks, waiting = 0, self._queue.pop(pattern)
            if not whole:
                self._queue[pattern] = waiting  # behind the others: an expensive pattern does not delay them
                continue
            for each in waiting:
                if not each.done():
                    each.set_result(None)

    async def stop(self) -> None:
        waiting = [each for futures in self._queue.values() for each in futures]
        self._queue.clear()
        for each in waiting:
            if not each.done():
                each.set_exception(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the node stops"))
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)


class GroupCoordination:
    """The shards of this node's group coordinator and their host.  Everything runs on the node's loop."""

    def __init__(
        self,
        configuration: Configuration,
        cluster: ClusterView,
        replicas: ReplicaManager,
        lifecycle: BrokerLifecycle,
        clock: Clock,
        on_failure: OnFailure,
        on_invalid: Callable[[AssertionError], None] | None = None,
    ) -> None:
        """`on_failure(error)`: a defect ended a task.  `on_invalid(error)`: the shards look at their
        invariants, and one does not hold."""
        self._cluster = cluster
        self._clock = clock
        self._config = GroupConfig(
            classic=ClassicGroupConfig(
                initial_rebalance_delay_ms=configuration.integer("group.initial.rebalance.delay.ms"),
                min_session_timeout_ms=configuration.integer("group.min.session.timeout.ms"),
                max_session_timeout_ms=configuration.integer("group.max.session.timeout.ms"),
                max_size=configuration.integer("group.max.size"),
            ),
            offset_metadata_max_bytes=configuration.integer("offset.metadata.max.bytes"),
            offsets_retention_ms=configuration.integer("offsets.retention.minutes") * 60_000,
            migration_policy=MigrationPolicy(configuration.text("group.consumer.migration.policy").lower()),
            consumer=ConsumerGroupConfig(
                session_timeout_ms=configuration.integer("group.consumer.session.timeout.ms"),
                heartbeat_interval_ms=configuration.integer("group.consumer.heartbeat.interval.ms"),
                max_size=configuration.integer("group.consumer.max.size"),
                assignors=configuration.texts("group.consumer.assignors"),
                assignment_interval_ms=configuration.integer("group.consumer.assignment.interval.ms"),
            ),
        )
        self._topics = ClusterTopics(cluster, self._patterns_in_use, clock.monotonic)
        state_log = ReplicatedStateLog(CONSUMER_OFFSETS, replicas)
        runtime: CoordinatorRuntime[GroupEvent, GroupReply, None] = CoordinatorRuntime(
            CONSUMER_OFFSETS,
            lambda partition, _epoch: GroupShard(
                self._config,
                self._topics,
                self._finalised_level,
                self._group_timeouts,
                partial(state_log.batch_bytes_max, partition),
            ),
            state_log,
            lambda _partition, _epoch, _effect: None,  # groups have no effects outside their log
            config=RuntimeConfig(validate=on_invalid is not None),
            on_invalid=on_invalid,
            on_failed=lambda partition, leader_epoch, reason: self._host.on_failed(
                partition, leader_epoch, reason
            ),
            steady_ms=clock.steady_ms,
        )
        self._host = CoordinatorHost(
            CONSUMER_OFFSETS,
            runtime,
            clock,
            holds_session=lambda: lifecycle.holds_session,
            leads=lambda partition: cluster.leads(CONSUMER_OFFSETS, partition),
            on_failure=on_failure,
        )

    def start(self) -> None:
        self._host.start()

    async def stop(self) -> None:
        await self._host.stop()
        await self._topics.stop()

    def on_elected(self, partition: int, leader_epoch: int, replica_log: Log) -> None:
        """The replica manager's: this node leads the offsets partition in `leader_epoch`."""
        self._host.on_elected(partition, leader_epoch, replica_log)

    def on_resigned(self, partition: int, leader_epoch: int) -> None:
        self._host.on_resigned(partition, leader_epoch)

    def on_high_watermark(self, partition: int, offset: int) -> None:
        self._host.on_high_watermark(partition, offset)

    async def partition_for(self, group_id: str) -> int:
        """The offsets partition whose shard coordinates the group.  Raises KafkaError
        COORDINATOR_NOT_AVAILABLE while the topic does not exist, COORDINATOR_LOAD_IN_PROGRESS while this node
        leads the partition and opens its log."""
        partition = partition_for(group_id, await self._cluster.state_partitions(CONSUMER_OFFSETS))
        self._host.require_log_open(partition)
        return partition

    def _group_timeouts(self, group_id: str) -> tuple[int | None, int | None]:
        """The group's own session timeout and heartbeat interval, None where it has none; the controller has
        checked them."""
        own = self._cluster.state.resource_configs.get((ResourceType.GROUP, group_id), {})
        session, interval = own.get(CONSUMER_SESSION), own.get(CONSUMER_HEARTBEAT)
        return None if session is None else int(session), None if interval is None else int(interval)

    def _finalised_level(self) -> int:
        return metadata_level(self._cluster.state.features)

    def _patterns_in_use(self) -> Iterable[str]:
        return {
            pattern
            for shard in self.shards
            for group in shard.groups.consumers.groups.values()
            for pattern in patterns(group)
        }

    async def learn_pattern(self, pattern: str) -> None:
        """Awaited before the shard gets a heartbeat with a pattern, so that its answer already has the topics
        that the pattern matches.  The shard itself rejects a pattern that is not valid.  Raises
        INVALID_REGULAR_EXPRESSION for a pattern that a coordinator of an older version, to which the group
        may move, cannot read."""
        if self._finalised_level() < RESOURCES_LEVEL and not is_former_pattern(pattern):
            message = (
                f"{pattern!r} cannot be used before the cluster's upgrade is finished: `tidegate "
                "features upgrade`"
            )
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
        try:
            await self._topics.learn(pattern)
        except UnsupportedPattern:
            return

    async def ask(self, group_id: str, event: GroupEvent) -> Any:
        """Submits to the shard of the group; raises KafkaError (NOT_COORDINATOR, ...)."""
        return await self._host.ask_partition(await self.partition_for(group_id), event)

    async def ask_all(self, event: GroupEvent) -> list[Any]:
        """Asks every active shard of this node; leaves out a shard that failed, so that the others can still
        be listed."""
        return list(await self._host.ask_all(event, whole=False))

    def topics_changed(self) -> None:
        """Topics were created or deleted, or got partitions: consumer groups compute their subscribed topics
        again."""
        self._topics.version += 1

    def topics_deleted(self, names: Iterable[str]) -> None:
        """The shards delete the committed offsets of these topics."""
        event = TopicsDeleted(frozenset(names))
        for partition, _, _ in list(self._host.runtime.shards()):
            self._host.runtime.submit(partition, event, None)

    def accepts_markers(self, partition: int, leader_epoch: int) -> bool:
        """Whether this node's shard replays the partition's log: only then may the leader append a marker
        there, because the shard must apply it in the same step."""
        runtime = self._host.runtime
        return (
            runtime.leader_epoch(partition) == leader_epoch and runtime.phase(partition) is not Phase.FAILED
        )

    def marker_appended(
        self,
        partition: int,
        leader_epoch: int,
        producer: ProducerIdentity,
        commit: bool,
        offset: int,
        done: Callable[[KafkaError | None], None],
    ) -> None:
        """A marker was appended to the offsets partition: must be called in the same step as the append.

        The shard calls `done` when the marker is committed and the offsets that it commits are visible.
        """
        self._host.runtime.replay_marker(partition, leader_epoch, producer, commit, offset, done)

    @property
    def shards(self) -> Iterable[GroupShard]:
        return self._host.shards(GroupShard)

    def views(self) -> Iterable[ShardView]:
        """The state of all shards, for /metrics."""
        return self._host.runtime.views()
