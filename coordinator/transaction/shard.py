"""The transaction shard: the transactional ids of one partition of __transaction_state (docs/semantics.md,
T).

`handle` checks the identity (producer id and epoch), looks up the action in `state.RULES`, and returns the
record to write; `replay` puts the record into the map.  Nothing else changes the map.

Promises
- The client is answered after PREPARE is committed and before the markers (rule T11).  The runtime parks both
  the answer and the `SendMarkers` effect, so no marker ever leaves for an uncommitted PREPARE (rule T12).
- Fencing a producer (`Action.FENCE`) bumps its epoch exactly once, in the record of PREPARE_ABORT; a failed
  append bumps none (KAFKA-9666, KAFKA-19367).
- A bump past the last epoch of a producer id rotates to a fresh id instead, in every path: InitProducerId,
  EndTxn of TV2, and the fencing of a producer (rule T7).
- The shard repeats COMPLETE until it is in the log: the timer retries an append that failed
  (NOT_ENOUGH_REPLICAS).
- COMPLETE is written only for the very PREPARE whose markers are written: `TransactionIdentity`, not the
  transactional id (KAFKA-16352).

- TV1 uses one epoch for many transactions, so a deposed coordinator that does not know it yet cannot see that
  a request belongs to a later transaction than the last one in its log.  Therefore every answer that lets a
  TV1 producer go on is *confirmed*: the shard writes the unchanged entry again, and only the real leader gets
  it committed.  Without this, the deposed coordinator could answer "committed" for the transaction before, or
  call a partition enlisted to which no coordinator sends a marker. Where this node holds the only replica
  there is nothing to confirm: only a replica that the leader itself brought into the ISR can lead a state
  partition later (rule M16), and a leader that knows of no other replica has brought none into it.

Where Tidegate is stricter or kinder than Kafka
- InitProducerId with an expected epoch that is not the current one never aborts the transaction of the
  rightful producer.
- A producer whose transaction timed out may resume by KIP-360 (KIP-588); a producer that a new instance
  fenced may not.
- TV2: a *next* EndTxn that overtakes the markers of the last transaction gets CONCURRENT_TRANSACTIONS
  (retry), it is not fenced.
- PREPARED is durable and closed: Kafka's two-phase commit (KIP-939) leaves a transaction Ongoing, and its
  client alone knows that it is prepared.
- A producer that resumes after it was fenced gets an epoch above that of the abort markers, so that no
  delayed marker of its aborted transaction applies to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from ...wire.errors import ErrorCode, KafkaError
from ..outcome import (
    Context,
    CoordinatorRecord,
    ProducerIdentity,
    ReplayedRecord,
    Reply,
    Wait,
    Write,
)
from . import job_records, records
from .awaiting_completion import RequestsAwaitingCompletion
from .cut_events import ExpireHolds, HoldDecisions, ReleaseDecisions
from .decision_holds import DecisionHolds
from .events import (
    AddOffsets,
    AddPartitions,
    DescribeReply,
    DescribeTransactions,
    Done,
    EndTxn,
    ExpireAwaitingCompletion,
    ExpireTransactions,
    InitProducerId,
    ListReply,
    ListTransactions,
    MarkersWritten,
    NeedProducerIds,
    PartitionsReply,
    PrepareTransaction,
    ProducerReply,
    SendMarkers,
    TimeoutTransaction,
    TransactionConfig,
    TransactionEffect,
    TransactionEvent,
    TransactionIdentity,
    TransactionListing,
    TransactionOutcome,
    TransactionReply,
)
from .identity import check_identity, expected_identity, fenced, repeats_end, repeats_init
from .job_book import JobBook
from .job_decisions import JobDecisions
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
from .jobs import PREFIX, Job, attempt_of
from .state import (
    FIRST_LEVEL,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    PROPERTIES,
    RULES,
    Action,
    Stimulus,
    TransactionMetadata,
    TransactionPartition,
    TransactionState,
    is_exhausted,
    is_stored,
    leads_to,
    may_follow,
)
from .validation import entry_violations, record_violations, succession_violations, transactional_ids_of

ENLISTED_BYTES_MAX: Final = (1 << 20) - 4096
"""The largest record that enlists partitions.  The records that end the transaction name the same partitions,
are a little longer, and must fit into a batch of `max.message.bytes` as well."""

_REFUSALS: dict[Action, tuple[ErrorCode, str]] = {
    Action.REFUSE_CONCURRENT: (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        "the last transaction is still being completed: retry",
    ),
    Action.REFUSE_STATE: (ErrorCode.INVALID_TXN_STATE, "the transaction is not in a state that allows this"),
    Action.REFUSE_FENCED: (ErrorCode.PRODUCER_FENCED, "the request belongs to a transaction that has ended"),
    Action.REFUSE_NOT_FOUND: (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "there is no such transactional id"),
    Action.REFUSE_MAPPING: (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        "unknown transactional id: call InitProducerId first",
    ),
    Action.UNREACHABLE: (
        ErrorCode.UNKNOWN_SERVER_ERROR,
        "the transaction is in a state that is never stored",
    ),
}


class ProducerIdsExhausted(Exception):
    """The node has no producer id left; the client retries until the node has fetched a block."""


class TransactionShard:
    """One partition's transactional ids.  take_producer_id() returns a fresh id from the node's block, or
    None. is_only_replica(): as far as this node knows, no other node holds a replica of the partition, or is
    to get one.  finalised_level(): that of `tidegate.metadata.version`; states and fields of a later one are
    not written, because a coordinator of an older version could not read them."""

    def __init__(
        self,
        config: TransactionConfig,
        take_producer_id: Callable[[], int | None],
        coordinator_epoch: int,
        is_only_replica: Callable[[], bool] = lambda: False,
        finalised_level: Callable[[], int] = lambda: FIRST_LEVEL,
    ) -> None:
        self.config = config
        self.coordinator_epoch = coordinator_epoch
        self.transactions: dict[str, TransactionMetadata] = {}
        self.ongoing: dict[str, None] = {}
        self.prepared: dict[str, None] = {}
        self.decided: dict[str, None] = {}
        # volatile: all markers are written, COMPLETE is not in the log yet
        self.marked: dict[str, TransactionIdentity] = {}
        self._awaiting_completion = RequestsAwaitingCompletion(config.completion_wait_ms)
        self.holds = DecisionHolds(self)
        self.jobs = JobDecisions(
            config, self, self.holds, lambda: self._require_stored(TransactionState.PREPARED)
        )
        self._take_producer_id = take_producer_id
        self._is_only_replica = is_only_replica
        self._finalised_level = finalised_level
        self._next_timeout_scan_ms = 0
        self._next_completion_ms = 0
        self._next_expiration_scan_ms = 0
        self._activated_ms = 0
        # the entries that the last `validate` has seen; empty where nothing calls it
        self._validated: dict[str, TransactionMetadata] = {}

    @property
    def book(self) -> JobBook:
        return self.jobs.book

    # --- replay: the only mutator ---------------------------------------------------------------------------

    def replay(self, record: ReplayedRecord) -> None:
        written = record.decoded if isinstance(record.decoded, TransactionMetadata) else None
        transactional_id = records.decode_key(record.key) if written is None else written.transactional_id
        if transactional_id is None:
            self._replay_job(record)
            return
        if transactional_id.startswith(PREFIX):
            self.jobs.book.attempt_changed(transactional_id, exists=record.value is not None)
        self.ongoing.pop(transactional_id, None)
        self.prepared.pop(transactional_id, None)
        self.decided.pop(transactional_id, None)
        self.marked.pop(transactional_id, None)
        if record.value is None:
            self.transactions.pop(transactional_id, None)
            return
        if written is None:
            metadata = records.decode_value(transactional_id, record.value, record.offset)
        else:
            metadata = replace(written, record_offset=record.offset)
        self.transactions[transactional_id] = metadata
        if metadata.state.is_decided:
            self.decided[transactional_id] = None
            self.holds.remove(transactional_id)
            return
        self._awaiting_completion.remove(transactional_id)
        if metadata.state is TransactionState.ONGOING:
            self.ongoing[transactional_id] = None
        elif metadata.state is TransactionState.PREPARED:
            self.prepared[transactional_id] = None

    def _replay_job(self, record: ReplayedRecord) -> None:
        job_id = job_records.decode_key(record.key)
        if job_id is None:
            return  # a key version of a later release
        job = record.decoded if isinstance(record.decoded, Job) else None
        if job is None and record.value is not None:
            job = job_records.decode_value(job_id, record.value)
        self.jobs.book.replay(job_id, job)
        if job_id not in self.jobs.book.open:
            self.holds.remove(job_id)

    def replay_marker(self, producer: ProducerIdentity, commit: bool, offset: int) -> None:
        """No transaction writes to __transaction_state; a stray marker changes nothing."""

    def resumed(self, now_ms: int, away_ms: int) -> None:
        """The timeout of a transaction runs on, as it does during the election of a coordinator."""

    def activated(self, context: Context) -> Sequence[TransactionOutcome]:
        """Sends the markers of every transaction that the former coordinator left between PREPARE and
        COMPLETE (rule T20), and carries out what it has decided of jobs."""
        self._activated_ms = context.now_ms
        effects: list[TransactionEffect] = [
            self._send_markers(self.transactions[name], self.transactions[name].record_offset)
            for name in self.decided
        ]
        return [Reply(Done(), [*effects, *self.jobs.activated(context.now_ms)])]

    def due(self, now_ms: int) -> Sequence[TransactionEvent]:
        events: list[TransactionEvent] = list(self.jobs.due(now_ms))
        if self.marked and now_ms >= self._next_completion_ms:
            self._next_completion_ms = now_ms + self.config.completion_retry_interval_ms
            events += [MarkersWritten(identity) for identity in self.marked.values()]
        if self._awaiting_completion.has_overdue(now_ms):
            events.append(ExpireAwaitingCompletion())
        if now_ms >= self._next_timeout_scan_ms:
            self._next_timeout_scan_ms = now_ms + self.config.timeout_scan_interval_ms
            late = [name for name in self.ongoing if self._timed_out(self.transactions[name], now_ms)]
            events += [TimeoutTransaction(name) for name in late[: self.config.timeouts_per_scan_max]]
        if now_ms >= self._next_expiration_scan_ms:
            self._next_expiration_scan_ms = now_ms + self.config.expiration_scan_interval_ms
            idle = [name for name, metadata in self.transactions.items() if self._expired(metadata, now_ms)]
            size = self.config.expiration_batch_max
            events += [
                ExpireTransactions(tuple(idle[start : start + size])) for start in range(0, len(idle), size)
            ]
        if self.holds.is_overdue(now_ms):
            events.append(ExpireHolds())  # after the timeouts: they leave alone what waits for it
        return events

    # --- handle ---------------------------------------------------------------------------------------------

    def handle(self, event: TransactionEvent, context: Context) -> TransactionOutcome:
        try:
            return self._decide(event, context)
        except ProducerIdsExhausted:
            error = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no producer id at hand: retry")
            return Reply(error, effects=(NeedProducerIds(),))
        except KafkaError as error:
            busy = error.code is ErrorCode.CONCURRENT_TRANSACTIONS
            name = getattr(event, "transactional_id", "")
            if (
                busy
                and name in self.decided
                and self._awaiting_completion.add(name, event, context.token, context.now_ms)
            ):
                return Wait()
            raise

    def _decide(self, event: TransactionEvent, context: Context) -> TransactionOutcome:
        match event:
            case InitProducerId():
                self._refuse_attempt(event.transactional_id, "OpenAttempt makes its producer")
                return self._init_producer_id(event, context)
            case AddPartitions():
                self._require_open_job(event.transactional_id)
                return self._verify(event) if event.verify_only else self._add_partitions(event, context)
            case AddOffsets():
                self._require_open_job(event.transactional_id)
                partitions = (event.offsets_partition,)
                version = event.transaction_version
                add = AddPartitions(
                    event.transactional_id, event.producer_id, event.producer_epoch, partitions, version
                )
                return self._add_partitions(add, context)
            case PrepareTransaction():
                self._refuse_attempt(event.transactional_id, "PrepareAttempt prepares it")
                return self._prepare(event, context)
            case EndTxn():
                if event.commit:
                    self._refuse_attempt(event.transactional_id, "its job alone commits it")
                self._require_open_job(event.transactional_id)
                return self._end(event, context)
            case MarkersWritten():
                return self._complete(event.identity, context)
            case TimeoutTransaction():
                return self._time_out(event.transactional_id, context)
            case ExpireTransactions():
                return self._expire(event.transactional_ids, context)
            case ExpireAwaitingCompletion():
                refusal = KafkaError(*_REFUSALS[Action.REFUSE_CONCURRENT])
                overdue = self._awaiting_completion.take_overdue(context.now_ms)
                return Reply(Done(), answers=[(token, refusal) for token in overdue])
            case ListTransactions():
                return self._list(event, context)
            case DescribeTransactions():
                return self._describe(event)
            case HoldDecisions() | ReleaseDecisions() | ExpireHolds():
                return self.holds.handle(event, context)
            case (
                OpenAttempt()
                | PrepareAttempt()
                | RenewJob()
                | CommitJob()
                | AbortJob()
                | TimeoutJob()
                | CarryOutJob()
                | ForgetJobs()
                | ListJobs()
                | DescribeJob()
            ):
                return self.jobs.handle(event, context)

    def _refuse_attempt(self, transactional_id: str, because: str) -> None:
        if transactional_id.startswith(PREFIX):
            message = f"{transactional_id}: this is an attempt of a job: {because}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)

    def _require_open_job(self, transactional_id: str) -> None:
        """Between its job's decision and what follows from it nothing else ends an attempt, or enlarges
        it."""
        if transactional_id.startswith(PREFIX) and not self.jobs.book.is_open(transactional_id):
            message = f"{transactional_id}: its job is not open any more"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, message)

    def _lookup(self, transactional_id: str, stimulus: Stimulus) -> tuple[TransactionMetadata, Action]:
        """The entry and the action of the table.  Raises the error of a rejecting action, and
        INVALID_PRODUCER_ID_MAPPING without an entry."""
        current = self.transactions.get(transactional_id)
        action = RULES[(current.state if current else TransactionState.DEAD, stimulus)]
        refusal = _REFUSALS.get(action)
        if refusal is not None or current is None:
            code, message = refusal or _REFUSALS[Action.REFUSE_MAPPING]
            state = current.state.display_name if current else "unknown"
            raise KafkaError(code, f"{transactional_id}: {stimulus.value} while {state}: {message}")
        return current, action

    # --- InitProducerId -------------------------------------------------------------------------------------

    def _init_producer_id(self, event: InitProducerId, context: Context) -> TransactionOutcome:
        if not event.transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        if event.two_phase_commit:
            self._require_stored(TransactionState.PREPARED)
        elif not 0 < event.timeout_ms <= self.config.max_timeout_ms:
            limit = (
                f"the transaction timeout {event.timeout_ms} ms must lie between 1 and "
                f"{self.config.max_timeout_ms} ms"
            )
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT, limit + " (transaction.max.timeout.ms)")
        stimulus = Stimulus.INIT_KEEPING if event.keeps_transaction else Stimulus.INIT_PRODUCER_ID
        if event.transactional_id not in self.transactions:
            created = TransactionMetadata(
                transactional_id=event.transactional_id,
                producer_id=self._fresh_producer_id(),
                producer_epoch=0,
                timeout_ms=_timeout_ms(event),
                state=TransactionState.EMPTY,
                last_update_ms=context.now_ms,
            )
            action = RULES[(TransactionState.DEAD, stimulus)]
            reply = ProducerReply(created.producer_id, 0)
            return self._transition(created, TransactionState.DEAD, action, reply)
        current, action = self._lookup(event.transactional_id, stimulus)
        if action is Action.FENCE:
            return self._init_over_ongoing(event, current, context)
        if action is Action.KEEP:
            return self._keep(event, current, context)
        return self._next_identity(event, current, action, context)

    def _init_over_ongoing(
        self, event: InitProducerId, current: TransactionMetadata, context: Context
    ) -> TransactionOutcome:
        """Fences the producer and aborts its open transaction; the client retries until the abort is
        complete.  No client ever gets the epoch of the abort markers."""
        expected = expected_identity(event)
        if expected is not None and expected != current.client_identity:
            raise fenced(expected, current)
        message = f"{event.transactional_id}: its open transaction is being aborted: retry"
        retry = KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, message)
        return self._fence_producer(current, context, retry, may_resume=expected is not None)

    def _keep(
        self, event: InitProducerId, current: TransactionMetadata, context: Context
    ) -> TransactionOutcome:
        """KIP-939: the transaction stays as it is, under the identity that its markers will carry on from;
        the caller gets the next one, which fences every older instance, and ends the transaction with it."""
        expected = expected_identity(event)
        if expected is not None and expected != current.client_identity:
            raise fenced(expected, current)
        kept = replace(
            self._with_next_client_epoch(current),
            state=TransactionState.PREPARED,
            timeout_ms=_timeout_ms(event),
            last_update_ms=context.now_ms,
            last_producer_epoch=NO_PRODUCER_EPOCH,
        )
        reply = ProducerReply(*kept.client_identity, (current.producer_id, current.producer_epoch))
        return self._transition(kept, current.state, Action.KEEP, reply)

    def _with_next_client_epoch(self, metadata: TransactionMetadata) -> TransactionMetadata:
        """The client's next identity, in force once the transaction completes."""
        producer_id, producer_epoch = metadata.client_identity
        if not is_exhausted(producer_epoch, self.config.max_producer_epoch):
            return replace(metadata, next_producer_id=producer_id, next_producer_epoch=producer_epoch + 1)
        fresh = self._fresh_producer_id()
        return replace(
            metadata, next_producer_id=fresh, next_producer_epoch=0, previous_producer_id=producer_id
        )

    def _next_identity(
        self, event: InitProducerId, current: TransactionMetadata, action: Action, context: Context
    ) -> TransactionOutcome:
        expected = expected_identity(event)
        exhausted = is_exhausted(current.producer_epoch, self.config.max_producer_epoch)
        base = replace(
            current,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            start_ms=-1,
            last_update_ms=context.now_ms,
            timeout_ms=_timeout_ms(event),
        )
        if expected is None:
            # a new instance: no repeated request of an older instance may succeed any more
            last_epoch = NO_PRODUCER_EPOCH
        elif expected == (current.producer_id, current.producer_epoch):
            last_epoch = current.producer_epoch
        elif repeats_init(expected, current):
            last_epoch = expected[1]
            # Still Empty: the client repeats an InitProducerId whose answer was lost.  Complete: its first
            # InitProducerId after an EndTxn of unknown outcome, or after a timeout: the next epoch, or the
            # next id, is above that of the markers.
            if current.state is TransactionState.EMPTY:
                kept = replace(base, last_producer_epoch=last_epoch)
                reply = ProducerReply(kept.producer_id, kept.producer_epoch)
                return self._transition(kept, current.state, action, reply)
        else:
            raise fenced(expected, current)
        if exhausted:
            rotated, previous = self._fresh_producer_id(), current.producer_id
            following = replace(base, producer_id=rotated, producer_epoch=0, previous_producer_id=previous)
            following = replace(following, last_producer_epoch=last_epoch)
        else:
            following = replace(
                base, producer_epoch=current.producer_epoch + 1, last_producer_epoch=last_epoch
            )
        reply = ProducerReply(following.producer_id, following.producer_epoch)
        return self._transition(following, current.state, action, reply)

    def _fresh_producer_id(self) -> int:
        producer_id = self._take_producer_id()
        if producer_id is None:
            raise ProducerIdsExhausted
        return producer_id

    # --- partitions -----------------------------------------------------------------------------------------

    def _add_partitions(self, event: AddPartitions, context: Context) -> TransactionOutcome:
        check_identity(event, self.transactions.get(event.transactional_id))
        current, action = self._lookup(event.transactional_id, Stimulus.ADD_PARTITIONS)
        reply = PartitionsReply(dict.fromkeys(event.partitions, ErrorCode.NONE))
        ongoing = current.state is TransactionState.ONGOING
        if ongoing and current.partitions.issuperset(event.partitions):
            return self._unchanged(current, reply, event.transaction_version)
        following = replace(
            current,
            state=TransactionState.ONGOING,
            partitions=current.partitions | frozenset(event.partitions)
            if ongoing
            else frozenset(event.partitions),
            start_ms=current.start_ms if ongoing else context.now_ms,
            last_update_ms=context.now_ms,
            transaction_version=event.transaction_version,
            # A producer that begins a transaction has received the current epoch: it does not repeat older
            # requests, and a delayed duplicate of one must not bump the epoch.
            last_producer_epoch=NO_PRODUCER_EPOCH,
        )
        outcome = self._transition(following, current.state, action, reply)
        if sum(len(record.key) + len(record.value or b"") for record in outcome.records) > ENLISTED_BYTES_MAX:
            message = (
                f"{event.transactional_id}: {len(following.partitions)} partitions are more than one "
                "transaction can name"
            )
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message)
        return outcome

    def _verify(self, event: AddPartitions) -> TransactionOutcome:
        """Answers a partition leader which partitions are enlisted (KIP-890 part 1).  Outside an open
        transaction the answer is TRANSACTION_ABORTABLE."""
        check_identity(event, self.transactions.get(event.transactional_id))
        current, action = self._lookup(event.transactional_id, Stimulus.VERIFY_PARTITIONS)
        errors = {
            partition: ErrorCode.NONE
            if action is Action.VERIFY and current.contains(partition)
            else ErrorCode.TRANSACTION_ABORTABLE
            for partition in event.partitions
        }
        reply = PartitionsReply(errors)
        return self._unchanged(current, reply, 1) if ErrorCode.NONE in errors.values() else Reply(reply)

    # --- the end of a transaction ---------------------------------------------------------------------------

    def _prepare(self, event: PrepareTransaction, context: Context) -> TransactionOutcome:
        check_identity(event, self.transactions.get(event.transactional_id))
        current, action = self._lookup(event.transactional_id, Stimulus.PREPARE)
        reply = ProducerReply(event.producer_id, event.producer_epoch)
        if current.transaction_version < 2:
            message = f"{event.transactional_id}: a transaction of the older protocol cannot be prepared"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)
        if action is Action.CONFIRM:
            return self._unchanged(current, reply, current.transaction_version)
        following = replace(current, state=TransactionState.PREPARED, last_update_ms=context.now_ms)
        return self._transition(following, current.state, action, reply)

    def _end(self, event: EndTxn, context: Context) -> TransactionOutcome:
        current = self.transactions.get(event.transactional_id)
        repeated = current is not None and repeats_end(event, current, self.config.max_producer_epoch)
        if not repeated:
            check_identity(event, current)
        stimulus = _end_stimulus(event, repeated)
        current, action = self._lookup(event.transactional_id, stimulus)
        with_epoch = event.transaction_version >= 2
        if action is Action.CONFIRM:
            reply = ProducerReply(*current.client_identity) if with_epoch else ProducerReply(-1, -1)
            return self._unchanged(current, reply, event.transaction_version)
        if event.commit and self.holds.is_held(context.now_ms):
            return self.holds.keep(event.transactional_id, context)
        following = replace(
            current,
            state=TransactionState.PREPARE_COMMIT if event.commit else TransactionState.PREPARE_ABORT,
            last_update_ms=context.now_ms,
            transaction_version=event.transaction_version,
        )
        if not current.state.runs:
            following = replace(following, start_ms=context.now_ms, partitions=frozenset())
        if with_epoch:
            following = self._bumped(following, last_producer_epoch=current.client_identity[1])
        reply = ProducerReply(*following.client_identity) if with_epoch else ProducerReply(-1, -1)
        return self._transition(
            following, current.state, action, reply, self._send_markers(following, context.next_offset)
        )

    def _bumped(self, metadata: TransactionMetadata, last_producer_epoch: int) -> TransactionMetadata:
        """Bumps the epoch by one; at the last epoch also names the next producer id (KAFKA-20090)."""
        highest = self.config.max_producer_epoch
        if metadata.next_producer_epoch != NO_PRODUCER_EPOCH:
            metadata = self._with_next_client_epoch(metadata)
        elif is_exhausted(metadata.producer_epoch, highest):
            metadata = replace(metadata, next_producer_id=self._fresh_producer_id())
        epoch = min(metadata.producer_epoch + 1, highest)
        return replace(metadata, producer_epoch=epoch, last_producer_epoch=last_producer_epoch)

    def _fence_producer(
        self,
        current: TransactionMetadata,
        context: Context,
        reply: TransactionReply | KafkaError,
        *,
        may_resume: bool,
    ) -> TransactionOutcome:
        """Bumps the producer's epoch and aborts its transaction, in one record.  The abort markers carry the
        new epoch."""
        aborting = replace(current, state=TransactionState.PREPARE_ABORT, last_update_ms=context.now_ms)
        last_epoch = current.client_identity[1] if may_resume else NO_PRODUCER_EPOCH
        following = self._bumped(aborting, last_epoch)
        return self._transition(
            following, current.state, Action.FENCE, reply, self._send_markers(following, context.next_offset)
        )

    # --- attempts of jobs (`AttemptPort`) -------------------------------------------------------------------

    def open_attempt(self, event: InitProducerId, context: Context) -> TransactionOutcome:
        return self._init_producer_id(event, context)

    def prepare_attempt(self, event: PrepareTransaction, context: Context) -> TransactionOutcome:
        return self._prepare(event, context)

    def end_attempt(
        self, current: TransactionMetadata, action: Action, context: Context, offset: int
    ) -> tuple[CoordinatorRecord, SendMarkers | None]:
        if action is Action.TOMBSTONE:
            return CoordinatorRecord(records.encode_key(current.transactional_id), None), None
        target = leads_to(current.state, action)
        if target is None:
            raise AssertionError(f"{current.transactional_id}: {current.state.name} while its job is decided")
        ended = replace(current, state=target, last_update_ms=context.now_ms, transaction_version=2)
        following = self._bumped(ended, NO_PRODUCER_EPOCH)
        (record,) = self._transition(following, current.state, action, Done()).records
        return record, self._send_markers(following, offset)

    def _identity(self, metadata: TransactionMetadata, prepare_offset: int) -> TransactionIdentity:
        return TransactionIdentity(
            metadata.transactional_id,
            metadata.producer_id,
            metadata.producer_epoch,
            self.coordinator_epoch,
            prepare_offset,
        )

    def _send_markers(self, metadata: TransactionMetadata, prepare_offset: int) -> SendMarkers:
        return SendMarkers(
            metadata.transactional_id,
            metadata.producer_id,
            metadata.producer_epoch,
            self.coordinator_epoch,
            metadata.state.commits,
            tuple(sorted(metadata.partitions, key=_by_name)),
            metadata.transaction_version,
            self._identity(metadata, prepare_offset),
        )

    def _complete(self, identity: TransactionIdentity, context: Context) -> TransactionOutcome:
        current = self.transactions.get(identity.transactional_id)
        if current is None or identity != self._identity(current, current.record_offset):
            # The markers of another transaction, or of an older coordinator: compare by identity, never by
            # transactional id.
            return Reply(Done())
        completed = PROPERTIES[current.state].completed_as
        if RULES[(current.state, Stimulus.MARKERS_WRITTEN)] is not Action.COMPLETE or completed is None:
            return Reply(Done())
        self.marked[identity.transactional_id] = identity
        if current.state.commits and self.holds.is_held(context.now_ms):
            return Reply(Done())
        following = replace(
            current,
            state=completed,
            partitions=frozenset(),
            last_update_ms=context.now_ms,
        )
        if current.next_producer_id != NO_PRODUCER_ID:
            waited = current.next_producer_epoch != NO_PRODUCER_EPOCH
            producer_id, producer_epoch = current.client_identity
            following = replace(
                following,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                previous_producer_id=current.previous_producer_id if waited else current.producer_id,
                next_producer_id=NO_PRODUCER_ID,
                next_producer_epoch=NO_PRODUCER_EPOCH,
            )
        waiting = self._awaiting_completion.tokens_of(identity.transactional_id)
        return replace(self._transition(following, current.state, Action.COMPLETE, Done()), resume=waiting)

    # --- time -----------------------------------------------------------------------------------------------

    def _timed_out(self, metadata: TransactionMetadata, now_ms: int) -> bool:
        if metadata.timeout_ms == NO_TIMEOUT_MS:
            return False
        # A coordinator whose clock was ahead wrote a start in the future: the timeout then runs from this
        # election on.
        start_ms = metadata.start_ms if metadata.start_ms <= now_ms else self._activated_ms
        return start_ms + metadata.timeout_ms < now_ms

    def _expired(self, metadata: TransactionMetadata, now_ms: int) -> bool:
        may_expire = RULES[(metadata.state, Stimulus.EXPIRE)] is Action.TOMBSTONE
        may_expire &= attempt_of(metadata.transactional_id) is None  # its job forgets it
        return may_expire and metadata.last_update_ms + self.config.expiration_ms < now_ms

    def _time_out(self, transactional_id: str, context: Context) -> TransactionOutcome:
        current = self.transactions.get(transactional_id)
        if current is None or RULES[(current.state, Stimulus.TIMEOUT)] is not Action.FENCE:
            return Reply(Done())
        if not self._timed_out(current, context.now_ms) or self.holds.waits(transactional_id):
            return Reply(Done())
        return self._fence_producer(current, context, Done(), may_resume=True)

    def _expire(self, transactional_ids: Sequence[str], context: Context) -> TransactionOutcome:
        found = [self.transactions.get(name) for name in transactional_ids]
        names = [
            metadata.transactional_id
            for metadata in found
            if metadata and self._expired(metadata, context.now_ms)
        ]
        return Write([CoordinatorRecord(records.encode_key(name), None) for name in names], Done())

    # --- views ----------------------------------------------------------------------------------------------

    def _list(self, event: ListTransactions, context: Context) -> TransactionOutcome:
        known = {state.display_name for state in TransactionState}
        listings = [
            TransactionListing(metadata.transactional_id, metadata.producer_id, metadata.state)
            for metadata in self.transactions.values()
            if (not event.states or metadata.state.display_name in event.states)
            and (not event.producer_ids or metadata.producer_id in event.producer_ids)
            and (event.duration_ms < 0 or self._running_for_ms(metadata, context.now_ms) > event.duration_ms)
        ]
        return Reply(ListReply(tuple(listings), tuple(sorted(event.states - known))))

    @staticmethod
    def _running_for_ms(metadata: TransactionMetadata, now_ms: int) -> int:
        """KIP-994; -1 without an open transaction.  An entry keeps the start of its last transaction after
        the end of that."""
        return now_ms - metadata.start_ms if metadata.state.runs else -1

    def _describe(self, event: DescribeTransactions) -> TransactionOutcome:
        if not event.transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        return Reply(DescribeReply(self._lookup(event.transactional_id, Stimulus.DESCRIBE)[0]))

    def _unchanged(
        self, current: TransactionMetadata, reply: TransactionReply, transaction_version: int
    ) -> TransactionOutcome:
        """A positive answer without a change of state: *confirmed* for TV1; a TV2 request names its
        transaction by its epoch."""
        if transaction_version >= 2 or self._is_only_replica():
            return Reply(reply)
        return Write((self._record_of(current),), reply)

    # --- invariants -----------------------------------------------------------------------------------------

    def validate(self, event: TransactionEvent | None = None) -> None:
        """Raises AssertionError when an invariant of `validation` does not hold.  With `event`, which the
        runtime has just handled, it looks at the transactional ids of that event alone; else at all."""
        if event is None:
            names: Iterable[str] = self.transactions.keys() | self._validated.keys()
            self._validate_tables()
        elif isinstance(event, CarryOutJob):
            known = self.transactions.keys() | self._validated.keys()
            names = [name for name in known if (attempt_of(name) or ("", ""))[0] == event.job]
        else:
            names = transactional_ids_of(event)
        for name in names:
            before, after = self._validated.get(name), self.transactions.get(name)
            found = list(self._index_violations(name, after))
            if after is not None:
                found += entry_violations(after, self.config.max_producer_epoch)
            if before is not None and before is not after:
                found += succession_violations(before, after)
                found += record_violations(before, after) if event is not None else ()
            assert not found, f"{self.coordinator_epoch}: {name}: {found[0]}: {before} -> {after}"
            if after is None:
                self._validated.pop(name, None)
            else:
                self._validated[name] = after

    def _index_violations(self, name: str, entry: TransactionMetadata | None) -> Iterator[str]:
        state = TransactionState.DEAD if entry is None else entry.state
        if (name in self.ongoing) != (state is TransactionState.ONGOING):
            yield "the index of open transactions disagrees with the entry"
        if (name in self.prepared) != (state is TransactionState.PREPARED):
            yield "the index of prepared transactions disagrees with the entry"
        if (name in self.decided) != state.is_decided:
            yield "the index of decided transactions disagrees with the entry"
        marked = self.marked.get(name)
        if marked is not None and (entry is None or marked != self._identity(entry, entry.record_offset)):
            yield f"{marked} is marked, and is not the decided transaction"
        if self._awaiting_completion.tokens_of(name) and not state.is_decided:
            yield "a request awaits the completion of a transaction that is not decided"
        if self.holds.waits(name) and state not in (TransactionState.ONGOING, TransactionState.PREPARED):
            yield "a commit waits for the end of a hold, and the transaction is not open"

    def _validate_tables(self) -> None:
        """What is no matter of one entry: the keys, the jobs, and that no two ids share a producer id."""
        found = list(self.jobs.book.violations(iter(self.transactions)))
        assert not found, found[0]
        owners: dict[int, str] = {}
        for name, entry in self.transactions.items():
            assert name == entry.transactional_id, f"{name} names the entry of {entry.transactional_id}"
            for producer_id in (entry.producer_id, entry.next_producer_id):
                owner = name if producer_id == NO_PRODUCER_ID else owners.setdefault(producer_id, name)
                assert owner == name, f"{name} and {owner} both have producer id {producer_id}"
        for index in (self.ongoing, self.prepared, self.decided, self.marked):
            unknown = index.keys() - self.transactions.keys()
            assert not unknown, f"an index names the unknown transactional ids {sorted(unknown)}"

    # --- transitions ----------------------------------------------------------------------------------------

    def _transition(
        self,
        following: TransactionMetadata,
        previous: TransactionState,
        action: Action,
        reply: TransactionReply | KafkaError,
        *effects: TransactionEffect,
    ) -> Write[TransactionReply, TransactionEffect]:
        """The outcome that takes an entry from the state `previous` to `following`.  Raises AssertionError
        for a transition that there is not, for one that is not what the table's `action` leads to, and for an
        epoch out of range; UNSUPPORTED_VERSION for a state of a level that is not finalised."""
        if leads_to(previous, action) is not following.state:
            raise AssertionError(
                f"{following.transactional_id}: {action.name} in {previous.name} does not lead to "
                f"{following.state.name}"
            )
        if not may_follow(previous, following.state, following.transaction_version):
            raise AssertionError(
                f"{following.transactional_id}: {following.state.name} may not follow {previous.name}"
            )
        if not 0 <= following.producer_epoch <= self.config.max_producer_epoch:
            raise AssertionError(
                f"{following.transactional_id}: producer epoch {following.producer_epoch} is out of range"
            )
        self._require_stored(following.state)
        held = self.holds.tokens_of(following.transactional_id) if following.state.is_decided else ()
        return Write((self._record_of(following),), reply, effects, resume=held)

    def _require_stored(self, state: TransactionState) -> None:
        if not is_stored(state, self._finalised_level()):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{state.display_name} cannot be written before the cluster's upgrade is finished: "
                "`tidegate features upgrade`",
            )

    def _record_of(self, metadata: TransactionMetadata) -> CoordinatorRecord:
        value = records.encode_value(metadata, self._finalised_level())
        return CoordinatorRecord(records.encode_key(metadata.transactional_id), value, metadata)


def _timeout_ms(event: InitProducerId) -> int:
    return NO_TIMEOUT_MS if event.two_phase_commit else event.timeout_ms


def _end_stimulus(event: EndTxn, repeated: bool) -> Stimulus:
    if event.transaction_version < 2:
        return Stimulus.COMMIT_TV1 if event.commit else Stimulus.ABORT_TV1
    if repeated:
        return Stimulus.COMMIT_REPEATED if event.commit else Stimulus.ABORT_REPEATED
    return Stimulus.COMMIT if event.commit else Stimulus.ABORT


def _by_name(partition: TransactionPartition) -> tuple[str, int, int]:
    return partition.topic, partition.partition, -1 if partition.topic_id is None else partition.topic_id.int
