"""What the coordinator runtime shows of each of its shards: its phase, counters and queues, for /metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """The phase of a shard: the table stands in `running_shard.py`."""

    LOADING = "loading"
    BARRIER = "barrier"
    ACTIVE = "active"
    FAILED = "failed"
    UNLOADED = "unloaded"


@dataclass(slots=True)
class ShardMetrics:
    """Counters of one partition since the start of the node: they outlive its leaderships, as Prometheus
    expects of counters."""

    events: int = 0
    batches_written: int = 0
    records_written: int = 0
    bytes_written: int = 0
    append_failures: int = 0
    replies_timed_out: int = 0
    replies_not_coordinator: int = 0
    rejected_loading: int = 0
    rejected_busy: int = 0
    handler_failures: int = 0
    reply_failures: int = 0
    failures: int = 0
    loads: int = 0
    records_loaded: int = 0


@dataclass(slots=True, frozen=True)
class ShardView:
    """One shard at this moment.  queued: events that have not been handled; parked: outcomes whose records
    are not committed yet; waiting: deferred requests (of a rebalance, or awaiting markers); uncommitted:
    offsets written above the high watermark."""

    topic: str
    partition: int
    phase: Phase
    queued: int
    parked: int
    waiting: int
    uncommitted: int
    metrics: ShardMetrics
