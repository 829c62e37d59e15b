"""The settings of a consumer: one frozen value that checks itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

from ...security.client_security import ClientSecurity
from ..requests.offset_requests import EARLIEST, LATEST
from .fetcher import FetchSettings
from .group_membership import MembershipSettings

RESETS: Final[dict[str, int | None]] = {"earliest": EARLIEST, "latest": LATEST, "none": None}


class ConsumerSettings(TypedDict, total=False):
    """The keywords of `Consumer`; `ConsumerOptions` has their defaults and says what they do."""

    group_id: str | None
    group_instance_id: str | None
    client_id: str
    security: ClientSecurity | None
    rack: str
    isolation: str
    auto_offset_reset: str
    auto_commit: bool
    auto_commit_interval_ms: int
    assignors: Sequence[str]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    max_poll_records: int
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_partition_bytes: int
    buffer_bytes: int
    request_timeout_s: float
    max_block_s: float


@dataclass(slots=True, frozen=True, kw_only=True)
class ConsumerOptions:
    """Raises ValueError for a value that cannot be meant.

    `auto_offset_reset` (earliest, latest, none): where to begin without a committed offset, or with a
    position outside the log. `assignors`: those that this member supports, in its order of preference: range,
    roundrobin, cooperative-sticky.  With only cooperative-sticky, the consumer continues to read kept
    partitions during a rebalance (KIP-429). `rack`: the rack of this consumer: it then reads from an in-sync
    replica there, if there is one (KIP-392).
    """

    group_id: str | None = None
    group_instance_id: str | None = None
    client_id: str = "tidegate-consumer"
    security: ClientSecurity | None = None
    rack: str = ""
    isolation: str = "read_committed"
    auto_offset_reset: str = "latest"
    auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    assignors: Sequence[str] = ("range",)
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 16 << 20
    fetch_partition_bytes: int = 1 << 20
    buffer_bytes: int = 64 << 20
    request_timeout_s: float = 30.0
    max_block_s: float = 60.0

    def __post_init__(self) -> None:
        if self.isolation not in ("read_committed", "read_uncommitted"):
            raise ValueError(f"isolation={self.isolation!r}: choose read_committed or read_uncommitted")
        if self.auto_offset_reset not in RESETS:
            raise ValueError(f"auto_offset_reset={self.auto_offset_reset!r}: choose {', '.join(RESETS)}")

    @property
    def read_committed(self) -> bool:
        return self.isolation == "read_committed"

    @property
    def reset(self) -> int | None:
        """The timestamp at which to begin; None: the application says where."""
        return RESETS[self.auto_offset_reset]

    def for_fetcher(self) -> FetchSettings:
        return FetchSettings(
            read_committed=self.read_committed,
            max_wait_ms=self.fetch_max_wait_ms,
            min_bytes=self.fetch_min_bytes,
            max_bytes=self.fetch_max_bytes,
            partition_bytes=self.fetch_partition_bytes,
            buffer_bytes=self.buffer_bytes,
            request_timeout_s=self.request_timeout_s,
            rack=self.rack,
        )

    def for_membership(self) -> MembershipSettings:
        return MembershipSettings(
            group_id=self.group_id or "",
            group_instance_id=self.group_instance_id,
            assignors=tuple(self.assignors),
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            max_poll_interval_ms=self.max_poll_interval_ms,
            request_timeout_s=self.request_timeout_s,
        )
