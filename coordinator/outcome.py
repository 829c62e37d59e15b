"""What passes between the coordinator runtime and its shards: records, moments, outcomes, and the two
protocols.

A shard is a pure state machine: `handle` reads its state and returns a `ShardOutcome`; only `replay` changes
that state. The runtime owns the order of append, replay and reply (`running_shard.py`).

| outcome | what the runtime appends | the client that sent the event |
|---|---|---|
| `Reply` | nothing | gets the reply |
| `Write` | the records, as one batch | gets the reply |
| `WriteOffsets` | the records, as one batch, which may be transactional | gets the reply |
| `WriteAndRepeat` | the records, as one batch | waits; the shard handles the same event again |
| `Wait` | the records, if there are any, as one batch | waits until a later outcome names its token |

Every reply, answer and effect leaves when the records, and all that the shard wrote before, are committed.
An append that fails gives its error to all clients that the outcome would have answered, and has no effects.
A batch that is too large for the log is UNKNOWN_SERVER_ERROR, of `WriteOffsets` INVALID_COMMIT_OFFSET_SIZE.

`answers` are replies to clients that wait: their tokens, each with its reply.  `resume` are tokens of waiting
clients whose events the shard handles anew, once the records are in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from ..wire.errors import ErrorCode, KafkaError

EventT = TypeVar("EventT")
ReplyT = TypeVar("ReplyT")
EffectT = TypeVar("EffectT")

NO_TOKEN = 0


@dataclass(slots=True, frozen=True)
class CoordinatorRecord:
    """One record of an internal topic; `value` None is a tombstone.

    `decoded`: the object that `value` was encoded from, where the shard passes it on: `replay` then needs not
    decode the record, which costs more than encoding it.
    """

    key: bytes
    value: bytes | None
    decoded: object | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True, frozen=True)
class ProducerIdentity:
    """Makes the batch of an outcome a transactional one of this producer (docs/semantics.md O1)."""

    producer_id: int
    producer_epoch: int


class ReplayedRecord(NamedTuple):
    """A record with its place in the log; `producer` is set when its batch is transactional.  A load makes a
    million of them. `decoded`: see `CoordinatorRecord`; never set by a load."""

    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None
    producer: ProducerIdentity | None = None
    decoded: object | None = None


@dataclass(slots=True, frozen=True)
class Context:
    """What a shard gets with an event: the time, the offset of its first record, its leader epoch, and the
    caller's token, under which the caller waits when the outcome is `Wait`."""

    now_ms: int
    next_offset: int
    leader_epoch: int
    token: int = NO_TOKEN


@dataclass(slots=True, frozen=True)
class Reply(Generic[ReplyT, EffectT]):
    reply: ReplyT | KafkaError
    effects: Sequence[EffectT] = ()
    answers: Sequence[tuple[int, ReplyT | KafkaError]] = ()


@dataclass(slots=True, frozen=True)
class Write(Generic[ReplyT, EffectT]):
    records: Sequence[CoordinatorRecord]
    reply: ReplyT | KafkaError
    effects: Sequence[EffectT] = ()
    answers: Sequence[tuple[int, ReplyT | KafkaError]] = ()
    resume: Sequence[int] = ()


@dataclass(slots=True, frozen=True)
class WriteOffsets(Generic[ReplyT]):
    """`producer`: the batch is a transactional one of this producer (docs/semantics.md O1).  The runtime
    passes `guard` to the append unread (KIP-890 part 1)."""

    records: Sequence[CoordinatorRecord]
    reply: ReplyT | KafkaError
    producer: ProducerIdentity | None = None
    guard: object | None = None


@dataclass(slots=True, frozen=True)
class WriteAndRepeat:
    records: Sequence[CoordinatorRecord]


@dataclass(slots=True, frozen=True)
class Wait(Generic[ReplyT]):
    records: Sequence[CoordinatorRecord] = ()
    answers: Sequence[tuple[int, ReplyT | KafkaError]] = ()


ShardOutcome = (
    Reply[ReplyT, EffectT] | Write[ReplyT, EffectT] | WriteOffsets[ReplyT] | WriteAndRepeat | Wait[ReplyT]
)


class Shard(Protocol[EventT, ReplyT, EffectT]):
    """A partition's state machine.  `handle` must not change what `replay` owns; what it may change is
    volatile (waiting requests, deadlines) and may be lost at any time."""

    def handle(self, event: EventT, context: Context) -> ShardOutcome[ReplyT, EffectT]:
        """Decides.  Raising KafkaError is the same as an outcome with that error as its reply and nothing
        else."""

    def replay(self, record: ReplayedRecord) -> None:
        """Applies one record that is in the log, though perhaps not committed."""

    def replay_marker(self, producer: ProducerIdentity, commit: bool, offset: int) -> None:
        """Applies a transaction marker that is in the log."""

    def activated(self, context: Context) -> Sequence[ShardOutcome[ReplyT, EffectT]]:
        """Called once per leadership, after the barrier: finishes what the former leader may have left
        undone."""

    def due(self, now_ms: int) -> Sequence[EventT]:
        """Timer events that are due; they are submitted as events without a caller."""

    def resumed(self, now_ms: int, away_ms: int) -> None:
        """For `away_ms` this node answered no request and ran no timer, so clients could not meet their
        deadlines in that time."""

    def validate(self, event: EventT | None = None) -> None:
        """Raises AssertionError when an invariant does not hold of what `event` concerns, or, without an
        event, of anything.  The runtime calls it with `RuntimeConfig.validate`."""


# The error that a client of the coordinator gets for a failed append (Kafka's TransactionStateManager and
# CoordinatorOperationExceptionHelper agree).
APPEND_ERRORS: dict[ErrorCode, ErrorCode] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.CORRUPT_MESSAGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


# The same for a commit of offsets, as in Kafka's GroupMetadataManager (up to 3.9).
COMMIT_ERRORS: dict[ErrorCode, ErrorCode] = APPEND_ERRORS | dict.fromkeys(
    (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE), ErrorCode.INVALID_COMMIT_OFFSET_SIZE
)


class StateLog(Protocol):
    """The partition leader's log, as the coordinators see it."""

    def append(self, partition: int, leader_epoch: int, batch: bytes, guard: object | None = None) -> int:
        """Appends one batch as COORDINATOR and returns the next offset.  Raises KafkaError with *nothing*
        appended; after KAFKA_STORAGE_ERROR the caller assumes nothing about the log."""

    def high_watermark(self, partition: int) -> int:
        """The partition's high watermark as the leader knows it."""
