"""Settings of the node that concern replication."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from .client_sessions import SESSIONS_MAX
from .fetcher import FetcherLimits


@dataclass(slots=True)
class ReplicationLimits:
    """What may change while the node runs; None: no limit (`catch_up_throttle.py`).

    A node has one such object, `ReplicaManager.change_limits` alone changes it, and no part keeps a copy of a
    limit: a part reads it here whenever it needs one."""

    catch_up_bytes_per_s: int | None = None
    leader_throttled_bytes_per_s: int | None = None
    follower_throttled_bytes_per_s: int | None = None
    producer_id_expiration_ms: int = 86_400_000

    def change_to(self, other: ReplicationLimits) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))


@dataclass(slots=True, frozen=True)
class ReplicationConfig:
    """Settings that hold as long as the node runs, and what `limits` begin with."""

    replica_lag_time_max_ms: int = 10_000
    high_watermark_checkpoint_interval_ms: int = 5_000
    waiting_acks_max: int = 100_000
    limits: ReplicationLimits = field(default_factory=ReplicationLimits)
    fetcher: FetcherLimits = field(default_factory=FetcherLimits)
    client_sessions_max: int = SESSIONS_MAX
    validate: bool = False
    """Validates each replica whenever its high watermark may move or a follower has appended, and all of it
    from time to time (`debug.validate`)."""
    make_logs_in_background: bool = False
    """Threads create the logs of new partitions, whose roles begin when they are there
    (`replica_log_opener`)."""
