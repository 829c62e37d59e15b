"""The requests, timers, answers and effects of the transaction shard: plain values.

`TransactionShard.handle` takes them; it raises errors as `KafkaError`.  Codes are those of the newest API
versions: a handler of AddPartitionsToTxn/AddOffsetsToTxn/EndTxn below version 2 must turn PRODUCER_FENCED
into INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...wire.errors import ErrorCode
from ..outcome import Reply, Wait, Write
from .cut_events import CutEvent, CutReply
from .job_events import ContinueJob, JobEvent, JobReply
from .state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionPartition,
    TransactionState,
)


@dataclass(slots=True, frozen=True)
class TransactionIdentity:
    """Names one decided transaction under one coordinator.  A pair (producer id, epoch) may be used again;
    this never is."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    prepare_offset: int


@dataclass(slots=True, frozen=True)
class InitProducerId:
    """Begins or resumes a transactional id.  producer_id and producer_epoch are the expected pair of KIP-360,
    or -1.  two_phase_commit: the transactions have no timeout (KIP-939), whatever `timeout_ms`.
    keeps_transaction: one that is open or prepared is not aborted.

    A request with a null transactional id never comes here: the node answers an id of its block, with epoch
    0.
    """

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    two_phase_commit: bool = False
    keeps_transaction: bool = False


@dataclass(slots=True, frozen=True)
class AddPartitions:
    """AddPartitionsToTxn: by a client (TV1, v0-3), by a partition leader before a first append (TV2, v5:
    KIP-890 part 2), or, with verify_only, to ask whether the partitions are enlisted (v4: part 1).  Topic ids
    are filled in by the node."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TransactionPartition, ...]
    transaction_version: int = 1
    verify_only: bool = False


@dataclass(slots=True, frozen=True)
class AddOffsets:
    """AddOffsetsToTxn; the node computes the partition of __consumer_offsets from the group id
    (docs/semantics.md O1)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    offsets_partition: TransactionPartition
    transaction_version: int = 1


@dataclass(slots=True, frozen=True)
class PrepareTransaction:
    """Closes the open transaction, for its owner to end it later, however long that takes."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(slots=True, frozen=True)
class EndTxn:
    """Commits or aborts.  transaction_version is 2 for EndTxn v5 and later, else 1."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    transaction_version: int = 1


@dataclass(slots=True, frozen=True)
class MarkersWritten:
    """The MarkerQueue reports that every partition has the marker of this decided transaction."""

    identity: TransactionIdentity


@dataclass(slots=True, frozen=True)
class TimeoutTransaction:
    """Timer: the transaction may have passed its timeout."""

    transactional_id: str


@dataclass(slots=True, frozen=True)
class ExpireTransactions:
    """Timer: these transactional ids may have been idle for too long."""

    transactional_ids: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class ListTransactions:
    """Filters are empty or -1 for all.  `states` are display names, e.g. "Ongoing"."""

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    duration_ms: int = -1


@dataclass(slots=True, frozen=True)
class DescribeTransactions:
    """One transactional id."""

    transactional_id: str


@dataclass(slots=True, frozen=True)
class ExpireAwaitingCompletion:
    """Timer: some `RequestsAwaitingCompletion` have waited for `completion_wait_ms`."""


TransactionEvent = (
    InitProducerId
    | AddPartitions
    | AddOffsets
    | PrepareTransaction
    | EndTxn
    | MarkersWritten
    | TimeoutTransaction
    | ExpireTransactions
    | ListTransactions
    | DescribeTransactions
    | ExpireAwaitingCompletion
    | JobEvent
    | CutEvent
)


@dataclass(slots=True, frozen=True)
class ProducerReply:
    """The identity that the producer uses from now on (InitProducerId; EndTxn of TV2; that of the request
    for PrepareTransaction).  EndTxn of TV1 answers (-1, -1).  ongoing: that of the transaction that was
    kept."""

    producer_id: int
    producer_epoch: int
    ongoing: tuple[int, int] = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(slots=True, frozen=True)
class PartitionsReply:
    """One error code a partition (AddPartitions, AddOffsets)."""

    errors: Mapping[TransactionPartition, ErrorCode]


@dataclass(slots=True, frozen=True)
class TransactionListing:
    """One line of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: TransactionState


@dataclass(slots=True, frozen=True)
class ListReply:
    """The matching transactions, and the names in the filter that are no states."""

    transactions: tuple[TransactionListing, ...]
    unknown_states: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class DescribeReply:
    """The entry of a transactional id."""

    metadata: TransactionMetadata


@dataclass(slots=True, frozen=True)
class Done:
    """The answer of a timer or marker event."""


TransactionReply = ProducerReply | PartitionsReply | ListReply | DescribeReply | JobReply | CutReply | Done


@dataclass(slots=True, frozen=True)
class SendMarkers:
    """Effect: write these markers (the PREPARE record is committed).  Hand it to the MarkerQueue."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    partitions: tuple[TransactionPartition, ...]
    transaction_version: int
    identity: TransactionIdentity


@dataclass(slots=True, frozen=True)
class NeedProducerIds:
    """Effect: the block of producer ids is used up: the node fetches another, and the rejected client
    retries."""


@dataclass(slots=True, frozen=True)
class CompleteHeld:
    """Effect: the shard is not held any more; submit these."""

    events: tuple[MarkersWritten, ...]


TransactionEffect = SendMarkers | NeedProducerIds | ContinueJob | CompleteHeld
TransactionOutcome = (
    Reply[TransactionReply, TransactionEffect]
    | Write[TransactionReply, TransactionEffect]
    | Wait[TransactionReply]
)


@dataclass(slots=True, frozen=True)
class TransactionConfig:
    """Limits and intervals.  max_producer_epoch is a parameter so that suites can run with 4 (rule T7)."""

    max_timeout_ms: int = 900_000
    expiration_ms: int = 7 * 24 * 3600 * 1000
    timeout_scan_interval_ms: int = 1_000
    completion_retry_interval_ms: int = 100
    expiration_scan_interval_ms: int = 3_600_000
    expiration_batch_max: int = 500
    timeouts_per_scan_max: int = 1_000
    completion_wait_ms: int = 0
    """How long a client's request waits for the completion of the last transaction (`awaiting_completion`);
    0: the shard answers CONCURRENT_TRANSACTIONS at once."""
    max_producer_epoch: int = field(default=32767)
    job_retention_ms: int = 7 * 24 * 3600 * 1000
    job_failover_grace_ms: int = 10_000
    """No job ends earlier after an election: its tasks first have to find the coordinator."""
    job_batch_max: int = 100
    """How many attempts of a decided job get their end in one batch."""
