"""Settings of the node that concern replication."""

from __future__ import annotations

from dataclasses import dataclass, field

from .client_sessions import SESSIONS_MAX, TopicNameOf
from .fetcher import FetcherLimits
from .nearby import RackOf


@dataclass(slots=True, frozen=True)
class ReplicationConfig:
    """`catch_up_bytes_per_s` 0: no limit."""

    replica_lag_time_max_ms: int = 30_000
    high_watermark_checkpoint_interval_ms: int = 5_000
    waiting_acks_max: int = 100_000
    producer_id_expiration_ms: int = 86_400_000
    catch_up_bytes_per_s: int = 0
    fetcher: FetcherLimits = field(default_factory=FetcherLimits)
    rack_of: RackOf | None = None  # None: clients read from leaders only
    topic_name_of: TopicNameOf = lambda _topic_id: None
    client_sessions_max: int = SESSIONS_MAX
