"""Carries out applied metadata on this node: opens and deletes replicas, changes their roles, and changes
settings.  `ACTED_ON` in `tests/node/test_metadata_application.py` says what it does with each part of the
state, also with those that other parts of the node only read.

It also lists the replicas that this node cannot serve, for the heartbeats to the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ..controller.state.cluster_state import ClusterState
from ..controller.state.features import check_known
from ..controller.state.model import ApplyResult, TopicState
from ..replication.manager import ReplicaManager
from ..replication.partition.assignment import Assignment
from ..runtime import logs
from ..runtime.clock import Clock
from ..storage.folders.data_folders import DataFolders
from ..wire.errors import KafkaError
from .cluster.cluster_view import ClusterView
from .coordinators.group_coordination import GroupCoordination
from .cuts.pins import PinIndex, report
from .lifecycle.broker_lifecycle import BrokerLifecycle
from .settings.run_time_settings import InheritedSettings, RunTimeSettings

log = logs.get(__name__)

# The pauses between attempts to open replicas that failed to open (a full disk); each is twice the last one.
OPEN_PAUSE_FIRST_S: Final = 2.0
OPEN_PAUSE_MAX_S: Final = 300.0


def _raise(error: BaseException) -> None:
    raise error


class MetadataApplication:
    """`apply` is the metadata follower's callback; it calls `on_brokers_changed` and `on_settings` after such
    a change."""

    def __init__(
        self,
        cluster: ClusterView,
        settings: RunTimeSettings,
        lifecycle: BrokerLifecycle,
        replicas: ReplicaManager,
        directory: DataFolders,
        groups: GroupCoordination,
        clock: Clock,
        *,
        on_brokers_changed: Callable[[], None] = lambda: None,
        on_settings: Callable[[RunTimeSettings], None] = lambda _settings: None,
        on_failure: Callable[[BaseException], None] = _raise,
    ) -> None:
        """`on_failure(error)`: a defect, after which this node does not carry out the metadata any more."""
        self._cluster = cluster
        self._settings = settings
        self._lifecycle = lifecycle
        self._replicas = replicas
        self._directory = directory
        self._groups = groups
        self._clock = clock
        self._on_brokers_changed = on_brokers_changed
        self._on_settings = on_settings
        self._inherited = InheritedSettings(self._apply_again, clock.monotonic, on_failure)
        self._pins = PinIndex()
        self._unopened: set[tuple[str, int]] = set()
        self._open_pause_s = OPEN_PAUSE_FIRST_S
        self._open_again_at_s = 0.0

    def apply(self, state: ClusterState, result: ApplyResult) -> None:
        """Called once for every applied entry, in order.  Carries out nothing before this process's own
        registration: older metadata may name this node leader although it lost records in an unclean stop.
        Raises UnknownLevel when the cluster has a feature level that this version does not know."""
        check_known(self._cluster.node_id, state.features)
        if result.changed_brokers:
            self._on_brokers_changed()
        epoch = self._lifecycle.broker_epoch
        if epoch < 0 or state.index < epoch:
            return
        topics_inherit_anew = self._apply_settings(state)
        if not self._cluster.serving:
            self._cluster.serving = True
            self._groups.topics_changed()  # a heartbeat before this may have seen older topics
            self._delete_what_is_not_ours(state)
            topics, node_id = state.topics.values(), self._cluster.node_id
            self._directory.expect(
                (t.name, n) for t in topics for n, p in t.partitions.items() if node_id in p.replicas
            )
            self._replicas.apply(
                self._assignments(state, ((t.name, p) for t in state.topics.values() for p in t.partitions))
            )
            return
        for topic in result.deleted_topics:
            self._settings.forget_topic(topic.name)
            for partition in topic.partitions:
                self._replicas.delete(topic.name, partition, topic.topic_id)
        if result.deleted_topics or result.changed_topics:
            self._groups.topics_changed()
        if result.deleted_topics:
            self._groups.topics_deleted(topic.name for topic in result.deleted_topics)
        changed = set(result.changed_partitions)
        for name in result.changed_topics:
            found = state.topics.get(name)
            if found is not None:
                changed.update((name, partition) for partition in found.partitions)
        if topics_inherit_anew:
            self._inherited.begin_again(self._held_here(list(state.topics.values())))
        if changed:
            self._replicas.apply(self._assignments(state, sorted(changed)))
        if result.changed_brokers:
            self._replicas.brokers_changed(result.changed_brokers)
        if any(not each.is_confirmed for each in state.pinned_cuts.values()):
            self._lifecycle.heartbeat_soon()

    def stop(self) -> None:
        """Stops applying inherited settings to replicas."""
        self._inherited.stop()

    def _held_here(self, topics: Iterable[TopicState]) -> Iterator[tuple[str, int]]:
        for topic in topics:
            for number, partition in topic.partitions.items():
                if self._cluster.node_id in partition.replicas:
                    yield topic.name, number

    def _apply_again(self, key: tuple[str, int]) -> None:
        self._replicas.apply(self._assignments(self._cluster.state, (key,)))

    def _apply_settings(self, state: ClusterState) -> bool:
        """Applies dynamic broker settings; True when the settings that topics inherit have changed."""
        if not self._settings.update(state.node_configs):
            return False
        self._replicas.change_limits(self._settings.replication_limits())
        self._on_settings(self._settings)
        return self._settings.update_topics(state.node_configs)

    def _assignments(self, state: ClusterState, keys: Iterable[tuple[str, int]]) -> list[Assignment]:
        found = []
        self._pins.follow(state.pinned_cuts)
        for name, index in keys:
            topic = state.topics.get(name)
            partition = topic.partitions.get(index) if topic else None
            if topic is None or partition is None:
                continue  # a later entry of the same step deleted it
            is_here = self._cluster.node_id in partition.replicas
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
                    config=self._settings.topic_config(topic),
                    elr=partition.elr,
                    adding=partition.adding,
                    pins=self._pins.pins_of(topic.topic_id, index) if is_here else (),
                )
            )
        return found

    def replica_offline(self, topic: str, partition: int) -> None:
        """A replica did not open, or its disk failed.  `open_again` tries both again; only the former can
        succeed."""
        if not self._unopened:
            self._open_pause_s = OPEN_PAUSE_FIRST_S
            self._open_again_at_s = self._clock.monotonic() + self._open_pause_s
        self._unopened.add((topic, partition))
        self._lifecycle.heartbeat_soon()

    def offline_replicas(self) -> set[tuple[bytes, int]]:
        """(topic id, partition) of the replicas that this node has and cannot serve: the controller elects
        other leaders."""
        found = {(topic_id.bytes, partition) for topic_id, partition in self._replicas.offline_replicas()}
        for name, partition in self._unopened:
            topic = self._cluster.state.topics.get(name)
            if topic is not None and partition in topic.partitions and not self._is_open(name, partition):
                found.add((topic.topic_id.bytes, partition))
        return found

    def damaged_replicas(self) -> set[tuple[bytes, int]]:
        """The offline replicas that have lost flushed records, or whose log does not say which topic it
        belongs to."""
        found = set()
        for (name, partition), topic_id in self._directory.damaged.items():
            topic = self._cluster.state.topics.get(name)
            if topic_id is None and topic is not None and partition in topic.partitions:
                topic_id = topic.topic_id  # a log without identity: the topic that has its name now
            if topic_id is not None:
                found.add((topic_id.bytes, partition))
        return found

    def pin_reports(self) -> dict[str, str]:
        """Pin id -> what this node has lost of what the pin names, or nothing: of the unconfirmed pins that
        it can judge, each time anew.  A log that keeps it now may follow the log start of a leader that has
        not applied the pin."""
        state, found = self._cluster.state, dict[str, str]()
        for cut in state.pinned_cuts.values():
            if not cut.is_confirmed:
                is_known, lost = report(state, self._cluster.node_id, cut, self._replicas.hosted.get)
                if is_known:
                    found[cut.pin_id] = lost
        return found

    def _is_open(self, topic: str, partition: int) -> bool:
        try:
            return not self._replicas.replica(topic, partition).log.is_offline
        except KafkaError:
            return False

    def open_again(self) -> None:
        """Called from time to time: tries again to open the replicas that did not open."""
        if not self._unopened or self._clock.monotonic() < self._open_again_at_s:
            return
        wanted, self._unopened = self._unopened, set()
        pause_s = min(2 * self._open_pause_s, OPEN_PAUSE_MAX_S)
        self._replicas.apply(self._assignments(self._cluster.state, sorted(wanted)))
        if self._unopened:
            self._open_pause_s = pause_s
            self._open_again_at_s = self._clock.monotonic() + pause_s

    def _delete_what_is_not_ours(self, state: ClusterState) -> None:
        """Deletes the logs of topics that were deleted, and of partitions that moved away, while this node
        was down."""
        for (name, partition), topic_id in list(self._directory.topic_ids.items()):
            topic = state.topics.get(name)
            if topic is None or topic.topic_id != topic_id:
                log.info("log_of_deleted_topic_removed", topic=name, partition=partition, topic_id=topic_id)
                self._directory.delete(name, partition)
            elif (
                partition in topic.partitions
                and self._cluster.node_id not in topic.partitions[partition].replicas
            ):
                log.info("log_that_moved_away_removed", topic=name, partition=partition, topic_id=topic_id)
                self._directory.delete(name, partition)
