"""Why a call to a node failed, whether another attempt can succeed, and what the caller is told when there is
none.

Another attempt can succeed when a node cannot be reached or ends during the call, and for the Kafka errors
that pass (a moved leader, an offset that a new leader does not know as committed yet).  All other errors are
final at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc

from ...proto import data_pb2
from ...wire.errors import ErrorCode
from .answers import LeaderView, leader_view
from .channels import has_failed_by_tls, protocol_advice

ERROR_DETAIL_KEY = "tidegate-error-bin"

CURABLE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
TOPIC_UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
_LOST = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,  # a killed server resets the stream; gRPC reports this code or the next
        grpc.StatusCode.UNKNOWN,
    }
)


class ReadError(Exception):
    """A read that cannot continue.  `code` is Kafka's; `log_start_offset` is set when records below it are
    deleted (else -1)."""

    def __init__(self, code: ErrorCode, message: str, log_start_offset: int = -1) -> None:
        message = _without_code(code, message)
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.log_start_offset = log_start_offset

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadError, (self.code, str(self), self.log_start_offset)


class StreamLost(Exception):
    """A stream that broke for a reason that another attempt may cure; `error`: to raise when there is no
    other attempt."""

    def __init__(self, error: ReadError, topic_unknown: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.topic_unknown = topic_unknown


@dataclass(slots=True)
class Problem:
    """Why an attempt failed, and whether another one can succeed."""

    code: ErrorCode
    message: str
    curable: bool
    leader: LeaderView | None = None
    log_start_offset: int = -1
    topic_unknown: bool = False  # a node's metadata do not have the topic, not only the node as replica
    method_unknown: bool = False  # a node of an older version does not know the method
    is_of_tls: bool = False  # another node of the list may have a certificate that is right

    def error(self) -> ReadError:
        return ReadError(self.code, self.message, self.log_start_offset)

    def error_of_stream(self) -> StreamLost | ReadError:
        return StreamLost(self.error(), self.topic_unknown) if self.curable else self.error()


def problem_of_call(failure: grpc.RpcError, endpoint: str) -> Problem:
    """The problem of a failed call: the server's own detail, else gRPC's message about the connection."""
    assert isinstance(failure, grpc.Call)
    for key, value in failure.trailing_metadata() or ():
        if key == ERROR_DETAIL_KEY:
            return problem_of_detail(
                data_pb2.ErrorDetail.FromString(
                    value if isinstance(value, bytes) else value.encode("latin-1")
                )
            )
    message = f"{endpoint}: {failure.code().name}: {failure.details()}"
    if failure.code() == grpc.StatusCode.UNAUTHENTICATED:
        return Problem(ErrorCode.SASL_AUTHENTICATION_FAILED, f"{endpoint}: {failure.details()}", False)
    message += protocol_advice(message)
    if has_failed_by_tls(message):
        return Problem(ErrorCode.NETWORK_EXCEPTION, message, curable=False, is_of_tls=True)
    unknown = failure.code() == grpc.StatusCode.UNIMPLEMENTED
    return Problem(ErrorCode.NETWORK_EXCEPTION, message, failure.code() in _LOST, method_unknown=unknown)


def problem_of_detail(detail: data_pb2.ErrorDetail) -> Problem:
    """The problem of a call that the node refused."""
    code = ErrorCode.from_wire(detail.error_code)
    return Problem(code, detail.message, code in CURABLE, leader_view(detail.leader), detail.log_start_offset)


def problem_of_partition(topic: str, entry: data_pb2.PartitionOffset | data_pb2.PartitionRanges) -> Problem:
    """The problem of one partition, in an answer about several."""
    code = ErrorCode.from_wire(entry.error_code)
    place, message = f"{topic}-{entry.partition}", _without_code(code, entry.error_message)
    if place not in message:
        message = f"{place}: {message}" if message else place
    return Problem(code, message, code in CURABLE, leader_view(entry.leader))


def _without_code(code: ErrorCode, message: str) -> str:
    """Nodes of older versions begin the message with the code, which `ReadError` says already."""
    return message.removeprefix(code.name).removeprefix(": ")
