"""The settings of a producer: one frozen value that checks itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypedDict

from ...security.client_security import ClientSecurity
from ...wire.compression import Compression

if TYPE_CHECKING:
    from .accumulator import Limits
    from .partitioner import Partitioner
    from .sender import SenderSettings

ACKS: Final[dict[str | int, int]] = {"all": -1, -1: -1, 0: 0, 1: 1, "0": 0, "1": 1, "-1": -1}


class ProducerSettings(TypedDict, total=False):
    """The keywords of `Producer`; `ProducerOptions` has their defaults and says what they do."""

    transactional_id: str | None
    client_id: str
    security: ClientSecurity | None
    acks: str | int
    idempotent: bool
    compression: str
    linger_ms: float
    batch_bytes: int
    memory_bytes: int
    request_bytes_max: int
    transaction_timeout_ms: int
    delivery_timeout_s: float
    request_timeout_s: float
    max_block_s: float
    partitioner: Partitioner | None


@dataclass(slots=True, frozen=True, kw_only=True)
class ProducerOptions:
    """Raises ValueError for values that cannot be meant, or not together.

    `batch_bytes` and `linger_ms` trade latency for throughput; `memory_bytes` bounds the buffered records
    (when it is full, `send` waits, up to `max_block_s`); a record fails after `delivery_timeout_s` without
    acknowledgement.
    """

    transactional_id: str | None = None
    client_id: str = "tidegate-producer"
    security: ClientSecurity | None = None
    acks: str | int = "all"
    idempotent: bool = True
    compression: str = "none"
    linger_ms: float = 5
    batch_bytes: int = 16_384
    memory_bytes: int = 32 << 20
    request_bytes_max: int = 1 << 20
    transaction_timeout_ms: int = 60_000
    delivery_timeout_s: float = 120.0
    request_timeout_s: float = 30.0
    max_block_s: float = 60.0
    partitioner: Partitioner | None = None

    def __post_init__(self) -> None:
        if self.acks not in ACKS:
            raise ValueError(f"acks={self.acks!r}: choose 'all', 1 or 0")
        if self.transactional_id is not None and not self.numbered:
            raise ValueError("a transactional producer needs acks='all' and idempotent=True")
        if self.transactional_id == "":
            raise ValueError(
                "transactional_id is empty: name the producer, the same name after every restart"
            )
        if self.compression.upper() not in Compression.__members__:
            known = ", ".join(codec.name.lower() for codec in Compression)
            raise ValueError(f"compression={self.compression!r}: choose {known}")

    @property
    def numbered(self) -> bool:
        """Whether batches carry sequences: only an acknowledgement of all replicas makes them useful."""
        return self.idempotent and ACKS[self.acks] == -1

    def for_accumulator(self) -> Limits:
        from .accumulator import Limits  # the settings are read where no producer is made, too

        return Limits(
            batch_bytes=self.batch_bytes,
            linger_s=self.linger_ms / 1000,
            memory_bytes=self.memory_bytes,
            delivery_timeout_s=self.delivery_timeout_s,
            numbered=self.numbered,
        )

    def for_sender(self) -> SenderSettings:
        from .sender import SenderSettings

        return SenderSettings(
            acks=ACKS[self.acks],
            compression=Compression[self.compression.upper()],
            request_bytes_max=self.request_bytes_max,
            request_timeout_s=min(self.request_timeout_s, self.delivery_timeout_s),
        )
