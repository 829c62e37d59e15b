"""What each record of a transactional id does with each field of the entry, written down cell by cell.

The columns are the transitions; each is played from every state that it may begin in, with ids that have
epochs left and with one whose last epoch is given away.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import Any

import pytest
from tidegate.controller.state.model import TWO_PHASE_COMMIT_LEVEL as LEVEL
from tidegate.coordinator.outcome import ReplayedRecord
from tidegate.coordinator.transaction import records
from tidegate.coordinator.transaction.events import AddPartitions, EndTxn, InitProducerId, PrepareTransaction
from tidegate.coordinator.transaction.state import (
    RULES,
    Stimulus,
    TransactionMetadata,
    TransactionState,
    leads_to,
)

from .test_transaction_table import EPOCH, EPOCHS, ID, P1, PID, decide, make, request

S = TransactionState
T = Stimulus
OPEN = (S.ONGOING, S.PREPARED)
BEGUN = (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
TRANSITIONS: dict[str, tuple[tuple[Stimulus, ...], tuple[S, ...], tuple[Any, ...]]] = {
    # which cells of the table, from which states, by which requests (none: the timer, the markers)
    "new id": ((T.INIT_PRODUCER_ID, T.INIT_KEEPING), (S.DEAD,), (InitProducerId(ID, 60_000),)),
    "instance": ((T.INIT_PRODUCER_ID, T.INIT_KEEPING), BEGUN, (InitProducerId(ID, 60_000),)),
    "resumed": ((T.INIT_PRODUCER_ID,), BEGUN, (InitProducerId(ID, 60_000, PID, EPOCH),)),
    "fenced": ((T.INIT_PRODUCER_ID,), OPEN, (InitProducerId(ID, 60_000),)),
    "kept": ((T.INIT_KEEPING,), OPEN, (InitProducerId(ID, 60_000, -1, -1, True, True),)),
    "timeout": ((T.TIMEOUT,), (S.ONGOING,), (InitProducerId(ID, 60_000, PID, EPOCH), None)),
    "first": ((T.ADD_PARTITIONS,), BEGUN, (AddPartitions(ID, PID, EPOCH, (P1,), 1),)),
    "further": ((T.ADD_PARTITIONS,), (S.ONGOING,), (AddPartitions(ID, PID, EPOCH, (P1,), 1),)),
    "prepare": ((T.PREPARE,), (S.ONGOING,), (PrepareTransaction(ID, PID, EPOCH),)),
    "end TV1": (
        (T.COMMIT_TV1, T.ABORT_TV1),
        OPEN,
        (EndTxn(ID, PID, EPOCH, True, 1), EndTxn(ID, PID, EPOCH, False, 1)),
    ),
    "end TV2": (
        (T.COMMIT, T.ABORT),
        OPEN,
        (EndTxn(ID, PID, EPOCH, True, 2), EndTxn(ID, PID, EPOCH, False, 2)),
    ),
    "job commits": ((T.JOB_COMMITTED,), (S.PREPARED,), (None,)),
    "job aborts": ((T.JOB_ABORTED,), OPEN, (None,)),
    "nothing": ((T.ABORT,), BEGUN, (EndTxn(ID, PID, EPOCH, False, 2),)),  # an abort without a transaction
    "complete": ((T.MARKERS_WRITTEN,), (S.PREPARE_COMMIT, S.PREPARE_ABORT), (None,)),
}
SET, CLR, NXT, _ = "set", "cleared", "set where the producer id has no epoch left", "kept"
# fmt: off
CHANGES: dict[str, tuple[str, ...]] = {
    #                       new  inst resu fenc kept time 1st  more prep TV1  TV2  job+ job- none compl.
    "producer_id":          (SET, NXT, NXT, _,   _,   _,   _,   _,   _,   _,   _,   _,   _,   _,   NXT),
    "producer_epoch":       (SET, SET, SET, SET, _,   SET, _,   _,   _,   _,   SET, SET, SET, SET, NXT),
    "timeout_ms":           (SET, SET, SET, _,   SET, _,   _,   _,   _,   _,   _,   _,   _,   _,   _),
    "last_update_ms":       (SET, SET, SET, SET, SET, SET, SET, SET, SET, SET, SET, SET, SET, SET, SET),
    "start_ms":             (CLR, CLR, CLR, _,   _,   _,   SET, _,   _,   _,   _,   _,   _,   SET, _),
    "partitions":           (CLR, CLR, CLR, _,   _,   _,   SET, SET, _,   _,   _,   _,   _,   CLR, CLR),
    "last_producer_epoch":  (CLR, CLR, SET, CLR, CLR, SET, CLR, CLR, _,   _,   SET, CLR, CLR, SET, _),
    "previous_producer_id": (CLR, NXT, NXT, _,   NXT, _,   _,   _,   _,   _,   _,   _,   _,   _,   NXT),
    "next_producer_id":     (CLR, _,   _,   NXT, SET, NXT, _,   _,   _,   _,   NXT, NXT, NXT, NXT, CLR),
    "next_producer_epoch":  (CLR, _,   _,   _,   SET, _,   _,   _,   _,   _,   _,   _,   _,   _,   _),
    "transaction_version":  (CLR, _,   _,   _,   _,   _,   SET, SET, _,   SET, SET, _,   _,   SET, _),
}
# fmt: on


@pytest.mark.parametrize("max_epoch", EPOCHS)
@pytest.mark.parametrize("transition", TRANSITIONS)
def test_every_record_does_with_each_field_what_the_table_says(transition: str, max_epoch: int) -> None:
    stimuli, states, events = TRANSITIONS[transition]
    column = {name: row[list(TRANSITIONS).index(transition)] for name, row in CHANGES.items()}
    for state in states:
        for event in events:
            before, after = played(state, stimuli[0], event, max_epoch)
            rotates = max_epoch == EPOCHS[1]
            found = {name: change(name, before, after) for name in CHANGES}
            wanted = {name: said if said != NXT else SET if rotates else _ for name, said in column.items()}
            if not rotates and transition == "complete":
                wanted["next_producer_id"] = _  # there is none to clear
            assert found == wanted, f"{state.name}: {event}"


def played(
    state: S, stimulus: Stimulus, event: Any, max_epoch: int
) -> tuple[TransactionMetadata | None, TransactionMetadata]:
    """The entry before, in which every field has a value of its own, and the one that the record holds."""
    made = make(state, version=1, max_epoch=max_epoch, stimulus=stimulus)
    before = next(iter(made.transactions.values()), None)
    if before is not None:
        decided = state.is_decided and max_epoch == EPOCHS[1]
        before = replace(
            before,
            timeout_ms=50_000,
            last_update_ms=7,
            start_ms=1,
            partitions=frozenset({P1._replace(partition=9)}),
            last_producer_epoch=EPOCH - 1,
            previous_producer_id=77,
            next_producer_id=1999 if decided else -1,
            producer_epoch=max_epoch if decided else EPOCH,
            transaction_version=1 if getattr(event, "transaction_version", 1) == 2 else 2,
        )
        key, value = records.encode_key(before.transactional_id), records.encode_value(before, LEVEL)
        made.replay(ReplayedRecord(40, 0, key, value))
    outcome = decide(made, event or request(stimulus, made))
    (record,) = outcome.records
    return before, records.decode_value(ID, record.value or b"", 40)


def change(name: str, before: TransactionMetadata | None, after: TransactionMetadata) -> str:
    default = next(each for each in fields(TransactionMetadata) if each.name == name).default
    value = getattr(after, name)
    if before is not None and value == getattr(before, name):
        return _
    return CLR if default is not MISSING and value == default else SET


def test_every_field_and_every_record_stands_in_the_table() -> None:
    named = {
        "transactional_id",
        "state",
        "record_offset",
    }  # the id, what `leads_to` says, the place in the log
    assert CHANGES.keys() == {each.name for each in fields(TransactionMetadata)} - named
    played_cells = {
        (state, each)
        for stimuli, states, _events in TRANSITIONS.values()
        for state in states
        for each in stimuli
    }
    writing = {pair for pair, action in RULES.items() if leads_to(pair[0], action) not in (None, S.DEAD)}
    assert played_cells == writing
