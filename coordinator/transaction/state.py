"""The transaction coordinator's state machine, as data: which state may follow which, and what each request
meets in each state.

Two tables:

`VALID_PREVIOUS` (docs/semantics.md T1) says from which states a state may be entered.  The shard checks every
record against it before the append.

`RULES` says what each stimulus does in each state.  The shard looks up the pair: whether a request is
refused, waits or is carried out stands here alone.  How it is carried out stands in the shard, a method for
each request; what it writes must be the state to which the action leads (`leads_to`), or nothing is written
(`TransactionShard._transition`).  docs/states.md is made from the table, and the tests hold each cell against
an outcome.  Identity (producer id,
epoch) is judged before the table, but for InitProducerId, whose waiting comes first: the stimulus already
says whether the caller is the *current* producer or one that *repeats* its last EndTxn (which TV2 can tell
apart, because the epoch moves with every transaction; rule T13).

PREPARED (KIP-939) is an open transaction that is closed: nothing may join it, it has no timeout, and its
owner still decides how it ends.  PREPARE_COMMIT and PREPARE_ABORT have a like name, and are another thing:
with these a transaction is *decided*.

A transactional id without an entry counts as DEAD: an expired id leaves a tombstone in the log and nothing in
memory. PREPARE_EPOCH_FENCE is never entered: Kafka holds it in memory between the decision to fence and the
append of PREPARE_ABORT; here fence and PREPARE_ABORT are one record, so there is no moment in between
(KAFKA-9666, KAFKA-19367).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple
from uuid import UUID

from ...controller.state.model import TWO_PHASE_COMMIT_LEVEL

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
MAX_PRODUCER_EPOCH = 32767
"""Reserved: no client ever gets it, so that fencing a producer always finds one epoch left (rule T7)."""
NO_TIMEOUT_MS = 2**31 - 1
"""The timeout of a transactional id with two-phase commit, as in Kafka: the coordinator never ends its
transaction (rule T29)."""


class TransactionState(IntEnum):
    """The states with their numbers in TransactionLogValue; 100 and above are Tidegate's own."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7
    PREPARED = 100

    @property
    def display_name(self) -> str:
        """The name that ListTransactions and DescribeTransactions show, e.g. `PrepareCommit`."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def runs(self) -> bool:
        return PROPERTIES[self].runs

    @property
    def is_decided(self) -> bool:
        return PROPERTIES[self].completed_as is not None

    @property
    def is_complete(self) -> bool:
        return self in COMPLETED

    @property
    def commits(self) -> bool:
        """Raises ValueError where no end is decided."""
        if (commits := PROPERTIES[self].commits) is None:
            raise ValueError(f"{self.name} neither commits nor aborts")
        return commits


EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
DEAD, PREPARE_EPOCH_FENCE = TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE
PREPARED = TransactionState.PREPARED


class StateProperties(NamedTuple):
    """What the shard, its records and its invariants ask of a state.

    runs: the transaction has a start, its timeout or its end is to come.
    commits: the end that is decided; None: none is.
    completed_as: of a *decided* state, whose markers are not known to be written everywhere: it still names
    its partitions, a new coordinator sends the markers again, requests may wait for the end.  It is followed
    by that state, where all markers are written and no partition takes part any more.
    stored_from: the level of `tidegate.metadata.version` from which on the shard writes the state; None: no
    record ever holds it.
    """

    runs: bool
    commits: bool | None
    completed_as: TransactionState | None
    stored_from: int | None


FIRST_LEVEL = 1
# fmt: off
PROPERTIES: dict[TransactionState, StateProperties] = {
    #                                    runs   commits completed as     stored from
    EMPTY:               StateProperties(False, None,   None,            FIRST_LEVEL),
    ONGOING:             StateProperties(True,  None,   None,            FIRST_LEVEL),
    PREPARE_COMMIT:      StateProperties(True,  True,   COMPLETE_COMMIT, FIRST_LEVEL),
    PREPARE_ABORT:       StateProperties(True,  False,  COMPLETE_ABORT,  FIRST_LEVEL),
    COMPLETE_COMMIT:     StateProperties(False, True,   None,            FIRST_LEVEL),
    COMPLETE_ABORT:      StateProperties(False, False,  None,            FIRST_LEVEL),
    DEAD:                StateProperties(False, None,   None,            None),
    PREPARE_EPOCH_FENCE: StateProperties(False, None,   None,            None),
    PREPARED:            StateProperties(True,  None,   None,            TWO_PHASE_COMMIT_LEVEL),
}
# fmt: on
COMPLETED = frozenset(each.completed_as for each in PROPERTIES.values() if each.completed_as is not None)
READ_STATES = frozenset(state for state, each in PROPERTIES.items() if each.stored_from is not None)

VALID_PREVIOUS: dict[TransactionState, frozenset[TransactionState]] = {
    EMPTY: frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT, DEAD}),  # DEAD: no entry yet
    ONGOING: frozenset({ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}),
    PREPARED: frozenset({ONGOING, PREPARED}),
    PREPARE_COMMIT: frozenset({ONGOING, PREPARED}),
    PREPARE_ABORT: frozenset({ONGOING, PREPARED, PREPARE_EPOCH_FENCE}),
    COMPLETE_COMMIT: frozenset({PREPARE_COMMIT}),
    COMPLETE_ABORT: frozenset({PREPARE_ABORT}),
    DEAD: frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}),
    PREPARE_EPOCH_FENCE: frozenset({ONGOING}),
}

VALID_PREVIOUS_TV2: dict[TransactionState, frozenset[TransactionState]] = VALID_PREVIOUS | {
    # TV2 may abort a transaction without partitions: the bumped epoch fences its late writes.
    PREPARE_ABORT: VALID_PREVIOUS[PREPARE_ABORT] | {EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT},
}


def is_stored(state: TransactionState, level: int) -> bool:
    """Whether a coordinator of a cluster with this finalised level writes the state."""
    stored_from = PROPERTIES[state].stored_from
    return stored_from is not None and stored_from <= level


def may_follow(previous: TransactionState, target: TransactionState, transaction_version: int) -> bool:
    """Whether `target` may be written after `previous` by a client of that transaction version."""
    table = VALID_PREVIOUS_TV2 if transaction_version >= 2 else VALID_PREVIOUS
    return previous in table[target]


class Stimulus(Enum):
    """What can happen to a transaction; the shard has already checked the caller's identity."""

    INIT_PRODUCER_ID = "init producer id"
    INIT_KEEPING = "init producer id, keep the transaction"
    ADD_PARTITIONS = "add partitions"
    VERIFY_PARTITIONS = "verify partitions"
    PREPARE = "prepare"
    COMMIT_TV1 = "commit (TV1)"
    ABORT_TV1 = "abort (TV1)"
    COMMIT = "commit (TV2)"
    ABORT = "abort (TV2)"
    COMMIT_REPEATED = "commit, repeated (TV2)"
    ABORT_REPEATED = "abort, repeated (TV2)"
    MARKERS_WRITTEN = "markers written"
    TIMEOUT = "timeout"
    EXPIRE = "expire"
    JOB_COMMITTED = "its job commits it"
    JOB_ABORTED = "its job aborts it"
    DESCRIBE = "describe"


class Action(Enum):
    """What the coordinator does."""

    CREATE = "new id, epoch 0 -> Empty"
    BUMP_EPOCH = "bump epoch or rotate id -> Empty"
    # fences the producer; FenceBroker of the metadata log is another thing
    FENCE = "bump epoch -> PrepareAbort"
    # two-phase commit: the client may have prepared the transaction, and gets another epoch to end it with
    KEEP = "bump the client's epoch -> Prepared"
    ENLIST = "add -> Ongoing"
    VERIFY = "answer per partition"
    PREPARE = "-> Prepared"
    PREPARE_COMMIT = "-> PrepareCommit"
    PREPARE_ABORT = "-> PrepareAbort"
    COMPLETE = "-> Complete"
    TOMBSTONE = "tombstone -> Dead"
    # what the client asks for is done: it may not have got the answer
    CONFIRM = "answer NONE, the entry stays"
    # a timer or the last marker came late: there is nothing to end any more, and no client to answer
    IGNORE = "nothing is done"
    REFUSE_CONCURRENT = "CONCURRENT_TRANSACTIONS"
    REFUSE_STATE = "INVALID_TXN_STATE"
    REFUSE_FENCED = "PRODUCER_FENCED"
    REFUSE_MAPPING = "INVALID_PRODUCER_ID_MAPPING"
    REFUSE_ABORTABLE = "TRANSACTION_ABORTABLE"
    REFUSE_NOT_FOUND = "TRANSACTIONAL_ID_NOT_FOUND"
    DESCRIBE = "answer the entry"
    UNREACHABLE = "cannot happen"


_COLUMNS = (EMPTY, ONGOING, PREPARED, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT, DEAD)

# The cells of the table.  _NONE: done already, so the answer is NONE; _SKIP: there is nothing to do.
_BUMP, _NEW, _FENCE, _ADD, _ASK = Action.BUMP_EPOCH, Action.CREATE, Action.FENCE, Action.ENLIST, Action.VERIFY
_KEEP, _PREP = Action.KEEP, Action.PREPARE
_CMT, _ABT, _DONE, _TOMB, _NONE, _SKIP = (
    Action.PREPARE_COMMIT, Action.PREPARE_ABORT, Action.COMPLETE, Action.TOMBSTONE, Action.CONFIRM,
    Action.IGNORE,
)  # fmt: skip
_BUSY, _BAD, _OLD = Action.REFUSE_CONCURRENT, Action.REFUSE_STATE, Action.REFUSE_FENCED
_GONE, _LATE = Action.REFUSE_MAPPING, Action.REFUSE_ABORTABLE
_SHOW, _MISS, _NO = Action.DESCRIBE, Action.REFUSE_NOT_FOUND, Action.UNREACHABLE
_S = Stimulus

# fmt: off
_TABLE: dict[Stimulus, tuple[Action, ...]] = {
    #                      Empty  Ongoing Prepared Prepare-       Complete-      Dead
    #                                              Commit Abort   Commit Abort
    _S.INIT_PRODUCER_ID:  (_BUMP, _FENCE, _FENCE,  _BUSY, _BUSY,  _BUMP, _BUMP, _NEW),
    _S.INIT_KEEPING:      (_BUMP, _KEEP,  _KEEP,   _BUSY, _BUSY,  _BUMP, _BUMP, _NEW),
    _S.ADD_PARTITIONS:    (_ADD,  _ADD,   _BAD,    _BUSY, _BUSY,  _ADD,  _ADD,  _GONE),
    _S.VERIFY_PARTITIONS: (_LATE, _ASK,   _BAD,    _BUSY, _BUSY,  _LATE, _LATE, _GONE),
    _S.PREPARE:           (_BAD,  _PREP,  _NONE,   _BAD,  _BAD,   _BAD,  _BAD,  _GONE),
    _S.COMMIT_TV1:        (_BAD,  _CMT,   _CMT,    _BUSY, _BAD,   _NONE, _BAD,  _GONE),
    _S.ABORT_TV1:         (_BAD,  _ABT,   _ABT,    _BAD,  _BUSY,  _BAD,  _NONE, _GONE),
    _S.COMMIT:            (_BAD,  _CMT,   _CMT,    _BUSY, _BUSY,  _BAD,  _BAD,  _GONE),
    _S.ABORT:             (_ABT,  _ABT,   _ABT,    _BUSY, _BUSY,  _ABT,  _ABT,  _GONE),
    _S.COMMIT_REPEATED:   (_OLD,  _OLD,   _OLD,    _BUSY, _BAD,   _NONE, _BAD,  _GONE),
    _S.ABORT_REPEATED:    (_OLD,  _OLD,   _OLD,    _BAD,  _BUSY,  _BAD,  _NONE, _GONE),
    _S.MARKERS_WRITTEN:   (_SKIP, _SKIP,  _SKIP,   _DONE, _DONE,  _SKIP, _SKIP, _SKIP),
    _S.TIMEOUT:           (_SKIP, _FENCE, _SKIP,   _SKIP, _SKIP,  _SKIP, _SKIP, _SKIP),
    _S.EXPIRE:            (_TOMB, _SKIP,  _SKIP,   _SKIP, _SKIP,  _TOMB, _TOMB, _SKIP),
    _S.JOB_COMMITTED:     (_TOMB, _NO,    _CMT,    _SKIP, _NO,    _TOMB, _NO,   _SKIP),
    _S.JOB_ABORTED:       (_TOMB, _ABT,   _ABT,    _NO,   _SKIP,  _NO,   _TOMB, _SKIP),
    _S.DESCRIBE:          (_SHOW, _SHOW,  _SHOW,   _SHOW, _SHOW,  _SHOW, _SHOW, _MISS),
}
# fmt: on

RULES: dict[tuple[TransactionState, Stimulus], Action] = {
    (state, stimulus): action
    for stimulus, row in _TABLE.items()
    for state, action in zip(_COLUMNS, row, strict=True)
} | {(PREPARE_EPOCH_FENCE, stimulus): Action.UNREACHABLE for stimulus in Stimulus}


_TARGETS = {
    Action.CREATE: EMPTY, Action.BUMP_EPOCH: EMPTY, Action.ENLIST: ONGOING, Action.FENCE: PREPARE_ABORT,
    Action.KEEP: PREPARED, Action.PREPARE: PREPARED,
    Action.PREPARE_COMMIT: PREPARE_COMMIT, Action.PREPARE_ABORT: PREPARE_ABORT, Action.TOMBSTONE: DEAD,
}  # fmt: skip


def leads_to(state: TransactionState, action: Action) -> TransactionState | None:
    """The state that an action writes; None when it writes nothing, or the unchanged entry again."""
    if action is Action.COMPLETE:
        return PROPERTIES[state].completed_as
    return _TARGETS.get(action)


class TransactionPartition(NamedTuple):
    """A partition that takes part in a transaction.

    The topic id tells a topic from a later one of the same name: a marker may be dropped only when the
    controller's metadata, known to be newer than the enlistment, says that *this id* is gone (rule T17).
    """

    topic: str
    partition: int
    topic_id: UUID | None = None


@dataclass(slots=True, frozen=True)
class TransactionMetadata:
    """The state of a transactional id, as its newest record in the log says.

    last_producer_epoch: the producer with this epoch may repeat its last request (InitProducerId by KIP-360,
    EndTxn by KIP-890); -1 when a new instance took over.  previous_producer_id: the id before the last
    rotation.  next_producer_id: given to the client already, in force once the transaction completes (rule
    T7), with epoch 0 or next_producer_epoch: that one is set where the client got its identity while the
    transaction stays as it is (rule T30).  record_offset: the offset of this record, which makes a decided
    transaction unique although its producer id and epoch may be used again (rule T18).

    A transition carries every field on (`replace`) that it does not name.  Which ones set, keep or clear a
    field is the table of tests/coordinator/test_transaction_fields.py, held against every record written.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    last_update_ms: int
    start_ms: int = -1
    partitions: frozenset[TransactionPartition] = frozenset()
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    transaction_version: int = 0
    record_offset: int = -1

    @property
    def client_identity(self) -> tuple[int, int]:
        """The identity that the current producer has: another one than the stored while one that was given
        out waits for the end of the transaction."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return self.next_producer_id, max(self.next_producer_epoch, 0)
        return self.producer_id, self.producer_epoch

    def contains(self, partition: TransactionPartition) -> bool:
        """Whether the partition is enlisted; an unknown topic id on either side matches by name."""
        if partition in self.partitions:
            return True
        return any(
            known.topic == partition.topic
            and known.partition == partition.partition
            and (known.topic_id is None or partition.topic_id is None)
            for known in self.partitions
        )


def is_exhausted(producer_epoch: int, max_producer_epoch: int = MAX_PRODUCER_EPOCH) -> bool:
    """Whether no further epoch of this producer id may be given to a client."""
    return producer_epoch >= max_producer_epoch - 1
