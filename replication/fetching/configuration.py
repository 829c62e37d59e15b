"""Settings of the node that concern replication."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.replication.partition.assignment import Eligibility, EligibilityOf

from .client_sessions import SESSIONS_MAX, TopicNameOf
from .fetcher import FetcherLimits
from .nearby import RackOf


@dataclass(slots=True, frozen=True)
class ReplicationLimits:
    """What may change while the node runs; None: no limit (`catch_up_throttle.py`)."""

    catch_up_bytes_per_s: int | None = None
    leader_throttled_bytes_per_s: int | None = None
    follower_throttled_bytes_per_s: int | None = None
    producer_id_expiration_ms: int = 86_400_000


@dataclass(slots=True, frozen=True)
class ReplicationConfig:
    """Settings that hold as long as the node runs, and what `limits` begin with."""

    replica_lag_time_max_ms: int = 30_000
    high_watermark_checkpoint_interval_ms: int = 5_000
    waiting_acks_max: int = 100_000
    limits: ReplicationLimits = field(default_factory=ReplicationLimits)
    fetcher: FetcherLimits = field(default_factory=FetcherLimits)
    rack_of: RackOf | None = None  # None: clients read from leaders only
    topic_name_of: TopicNameOf = lambda _topic_id: None
    client_sessions_max: int = SESSIONS_MAX
    eligibility_of: EligibilityOf = lambda _topic_id, _partition, _node_id, _broker_epoch: Eligibility.YES
