"""The clients of Tidegate, and of any broker that speaks Kafka's protocol: asyncio `Producer`, `Consumer` and
`Admin`.

`tidegate.client.blocking` has the same three for programs without asyncio.  Names are loaded when they are
used, so that `import tidegate.client` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ..processes.local_cluster import LocalCluster
    from ..security.client_security import ClientSecurity
    from ..wire.errors import ErrorCode, KafkaError
    from .administration.admin import Admin
    from .administration.descriptions import NewTopic
    from .connecting.errors import (
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
    from .consuming.consumer import Consumer, ConsumerRecord, RebalanceListener
    from .consuming.cut import Cut, CutError
    from .consuming.cut_reader import read_cut
    from .producing.producer import CommittedOffset, GroupMetadata, Producer, RecordMetadata
    from .requests.offset_requests import TopicPartition

_HOME: Final = {
    "..security.client_security": ("ClientSecurity",),
    "..wire.errors": ("ErrorCode", "KafkaError"),
    ".administration.admin": ("Admin",),
    ".consuming.consumer": ("Consumer", "ConsumerRecord", "RebalanceListener"),
    ".consuming.cut": ("Cut", "CutError"),
    ".consuming.cut_reader": ("read_cut",),
    ".administration.descriptions": ("NewTopic",),
    ".connecting.errors": (
        "AbortableError", "BufferExhausted", "CommitOutcomeUnknown", "ConnectionFailed", "DeliveryTimeout",
        "FatalError",
        "GroupChanged", "NoOffset", "ProducerFenced", "RequestError", "RetriableError", "TransactionTimedOut",
    ),
    "..processes.local_cluster": ("LocalCluster",),
    ".requests.offset_requests": ("TopicPartition",),
    ".producing.producer": ("CommittedOffset", "GroupMetadata", "Producer", "RecordMetadata"),
}  # fmt: skip
_MODULE_OF: Final = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AbortableError", "Admin", "BufferExhausted", "ClientSecurity", "CommitOutcomeUnknown", "CommittedOffset",
    "ConnectionFailed", "Consumer",
    "ConsumerRecord", "Cut", "CutError", "DeliveryTimeout", "ErrorCode", "FatalError", "GroupChanged",
    "GroupMetadata", "KafkaError",
    "LocalCluster", "NewTopic", "NoOffset", "Producer", "ProducerFenced", "RebalanceListener",
    "RecordMetadata", "RequestError",
    "RetriableError", "TopicPartition", "TransactionTimedOut", "read_cut",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module, __name__), name)
