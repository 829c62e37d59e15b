"""What a node tells Prometheus.

Counters and histograms of requests are kept as requests happen; everything that describes state (partitions,
producers, transactions) is read at the moment of the scrape, on the loop, so that it can neither drift nor
race.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ...coordinator.shard_view import Phase, ShardView
from ...wire.errors import ErrorCode
from ..upkeep.log_upkeep import UpkeepView

LATENCY_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SHARD_LABELS = ("topic", "partition")


@dataclass(frozen=True, slots=True)
class PartitionMetrics:
    """The metrics of one partition with a replica on this node."""

    topic: str
    partition: int
    is_leader: bool
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    log_start_offset: int
    size_bytes: int
    producer_ids: int
    under_replicated: bool


@dataclass(frozen=True, slots=True)
class JobsView:
    """Job transactions that are coordinated here; committed and aborted count decisions since the start of
    the node."""

    open: int = 0
    oldest_open_s: float = 0.0
    committed: int = 0
    aborted: int = 0


@dataclass(frozen=True, slots=True)
class NodeView:
    """The metrics of the node as a whole."""

    partitions: list[PartitionMetrics]
    active_transactional_ids: int
    open_transactions: int
    groups: int
    markers_abandoned: int
    controller_active: bool
    metadata_index: int
    ready: bool
    connections: int
    upkeep: UpkeepView = field(default_factory=UpkeepView)
    offline_replicas: int = 0
    offline_data_folders: int = 0
    moving_replicas: int = 0
    move_copied_bytes: int = 0
    under_min_isr: int = 0
    jobs: JobsView = field(default_factory=JobsView)
    pinned_cuts: int = 0
    pinned_bytes: int = 0
    shards: list[ShardView] = field(default_factory=list)


class Metrics:
    """The registry of one node.  `view` is called at each scrape."""

    def __init__(self, node_id: int, version: str, view: Callable[[], NodeView]) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "tidegate_requests",
            "Requests answered, by request and outcome: ok, or the gravest error code of the answer.",
            ["request", "outcome"],
            registry=self.registry,
        )
        self._latency = Histogram(
            "tidegate_request_seconds",
            "From a request's arrival to its answer.",
            ["request"],
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self._bytes = Counter(
            "tidegate_bytes", "Bytes of records, by direction.", ["direction"], registry=self.registry
        )
        self._rejected = Counter(
            "tidegate_rejected_frames",
            "Connections closed for what came, or not taken.",
            ["reason"],
            registry=self.registry,
        )
        info = Gauge(
            "tidegate_node_info",
            "Always 1; the labels say which node this is.",
            ["node", "version"],
            registry=self.registry,
        )
        info.labels(str(node_id), version).set(1)
        self.registry.register(_StateCollector(view))
        self._bytes_in = self._bytes.labels("in")
        self._bytes_out = self._bytes.labels("out")
        # looking labels up costs more than counting
        self._children: dict[tuple[str, ErrorCode], tuple[Counter, Histogram]] = {}

    def request_done(self, name: str, outcome: ErrorCode, seconds: float) -> None:
        """`name` must be one of the requests of `wire.api`: what a client can choose freely is no label."""
        children = self._children.get((name, outcome))
        if children is None:
            label = "ok" if outcome is ErrorCode.NONE else outcome.name.lower()
            children = self._children[name, outcome] = (
                self._requests.labels(name, label),
                self._latency.labels(name),
            )
        children[0].inc()
        children[1].observe(seconds)

    def bytes_in(self, count: int) -> None:
        self._bytes_in.inc(count)

    def bytes_out(self, count: int) -> None:
        self._bytes_out.inc(count)

    def frame_rejected(self, reason: str) -> None:
        self._rejected.labels(reason).inc()

    def page(self) -> bytes:
        """The text of /metrics."""
        return generate_latest(self.registry)


class _StateCollector(Collector):
    def __init__(self, view: Callable[[], NodeView]) -> None:
        self._view = view

    def describe(self) -> Iterable[Metric]:
        return []  # nothing is read before the first scrape: the node may still be starting

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        for name, text, value in (
            ("under_replicated_partitions", "Partitions led here whose ISR is short.", _count_short(view)),
            (
                "offline_replicas",
                "Replicas hosted here that a failed disk or damage keeps out of use.",
                view.offline_replicas,
            ),
            ("offline_data_folders", "Data folders whose disk failed.", view.offline_data_folders),
            (
                "moving_replicas",
                "Replicas on their way to another data folder of this node.",
                view.moving_replicas,
            ),
            (
                "under_min_isr_partitions",
                "Partitions led here that refuse acks=all writes.",
                view.under_min_isr,
            ),
            ("pinned_cuts", "Pinned cuts of the cluster.", view.pinned_cuts),
            (
                "pinned_bytes",
                "Bytes of the segments here that hold what pinned cuts name.",
                view.pinned_bytes,
            ),
            ("leader_partitions", "Partitions led here.", sum(p.is_leader for p in view.partitions)),
            ("partitions", "Partitions hosted here.", len(view.partitions)),
            (
                "live_producer_ids",
                "Producer ids that the partitions hosted here remember.",
                _producer_ids(view),
            ),
            (
                "active_transactional_ids",
                "Transactional ids that are coordinated here.",
                view.active_transactional_ids,
            ),
            (
                "open_transactions",
                "Transactions coordinated here that are not decided.",
                view.open_transactions,
            ),
            ("open_jobs", "Job transactions (Spark) coordinated here that are not decided.", view.jobs.open),
            (
                "oldest_open_job_seconds",
                "Since the oldest attempt of an open job began to write: readers of committed records wait "
                "for it.",
                view.jobs.oldest_open_s,
            ),
            ("groups", "Consumer groups that are coordinated here.", view.groups),
            (
                "coordinators_loading",
                "Coordinator shards that do not serve yet.",
                _in(view, Phase.LOADING, Phase.BARRIER),
            ),
            (
                "coordinators_failed",
                "Coordinator shards that failed and are to be loaded again.",
                _in(view, Phase.FAILED),
            ),
            ("active_controller", "1 on the active controller.", int(view.controller_active)),
            ("metadata_index", "Index of the last metadata command applied here.", view.metadata_index),
            ("ready", "1 when the node is registered, unfenced and current.", int(view.ready)),
            ("connections", "Open connections of the Kafka listener.", view.connections),
        ):
            yield GaugeMetricFamily(f"tidegate_{name}", text, value=value)
        text = "Transactions whose markers were given up: a newer coordinator had fenced this one."
        yield CounterMetricFamily("tidegate_markers_cancelled", text, value=view.markers_abandoned)
        text = "Job transactions that this node has decided to commit."
        yield CounterMetricFamily("tidegate_jobs_committed", text, value=view.jobs.committed)
        text = "Job transactions that this node has decided to abort, or whose deadline has passed."
        yield CounterMetricFamily("tidegate_jobs_aborted", text, value=view.jobs.aborted)
        text = "Bytes copied from one data folder of this node to another."
        yield CounterMetricFamily("tidegate_replica_move_copied_bytes", text, value=view.move_copied_bytes)
        yield from _upkeep(view.upkeep)
        yield from _shard_gauges(view.shards)
        yield from _shard_counters(view.shards)
        yield from _partition_gauges(view.partitions)


def _upkeep(view: UpkeepView) -> Iterator[Metric]:
    for name, text, value in (
        (
            "cleaner_uncleanable_partitions",
            "Compacted partitions here whose cleaning failed: they grow.",
            view.uncleanable_partitions,
        ),
        (
            "cleaner_oldest_dirty_age_seconds",
            "Age of the oldest record that could be cleaned and was not.",
            view.oldest_dirty_age_s,
        ),
        (
            "cleaner_dirty_ratio_max",
            "Share of uncleaned bytes in the dirtiest compacted log.",
            view.dirty_ratio_max,
        ),
    ):
        yield GaugeMetricFamily(f"tidegate_{name}", text, value=value)
    for name, text, value in (
        ("log_cleaner_runs", "Cleanings of logs, also those that came to nothing.", view.cleanings),
        ("cleaner_read_bytes", "Bytes that the cleaner has read.", view.bytes_read),
        ("cleaner_written_bytes", "Bytes that the cleaner has written.", view.bytes_written),
        ("cleaner_seconds", "Time that the cleaner was at work, waits for its rate included.", view.seconds),
        ("cleaner_removed_records", "Records that the cleaner has removed.", view.records_removed),
        ("expired_segments", "Segments that were too old or too many and are gone.", view.segments_expired),
    ):
        yield CounterMetricFamily(f"tidegate_{name}", text, value=value)


def _count_short(view: NodeView) -> int:
    return sum(p.under_replicated for p in view.partitions)


def _in(view: NodeView, *phases: Phase) -> int:
    return sum(shard.phase in phases for shard in view.shards)


def _producer_ids(view: NodeView) -> int:
    return sum(p.producer_ids for p in view.partitions)


def _shard_gauges(shards: list[ShardView]) -> Iterator[Metric]:
    for name, text, value_of in (
        (
            "coordinator_active",
            "1 while this state partition's coordinator serves.",
            lambda shard: shard.phase is Phase.ACTIVE,
        ),
        ("coordinator_queued", "Events that the coordinator has not handled.", attrgetter("queued")),
        (
            "coordinator_parked",
            "Decisions whose answers wait until their records are replicated.",
            attrgetter("parked"),
        ),
        (
            "coordinator_waiting",
            "Requests that wait for others: for a rebalance, or for markers.",
            attrgetter("waiting"),
        ),
        (
            "coordinator_uncommitted",
            "Offsets that the coordinator has written, not yet replicated.",
            attrgetter("uncommitted"),
        ),
    ):
        yield _of_shards(GaugeMetricFamily(f"tidegate_{name}", text, labels=SHARD_LABELS), shards, value_of)


def _shard_counters(shards: list[ShardView]) -> Iterator[Metric]:
    for name, text, field_name in (
        ("coordinator_events", "Requests and timers that the coordinator has handled.", "events"),
        ("coordinator_batches_written", "Batches that the coordinator has written.", "batches_written"),
        ("coordinator_records_written", "Records in them.", "records_written"),
        ("coordinator_written_bytes", "Bytes of them.", "bytes_written"),
        ("coordinator_append_failures", "Batches that the state partition has refused.", "append_failures"),
        (
            "coordinator_rejected_loading",
            "Requests refused because the coordinator was being loaded.",
            "rejected_loading",
        ),
        (
            "coordinator_rejected_busy",
            "Requests refused because too many wait for the replicas.",
            "rejected_busy",
        ),
        (
            "coordinator_replies_timed_out",
            "Requests answered with an error because their records were not replicated in time.",
            "replies_timed_out",
        ),
        (
            "coordinator_replies_moved",
            "Requests answered with an error because another node coordinates now.",
            "replies_not_coordinator",
        ),
        (
            "coordinator_handler_failures",
            "Requests that failed by a fault of the coordinator's own.",
            "handler_failures",
        ),
        (
            "coordinator_reply_failures",
            "Answers that could not be given, by a fault of the coordinator's own.",
            "reply_failures",
        ),
        ("coordinator_failures", "Times that the coordinator stopped, to be loaded again.", "failures"),
        ("coordinator_loads", "Times that the coordinator was loaded.", "loads"),
        ("coordinator_records_loaded", "Records read while it was loaded.", "records_loaded"),
    ):
        family = CounterMetricFamily(f"tidegate_{name}", text, labels=SHARD_LABELS)
        yield _of_shards(family, shards, attrgetter(f"metrics.{field_name}"))


def _of_shards(
    family: GaugeMetricFamily | CounterMetricFamily,
    shards: list[ShardView],
    value_of: Callable[[ShardView], float],
) -> Metric:
    for shard in shards:
        family.add_metric([shard.topic, str(shard.partition)], value_of(shard))
    return family


def _partition_gauges(partitions: list[PartitionMetrics]) -> Iterator[Metric]:
    labels = ["topic", "partition"]
    for name, text, value_of in (
        (
            "high_watermark",
            "Offset below which records are replicated and flushed.",
            attrgetter("high_watermark"),
        ),
        (
            "last_stable_offset",
            "Offset below which every transaction is decided.",
            attrgetter("last_stable_offset"),
        ),
        ("log_end_offset", "Offset of the next record.", attrgetter("log_end_offset")),
        ("log_start_offset", "Offset of the first record.", attrgetter("log_start_offset")),
        ("log_size_bytes", "Bytes of the log's segments.", attrgetter("size_bytes")),
        ("partition_producer_ids", "Producer ids that the partition remembers.", attrgetter("producer_ids")),
    ):
        family = GaugeMetricFamily(f"tidegate_{name}", text, labels=labels)
        for partition in partitions:
            family.add_metric([partition.topic, str(partition.partition)], value_of(partition))
        yield family
