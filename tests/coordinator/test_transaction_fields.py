"""What each record of a transactional id does with each field of the entry, written down cell by cell.  A
field has a value of its own before each transition that carries it on or clears it: else the cell would say
nothing.

The columns are the transitions; each is played from every state that it may begin in, with ids that have
epochs left and with one whose last epoch is given away.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, replace
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


@dataclass(frozen=True)
class Kept:
    """An event that meets a transaction of two-phase commit, whose client has the next epoch already."""

    event: Any


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
    "end, kept": (
        (T.COMMIT, T.ABORT),
        (S.PREPARED,),
        (Kept(EndTxn(ID, PID, EPOCH + 1, True, 2)), Kept(EndTxn(ID, PID, EPOCH + 1, False, 2))),
    ),
    "complete, kept": ((T.MARKERS_WRITTEN,), (S.PREPARE_COMMIT, S.PREPARE_ABORT), (Kept(None),)),
}
S_, C_, N_, _ = "set", "cleared", "set where the producer id has no epoch left", "kept"
# fmt: off
CHANGES: dict[str, tuple[str, ...]] = {
    #                       new ins res fen kep tim 1st mor pre TV1 TV2 jo+ jo- non com e2  c2
    "producer_id":         (S_, N_, N_, _,  _,  _,  _,  _,  _,  _,  _,  _,  _,  _,  N_, _,  _),
    "producer_epoch":      (S_, S_, S_, S_, _,  S_, _,  _,  _,  _,  S_, S_, S_, S_, N_, S_, S_),
    "timeout_ms":          (S_, S_, S_, _,  S_, _,  _,  _,  _,  _,  _,  _,  _,  _,  _,  _,  _),
    "last_update_ms":      (S_, S_, S_, S_, S_, S_, S_, S_, S_, S_, S_, S_, S_, S_, S_, S_, S_),
    "start_ms":            (C_, C_, C_, _,  _,  _,  S_, _,  _,  _,  _,  _,  _,  S_, _,  _,  _),
    "partitions":          (C_, C_, C_, _,  _,  _,  S_, S_, _,  _,  _,  _,  _,  C_, C_, _,  C_),
    "last_producer_epoch": (C_, C_, S_, C_, C_, S_, C_, C_, _,  _,  S_, C_, C_, S_, _,  S_, _),
    "previous_producer_id":(C_, N_, N_, _,  N_, _,  _,  _,  _,  _,  _,  _,  _,  _,  N_, _,  _),
    "next_producer_id":    (C_, _,  _,  N_, S_, N_, _,  _,  _,  _,  N_, N_, N_, N_, C_, _,  C_),
    "next_producer_epoch": (C_, _,  _,  _,  S_, _,  _,  _,  _,  _,  _,  _,  _,  _,  C_, S_, C_),
    "transaction_version": (C_, _,  _,  _,  _,  _,  S_, S_, _,  S_, S_, _,  _,  S_, _,  S_, _),
}
# fmt: on


@pytest.mark.parametrize("max_epoch", EPOCHS)
@pytest.mark.parametrize("transition", TRANSITIONS)
def test_every_record_does_with_each_field_what_the_table_says(transition: str, max_epoch: int) -> None:
    stimuli, states, events = TRANSITIONS[transition]
    if transition.endswith("kept") and transition != "kept" and max_epoch != EPOCHS[0]:
        return  # the client's next epoch would be above the highest
    column = {name: row[list(TRANSITIONS).index(transition)] for name, row in CHANGES.items()}
    for state in states:
        for event in events:
            before, after = played(state, stimuli[0], event, max_epoch)
            rotates = max_epoch == EPOCHS[1]
            found = {name: change(name, before, after) for name in CHANGES}
            wanted = {name: said if said != N_ else S_ if rotates else _ for name, said in column.items()}
            if not rotates and transition == "complete":
                wanted["next_producer_id"] = _  # there is none to clear
            if transition == "complete":
                wanted["next_producer_epoch"] = _  # likewise: "complete, kept" has one
            assert found == wanted, f"{state.name}: {event}"


def played(
    state: S, stimulus: Stimulus, event: Any, max_epoch: int
) -> tuple[TransactionMetadata | None, TransactionMetadata]:
    """The entry before, in which every field has a value of its own, and the one that the record holds."""
    kept = isinstance(event, Kept)
    event = event.event if isinstance(event, Kept) else event
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
            next_producer_id=PID if kept else 1999 if decided else -1,
            next_producer_epoch=EPOCH + 1 if kept else -1,
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
    return C_ if default is not MISSING and value == default else S_


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


def test_each_field_has_a_value_of_its_own_where_the_table_keeps_or_clears_it() -> None:
    """One that has its default before would be seen as kept, whatever the transition does with it.  The next
    identity is there between PREPARE and COMPLETE alone."""
    own: dict[str, set[str]] = {name: set() for name in CHANGES}
    for transition, (stimuli, states, events) in TRANSITIONS.items():
        for state in states:
            for event in events:
                before, _after = played(state, stimuli[0], event, EPOCHS[0])
                own_here = {name for name in CHANGES if before is not None and has_own(before, name)}
                for name in own_here:
                    own[name].add(transition)
    for place, transition in enumerate(TRANSITIONS):
        for name, row in CHANGES.items():
            is_next = name.startswith("next_")
            wanted = row[place] == C_ if is_next else row[place] in (_, C_)
            if transition != "new id" and wanted and not (is_next and transition == "complete"):
                assert transition in own[name], f"{transition}: give {name} a value of its own in `played`"


def has_own(entry: TransactionMetadata, name: str) -> bool:
    default = next(each for each in fields(TransactionMetadata) if each.name == name).default
    return default is MISSING or bool(getattr(entry, name) != default)
