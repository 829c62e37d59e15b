"""The clients of Tidegate, and of any broker that speaks Kafka's protocol: asyncio `Producer`, `Consumer` and `Admin`.

`tidegate.client.blocking` has the same three for programs without asyncio.  Names are loaded when they are used, so that
`import tidegate.client` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ..wire.errors import ErrorCode, KafkaError
    from .admin import Admin
    from .consumer import Consumer, ConsumerRecord, RebalanceListener
    from .descriptions import NewTopic
    from .errors import (
        AbortableError,
        BufferExhausted,
        CommitOutcomeUnknown,
        ConnectionFailed,
        DeliveryTimeout,
        FatalError,
        GroupChanged,
        NoOffset,
        ProducerFenced,
        RequestError,
        RetriableError,
        TransactionTimedOut,
    )
    from .local_cluster import LocalCluster
    from .offset_requests import TopicPartition
    from .producer import CommittedOffset, GroupMetadata, Producer, RecordMetadata

_HOME: Final = {
    "..wire.errors": ("ErrorCode", "KafkaError"),
    ".admin": ("Admin",),
    ".consumer": ("Consumer", "ConsumerRecord", "RebalanceListener"),
    ".descriptions": ("NewTopic",),
    ".errors": (
        "AbortableError", "BufferExhausted", "CommitOutcomeUnknown", "ConnectionFailed", "DeliveryTimeout", "FatalError",
        "GroupChanged", "NoOffset", "ProducerFenced", "RequestError", "RetriableError", "TransactionTimedOut",
    ),
    ".local_cluster": ("LocalCluster",),
    ".offset_requests": ("TopicPartition",),
    ".producer": ("CommittedOffset", "GroupMetadata", "Producer", "RecordMetadata"),
}  # fmt: skip
_MODULE_OF: Final = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AbortableError", "Admin", "BufferExhausted", "CommitOutcomeUnknown", "CommittedOffset", "ConnectionFailed", "Consumer",
    "ConsumerRecord", "DeliveryTimeout", "ErrorCode", "FatalError", "GroupChanged", "GroupMetadata", "KafkaError",
    "LocalCluster", "NewTopic", "NoOffset", "Producer", "ProducerFenced", "RebalanceListener", "RecordMetadata", "RequestError",
    "RetriableError", "TopicPartition", "TransactionTimedOut",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module, __name__), name)
