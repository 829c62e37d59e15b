"""The errors of the client, by the action that the application must take.

Every protocol error belongs to exactly one family, and its message ends with advice:

* `RetriableError`: a temporary failure; the client retried until its deadline, and the application may repeat
  the call.
* `AbortableError`: the transaction cannot be committed; call `abort()` and run it again.  The producer stays
  usable.
* `FatalError`: close this producer or consumer; a new one may be created.
* `RequestError`: the request itself was invalid (a record too large, an unknown topic, a bad setting): change
  it.

All are `KafkaError`s, so `error.code` is the protocol's own code.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from ...wire.errors import ErrorCode, KafkaError


class RetriableError(KafkaError):
    """The call failed until its deadline; it may succeed later."""


class AbortableError(KafkaError):
    """The current transaction must be aborted."""


class FatalError(KafkaError):
    """This client object cannot be used any longer."""


class RequestError(KafkaError):
    """The request is invalid, or not allowed in this state."""


class ConnectionFailed(RetriableError):
    """No connection to a broker, or the connection broke before the answer: whether the request took effect
    is unknown."""


class DeliveryTimeout(RetriableError):
    """A record was not acknowledged in time; it may or may not be in the log."""


class BufferExhausted(RetriableError):
    """The producer's memory stayed full: the application sends records faster than the brokers accept
    them."""


class CommitOutcomeUnknown(RetriableError):
    """The coordinator did not answer a commit: the client does not know whether the transaction is committed
    or aborted.

    Another `commit()` asks for the outcome; `begin()` continues without it.
    """


class TransactionTimedOut(AbortableError):
    """The coordinator aborted the transaction because it was open for longer than its timeout."""


class ProducerFenced(FatalError):
    """Another producer with the same transactional id has taken over."""


class GroupChanged(RequestError):
    """The consumer's group has rebalanced: this member no longer owns its former partitions.  Call `poll`
    again."""


class NoOffset(RequestError):
    """A partition has no position: the group has no committed offset and the reset policy is `none`."""


class Family(Enum):
    """What an error code means for the client."""

    RETRIABLE = "retriable"
    ABORTABLE = "abortable"
    FENCED = "fenced"
    FATAL = "fatal"
    REQUEST = "request"


# Answers of coordinators and leaders in a transaction.  A code that is not here is retriable if the protocol
# says so; otherwise the request was invalid.
TRANSACTION_FAMILIES: Final[dict[ErrorCode, Family]] = {
    ErrorCode.PRODUCER_FENCED: Family.FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH: Family.FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Family.ABORTABLE,
    ErrorCode.UNKNOWN_PRODUCER_ID: Family.ABORTABLE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: Family.ABORTABLE,
    ErrorCode.TRANSACTION_ABORTABLE: Family.ABORTABLE,
    ErrorCode.INVALID_TXN_STATE: Family.ABORTABLE,
    ErrorCode.ILLEGAL_GENERATION: Family.ABORTABLE,
    ErrorCode.UNKNOWN_MEMBER_ID: Family.ABORTABLE,
    ErrorCode.FENCED_INSTANCE_ID: Family.ABORTABLE,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: Family.ABORTABLE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: Family.ABORTABLE,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Family.FATAL,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: Family.FATAL,
    ErrorCode.UNSUPPORTED_VERSION: Family.FATAL,
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: Family.FATAL,
    ErrorCode.CONCURRENT_TRANSACTIONS: Family.RETRIABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Family.RETRIABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Family.RETRIABLE,
    ErrorCode.NOT_COORDINATOR: Family.RETRIABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Family.RETRIABLE,
}

ADVICE: Final[dict[ErrorCode, str]] = {
    ErrorCode.PRODUCER_FENCED: "another producer with this transactional id took over: close this one",
    ErrorCode.INVALID_PRODUCER_EPOCH: "another producer with this id took over, or the transaction timed out",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: (
        "an earlier batch of this partition was lost: send its records again"
    ),
    ErrorCode.UNKNOWN_PRODUCER_ID: (
        "the partition does not know this producer (was the topic made anew?): abort and run it again"
    ),
    ErrorCode.INVALID_TXN_STATE: (
        "the coordinator has ended this transaction otherwise (timeout?): abort it and run it again"
    ),
    ErrorCode.TRANSACTION_ABORTABLE: "abort the transaction and run it again",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        "choose a transaction timeout up to the brokers' transaction.max.timeout.ms"
    ),
    ErrorCode.MESSAGE_TOO_LARGE: "send smaller records, or raise the topic's max.message.bytes",
    ErrorCode.RECORD_LIST_TOO_LARGE: "send smaller records, or raise the topic's segment.bytes",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create it with `tidegate topics create`, or check its name",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer in-sync replicas than min.insync.replicas: start the missing nodes",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (
        "fewer in-sync replicas than min.insync.replicas: start the missing nodes"
    ),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: (
        "its state partition has no leader now: are enough nodes running? try `tidegate status`"
    ),
    ErrorCode.NOT_COORDINATOR: "the coordinator is moving to another node: try again",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator is reading its state: try again",
    ErrorCode.CONCURRENT_TRANSACTIONS: (
        "the previous transaction of this id is still being completed: try again"
    ),
    ErrorCode.LEADER_NOT_AVAILABLE: (
        "the partition has no leader now: are enough nodes running? try `tidegate status`"
    ),
    ErrorCode.ILLEGAL_GENERATION: (
        "the group has rebalanced meanwhile: take the new assignment and read again"
    ),
    ErrorCode.UNKNOWN_MEMBER_ID: (
        "the group has removed this member (session timeout?): take the new assignment and read again"
    ),
    ErrorCode.FENCED_INSTANCE_ID: "another member with the same group.instance.id took over: close this one",
    ErrorCode.UNSUPPORTED_VERSION: (
        "client and broker have no version of this request in common: upgrade the older one"
    ),
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: (
        "it was never used, or has expired: `tidegate txns list` shows those there are"
    ),
    ErrorCode.GROUP_ID_NOT_FOUND: "`tidegate groups list` shows the groups that there are",
    ErrorCode.NON_EMPTY_GROUP: "stop its members first",
    ErrorCode.TOPIC_ALREADY_EXISTS: "choose another name, or use the topic that is there",
    ErrorCode.INVALID_REPLICATION_FACTOR: (
        "there are fewer nodes than replicas: start more nodes or ask for fewer replicas"
    ),
    ErrorCode.OFFSET_OUT_OF_RANGE: "seek to an offset between the log's start and end",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: (
        "the transactional id has expired or has another producer id: abort and run it again"
    ),
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (
        "members of the group read this topic: stop them, or let them read others, first"
    ),
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group is full: stop a member, or raise group.max.size",
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "choose one between group.min.session.timeout.ms and group.max.session.timeout.ms"
    ),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        "the group's members use other assignors: choose one that all of them know"
    ),
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "choose gzip, snappy, lz4, zstd or none",
}


# For codes without a more specific advice.
FAMILY_ADVICE: Final[dict[Family, str]] = {
    Family.RETRIABLE: "it may work later: try again",
    Family.ABORTABLE: "abort the transaction and run it again",
    Family.FENCED: "another producer with this id took over: close this one",
    Family.FATAL: "close this client and make a new one when the cause is gone",
    Family.REQUEST: "it will be refused again as it is: correct it",
}


def family(code: ErrorCode) -> Family:
    """The family of an error of a transaction's request."""
    found = TRANSACTION_FAMILIES.get(code)
    if found is not None:
        return found
    return Family.RETRIABLE if code.retriable else Family.REQUEST


def sentence(code: ErrorCode, what: str, said: str | None = None) -> str:
    """A message: `what` failed, why, and what to do.  (A KafkaError prepends the name of the code.)"""
    said = (said or "").removeprefix(code.name).removeprefix(":").strip()
    reason = f": {said}" if said else ""
    advice = ADVICE.get(code)
    if advice is None and said and family(code) is Family.REQUEST:
        return f"{what}{reason}"  # the reason already says what to correct
    return f"{what}{reason} ({advice or FAMILY_ADVICE[family(code)]})"


def error_for(code: ErrorCode, what: str, said: str | None = None) -> KafkaError:
    """The exception for a code outside of transactions."""
    message = sentence(code, what, said)
    match family(code):
        case Family.RETRIABLE:
            return RetriableError(code, message)
        case Family.ABORTABLE:
            return AbortableError(code, message)
        case Family.FENCED:
            return ProducerFenced(code, message)
        case Family.FATAL:
            return FatalError(code, message)
        case Family.REQUEST:
            return RequestError(code, message)
