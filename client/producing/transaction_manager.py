"""The states of a producer and its transaction as a table, and the coordinator's view of the transaction.

A pure core: the producer reports events, and the table gives the next state.  For an event that is not in the
table, it raises an error that says what to call instead.

    UNINITIALIZED    no identity (producer id, epoch) that a new transaction may use
    INITIALIZING     InitProducerId is sent
    READY            an identity, no transaction
    IN_TRANSACTION   records and offsets may be sent
    COMMITTING       EndTxn(commit) is sent, or will be after the last records
    ABORTING         the same for EndTxn(abort)
    ABORTABLE_ERROR  the transaction cannot be committed: only abort() is possible
    FATAL_ERROR      the producer can only be closed

Three rules beside the table:

* **An EndTxn whose outcome is unknown** leads to UNINITIALIZED, with the outcome kept in `unresolved`.  The
  same call may be repeated (a coordinator recognises the retry: docs/semantics.md T13), anything else needs a
  new epoch first: a late copy of the old EndTxn could otherwise end the *next* transaction (KAFKA-17754, rule
  P3).  The producer asks for the new epoch with its old identity (KIP-360), never without: a producer that
  was fenced meanwhile must stay fenced.
* **TV2** (KIP-890 part 2) holds when the cluster's *finalised* feature transaction.version is 2, not when the
  API versions would allow it (rule T27).  The producer reads it when it gets an identity, never within a
  transaction.
* **Under TV1, an abort** also needs a new epoch when batches with sequence numbers have an unknown outcome.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from ...wire.errors import ErrorCode, KafkaError
from ..connecting.errors import RequestError
from ..requests.transaction_requests import NO_IDENTITY, Identity

TopicPartition = tuple[str, int]


class State(Enum):
    """See the module's text."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"


class Event(Enum):
    """Calls of the user and answers of the brokers."""

    INITIALIZE = "initialize"
    INITIALIZED = "initialized"
    INITIALIZE_FAILED = "initialize failed"  # it may be repeated
    BEGIN = "begin"
    SEND = "send"
    COMMIT = "commit"
    ABORT = "abort"
    ENDED = "ended"  # EndTxn was confirmed
    ENDED_WITHOUT_IDENTITY = "ended without identity"  # ended, but the next transaction needs a new epoch
    OUTCOME_UNKNOWN = "outcome unknown"
    ABORTABLE_FAILURE = "abortable failure"
    FATAL_FAILURE = "fatal failure"


_S, _E = State, Event
TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (_S.UNINITIALIZED, _E.INITIALIZE): _S.INITIALIZING,
    (_S.INITIALIZING, _E.INITIALIZED): _S.READY,
    (_S.INITIALIZING, _E.INITIALIZE_FAILED): _S.UNINITIALIZED,
    (_S.READY, _E.BEGIN): _S.IN_TRANSACTION,
    (_S.IN_TRANSACTION, _E.SEND): _S.IN_TRANSACTION,
    (_S.IN_TRANSACTION, _E.COMMIT): _S.COMMITTING,
    (_S.IN_TRANSACTION, _E.ABORT): _S.ABORTING,
    (_S.IN_TRANSACTION, _E.ABORTABLE_FAILURE): _S.ABORTABLE_ERROR,
    (_S.COMMITTING, _E.ENDED): _S.READY,
    (_S.COMMITTING, _E.OUTCOME_UNKNOWN): _S.UNINITIALIZED,
    (_S.COMMITTING, _E.ABORTABLE_FAILURE): _S.ABORTABLE_ERROR,
    (_S.ABORTING, _E.ENDED): _S.READY,
    (_S.ABORTING, _E.ENDED_WITHOUT_IDENTITY): _S.UNINITIALIZED,
    (_S.ABORTING, _E.OUTCOME_UNKNOWN): _S.UNINITIALIZED,
    (_S.ABORTING, _E.ABORTABLE_FAILURE): _S.ABORTING,  # records of a transaction that is being aborted anyway
    (_S.ABORTABLE_ERROR, _E.ABORT): _S.ABORTING,
    (_S.ABORTABLE_ERROR, _E.ABORTABLE_FAILURE): _S.ABORTABLE_ERROR,
    **{(state, _E.FATAL_FAILURE): _S.FATAL_ERROR for state in State},
}

# The messages for a user's call that is not in the table.
_INSTEAD: Final[dict[State, str]] = {
    State.UNINITIALIZED: "call start() first, or use `async with Producer(...)`",
    State.INITIALIZING: "the producer is still getting its identity: await start() first",
    State.READY: "no transaction is open: call begin() first, or use `async with producer.transaction()`",
    State.IN_TRANSACTION: "a transaction is open: commit() or abort() it first",
    State.COMMITTING: "a commit is in progress: await it first",
    State.ABORTING: "an abort is in progress: await it first",
    State.ABORTABLE_ERROR: "the transaction has failed: call abort(), then run it again",
    State.FATAL_ERROR: "the producer has failed for good: close it and make a new one",
}


class TransactionManager:
    """The state of one producer.  Without a transactional id only UNINITIALIZED, INITIALIZING, READY and
    FATAL_ERROR occur."""

    def __init__(self, transactional_id: str | None) -> None:
        self.transactional_id = transactional_id
        self.state = State.UNINITIALIZED
        self.identity: Identity = NO_IDENTITY
        self.version = 1  # transaction.version in force: 1 or 2
        self.error: KafkaError | None = None  # why the state is ABORTABLE_ERROR or FATAL_ERROR
        self.unresolved: Event | None = None  # COMMIT or ABORT, when its outcome is unknown
        self.started = False  # the coordinator may have begun this transaction: EndTxn is needed
        # the coordinator aborted it (timeout): EndTxn is neither needed nor possible
        self.ended_by_coordinator = False
        self._enlisted: set[TopicPartition] = set()
        self._to_enlist: set[TopicPartition] = set()

    # ---- the table -----------------------------------------------------------------------------------------

    def on(self, event: Event) -> None:
        """Follows the table.  A user's event that is not in it raises RequestError (or the error that led to
        this state)."""
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise self._refusal(event)
        self.state = following

    def _refusal(self, event: Event) -> KafkaError:
        if self.transactional_id is None and event in (Event.BEGIN, Event.COMMIT, Event.ABORT):
            return RequestError(
                ErrorCode.INVALID_TXN_STATE,
                f"{event.value}: this producer has no transactional_id: give it one",
            )
        message = f"{event.value} is not possible in the state {self.state.value!r}: {_INSTEAD[self.state]}"
        if self.error is not None and self.state in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
            return type(self.error)(self.error.code, f"{message}. The cause: {self.error}")
        return RequestError(ErrorCode.INVALID_TXN_STATE, message)

    # ---- identity ------------------------------------------------------------------------------------------

    @property
    def needs_identity(self) -> bool:
        return self.state is State.UNINITIALIZED

    def initialized(self, identity: Identity, version: int) -> None:
        """InitProducerId succeeded: a former transaction of this producer has ended."""
        self.on(Event.INITIALIZED)
        self.identity, self.version = identity, version
        self.unresolved = None
        self._forget_transaction()

    # ---- a transaction -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """READY -> IN_TRANSACTION.  Nothing is sent: the coordinator learns of it with the first records."""
        if self.transactional_id is None:
            raise self._refusal(Event.BEGIN)
        self.on(Event.BEGIN)
        self._forget_transaction()

    def require_sending(self) -> None:
        """Raises unless records may be sent now."""
        if self.transactional_id is None:
            if self.state is State.FATAL_ERROR:
                raise self._refusal(Event.SEND)
        else:
            self.on(Event.SEND)

    def may_send_to(self, partition: TopicPartition) -> bool:
        """Whether records may be sent to this partition now; under TV1 the coordinator must have enlisted
        it."""
        if self.transactional_id is None:
            return self.state in (State.READY,)
        if self.state not in (State.IN_TRANSACTION, State.COMMITTING):
            return False
        if self.version >= 2 or partition in self._enlisted:
            return True
        self._to_enlist.add(partition)
        return False

    def left(self) -> None:
        """Records or offsets of this transaction are about to be sent: from now on EndTxn is needed."""
        self.started = True

    def take_to_enlist(self) -> set[TopicPartition]:
        """TV1: the partitions that AddPartitionsToTxn must name next.  Report `enlisted`, or the next call
        returns them again."""
        taken, self._to_enlist = self._to_enlist, set()
        return taken

    @property
    def has_to_enlist(self) -> bool:
        return bool(self._to_enlist) and self.state in (State.IN_TRANSACTION, State.COMMITTING)

    def enlisted(self, partitions: set[TopicPartition]) -> None:
        """The coordinator has enlisted these partitions, also those that were requested again meanwhile."""
        self._enlisted |= partitions
        self._to_enlist -= partitions

    # ---- its end -------------------------------------------------------------------------------------------

    def begin_end(self, *, commit: bool) -> bool:
        """commit() or abort() was called.  True: records must be flushed (commit) or dropped (abort) and
        EndTxn sent. False: a repeated call after an unknown outcome: send the same EndTxn again, nothing
        else."""
        event = Event.COMMIT if commit else Event.ABORT
        if self.state is State.UNINITIALIZED and self.unresolved is event:
            self.state = State.COMMITTING if commit else State.ABORTING
            return False
        if self.transactional_id is None:
            raise self._refusal(event)
        self.on(event)
        return True

    @property
    def end_txn_needed(self) -> bool:
        """Whether the coordinator has anything to end."""
        return self.started and not self.ended_by_coordinator

    def ended(self, identity: Identity | None, *, unresolved_sequences: bool = False) -> None:
        """The transaction has ended.  `identity`: the next transaction's, as EndTxn returned it (TV2), None:
        unchanged. `unresolved_sequences`: batches have an unknown outcome, so the next transaction needs
        another identity."""
        unchanged = identity is None or identity == self.identity
        self.on(Event.ENDED_WITHOUT_IDENTITY if unresolved_sequences and unchanged else Event.ENDED)
        if identity is not None:
            self.identity = identity
        self.unresolved = None
        self._forget_transaction()

    def identity_lost(self) -> None:
        """The coordinator does not know our identity any more while we abort: there is nothing to end, but to
        begin anew."""
        self.on(Event.ENDED_WITHOUT_IDENTITY)
        self._forget_transaction()

    def outcome_unknown(self) -> None:
        """The coordinator did not answer EndTxn within the deadline."""
        self.unresolved = Event.COMMIT if self.state is State.COMMITTING else Event.ABORT
        self.on(Event.OUTCOME_UNKNOWN)

    # ---- failures ------------------------------------------------------------------------------------------

    def abortable(self, error: KafkaError) -> None:
        """The transaction cannot be committed any more.  The first cause is kept."""
        self.on(Event.ABORTABLE_FAILURE)
        if self.error is None:
            self.error = error

    def ended_without_us(self, identity: Identity) -> None:
        """The coordinator aborted this transaction (timeout), but the identity is still, or again, ours
        (KIP-588)."""
        self.identity = identity
        self.ended_by_coordinator = True

    def fatal(self, error: KafkaError) -> None:
        """The end.  The first fatal cause is kept."""
        if self.state is not State.FATAL_ERROR:
            self.error = error
        self.on(Event.FATAL_FAILURE)

    def _forget_transaction(self) -> None:
        self.error = None
        self.started = self.ended_by_coordinator = False
        self._enlisted.clear()
        self._to_enlist.clear()
