"""What holds of the entry of a transactional id at every moment, and from one record of it to the next
(docs/semantics.md T1, T6, T7).

`TransactionShard.validate` asks; the simulators ask after every step, and a node with `debug.validate` asks
after every event.  Each function yields sentences about what does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .cut_events import ExpireHolds, HoldDecisions, ReleaseDecisions
from .events import (
    AddOffsets,
    AddPartitions,
    DescribeTransactions,
    EndTxn,
    ExpireAwaitingCompletion,
    ExpireTransactions,
    InitProducerId,
    ListTransactions,
    MarkersWritten,
    PrepareTransaction,
    TimeoutTransaction,
    TransactionEvent,
)
from .job_events import (
    AbortJob,
    CarryOutJob,
    CommitJob,
    DescribeJob,
    ForgetJobs,
    ListJobs,
    OpenAttempt,
    PrepareAttempt,
    RenewJob,
    TimeoutJob,
)
from .state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    READ_STATES,
    VALID_PREVIOUS,
    TransactionMetadata,
    TransactionState,
    may_follow,
)


def transactional_ids_of(event: TransactionEvent) -> tuple[str, ...]:
    """The transactional ids whose entries an event may change."""
    match event:
        case (
            InitProducerId()
            | AddPartitions()
            | AddOffsets()
            | PrepareTransaction()
            | EndTxn()
            | TimeoutTransaction()
            | DescribeTransactions()
            | OpenAttempt()
            | PrepareAttempt()
        ):
            return (event.transactional_id,)
        case MarkersWritten():
            return (event.identity.transactional_id,)
        case ExpireTransactions():
            return event.transactional_ids
        case (
            ListTransactions()
            | ExpireAwaitingCompletion()
            | RenewJob()
            | CommitJob()
            | AbortJob()
            | TimeoutJob()
            | CarryOutJob()  # `TransactionShard.validate` knows its attempts
            | ForgetJobs()
            | ListJobs()
            | DescribeJob()
            | HoldDecisions()
            | ReleaseDecisions()
            | ExpireHolds()
        ):
            return ()


def entry_violations(entry: TransactionMetadata, max_producer_epoch: int) -> Iterator[str]:
    """What one entry says against itself."""
    state, decided = entry.state, entry.state.is_decided
    if state not in READ_STATES:
        yield "the state is never stored"
    if entry.producer_id < 0 or not 0 <= entry.producer_epoch <= max_producer_epoch:
        yield "the producer id or its epoch is out of range"
    rotates, kept = entry.next_producer_id != NO_PRODUCER_ID, entry.next_producer_epoch != NO_PRODUCER_EPOCH
    if not kept and (rotates != (entry.producer_epoch == max_producer_epoch) or (rotates and not decided)):
        yield "the last epoch and the next producer id belong together, between PREPARE and COMPLETE"
    if kept and not (rotates and (decided or state is TransactionState.PREPARED)):
        yield "an identity waits for the end of a transaction that is not prepared"
    if kept and not 0 <= entry.next_producer_epoch < max_producer_epoch:
        yield "the next producer epoch is out of range"
    if (
        kept
        and entry.next_producer_id == entry.producer_id
        and entry.next_producer_epoch <= entry.producer_epoch
    ):
        yield "the identity that waits is not above that of the transaction"
    if not kept and entry.producer_id in (entry.previous_producer_id, entry.next_producer_id):
        yield "a producer id follows itself"
    last = entry.last_producer_epoch
    present_epoch = entry.next_producer_epoch if kept else entry.producer_epoch
    if last != NO_PRODUCER_EPOCH and last >= present_epoch and entry.previous_producer_id < 0:
        yield "the epoch before the present one is not below it"
    if state in (TransactionState.ONGOING, TransactionState.PREPARED) and last != NO_PRODUCER_EPOCH:
        yield "a producer with an open transaction may repeat an older request"
    without_partitions = decided and not state.commits and entry.transaction_version >= 2
    if bool(entry.partitions) != state.runs and not without_partitions:
        yield "partitions are enlisted exactly while the transaction is open or decided"
    if state.runs and entry.start_ms < 0:
        yield "an open transaction has no start"
    if entry.timeout_ms <= 0:
        yield "the transaction timeout is not positive"


def succession_violations(before: TransactionMetadata, after: TransactionMetadata | None) -> Iterator[str]:
    """What a later entry of the same id says against an earlier one; any number of records may lie
    between."""
    if after is None:
        return
    if after.record_offset < before.record_offset:
        yield f"record {after.record_offset} came after record {before.record_offset}"
    if after.producer_id == before.producer_id and after.producer_epoch < before.producer_epoch:
        yield f"the producer epoch fell from {before.producer_epoch}"


def record_violations(before: TransactionMetadata, after: TransactionMetadata | None) -> Iterator[str]:
    """What the very next record of an id says against the entry that it replaces.  None: a tombstone."""
    if after is None:
        if before.state not in VALID_PREVIOUS[TransactionState.DEAD]:
            yield f"a tombstone followed {before.state.name}"
        return
    if after == replace(before, record_offset=after.record_offset):
        return  # the entry was confirmed
    if not may_follow(before.state, after.state, after.transaction_version):
        yield f"{after.state.name} followed {before.state.name}"
    rotated = after.previous_producer_id == before.producer_id and after.producer_epoch == 0
    waited = before.next_producer_epoch != NO_PRODUCER_EPOCH and after.producer_id == before.next_producer_id
    if after.producer_id != before.producer_id and not rotated and not waited:
        yield f"producer id {after.producer_id} took the place of {before.producer_id} without a rotation"
    if after.state.is_complete and after.producer_id not in (before.producer_id, before.next_producer_id):
        yield "the completed transaction left another producer id than its PREPARE named"
