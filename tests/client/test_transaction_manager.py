"""The table of the producer's states: everything that is in it, and that nothing else is possible."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from tidegate.client.connecting.errors import AbortableError, FatalError, ProducerFenced, RequestError
from tidegate.client.producing.transaction_manager import TRANSITIONS, Event, State, TransactionManager
from tidegate.client.requests.transaction_requests import Identity
from tidegate.wire.errors import ErrorCode, KafkaError

FIRST = Identity(7, 0)
CAUSE = AbortableError(ErrorCode.TRANSACTION_ABORTABLE, "cause")


def ready() -> TransactionManager:
    manager = TransactionManager("tx")
    manager.on(Event.INITIALIZE)
    manager.initialized(FIRST, 2)
    return manager


def open_transaction() -> TransactionManager:
    manager = ready()
    manager.begin()
    manager.require_sending()
    manager.left()
    return manager


def committing() -> TransactionManager:
    manager = open_transaction()
    assert manager.begin_end(commit=True)
    return manager


def aborting() -> TransactionManager:
    manager = open_transaction()
    assert manager.begin_end(commit=False)
    return manager


def failed() -> TransactionManager:
    manager = open_transaction()
    manager.abortable(CAUSE)
    return manager


def fatal() -> TransactionManager:
    manager = open_transaction()
    manager.fatal(ProducerFenced(ErrorCode.PRODUCER_FENCED, "fenced"))
    return manager


def initializing() -> TransactionManager:
    manager = TransactionManager("tx")
    manager.on(Event.INITIALIZE)
    return manager


MADE: dict[State, Callable[[], TransactionManager]] = {
    State.UNINITIALIZED: lambda: TransactionManager("tx"),
    State.INITIALIZING: initializing,
    State.READY: ready,
    State.IN_TRANSACTION: open_transaction,
    State.COMMITTING: committing,
    State.ABORTING: aborting,
    State.ABORTABLE_ERROR: failed,
    State.FATAL_ERROR: fatal,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_state_and_event_has_the_outcome_of_the_table(state: State, event: Event) -> None:
    manager = MADE[state]()
    assert manager.state is state
    following = TRANSITIONS.get((state, event))
    if following is not None:
        manager.on(event)
        assert manager.state is following
        return
    with pytest.raises(KafkaError) as refused:
        manager.on(event)
    assert manager.state is state, "a refused event changes nothing"
    assert event.value in refused.value.message


def test_the_table_reaches_every_state_and_leaves_none_but_the_fatal_one() -> None:
    reached = {State.UNINITIALIZED}
    while more := {following for (state, _), following in TRANSITIONS.items() if state in reached} - reached:
        reached |= more
    assert reached == set(State)
    for state in State:
        onwards = {following for (before, _), following in TRANSITIONS.items() if before is state} - {
            state,
            State.FATAL_ERROR,
        }
        assert bool(onwards) is (state is not State.FATAL_ERROR), state


def test_a_refusal_in_an_error_state_names_the_cause_and_keeps_its_class() -> None:
    with pytest.raises(AbortableError, match=r"call abort.*The cause: .*cause"):
        failed().begin_end(commit=True)
    with pytest.raises(ProducerFenced, match="make a new one"):
        fatal().begin()


def test_the_first_cause_of_a_failure_is_kept() -> None:
    manager = failed()
    manager.abortable(AbortableError(ErrorCode.UNKNOWN_SERVER_ERROR, "later"))
    assert manager.error is CAUSE
    broken = fatal()
    broken.fatal(FatalError(ErrorCode.UNKNOWN_SERVER_ERROR, "later"))
    assert isinstance(broken.error, ProducerFenced)


def test_after_an_unknown_outcome_only_the_same_call_needs_no_new_identity() -> None:
    manager = committing()
    manager.outcome_unknown()
    assert (manager.state, manager.unresolved, manager.needs_identity) == (
        State.UNINITIALIZED,
        Event.COMMIT,
        True,
    )
    for forbidden in (manager.begin, manager.require_sending, lambda: manager.begin_end(commit=False)):
        with pytest.raises(RequestError):
            forbidden()
    assert manager.begin_end(commit=True) is False, "only EndTxn again: the records were flushed before"
    manager.ended(Identity(7, 1))
    assert (manager.state, manager.identity) == (State.READY, Identity(7, 1))


def test_a_new_identity_forgets_the_unknown_outcome() -> None:
    manager = aborting()
    manager.outcome_unknown()
    manager.on(Event.INITIALIZE)
    manager.initialized(Identity(7, 5), 2)
    assert manager.unresolved is None
    with pytest.raises(RequestError):
        manager.begin_end(commit=False)


def test_failed_records_of_an_aborting_transaction_change_no_state() -> None:
    manager = aborting()
    manager.abortable(CAUSE)
    assert manager.state is State.ABORTING
    manager.ended(Identity(7, 1))
    assert manager.state is State.READY
    assert manager.error is None


@pytest.mark.parametrize(
    ("given", "state"),
    [(None, State.UNINITIALIZED), (FIRST, State.UNINITIALIZED), (Identity(7, 1), State.READY)],
)
def test_unresolved_sequences_need_an_identity_that_really_is_new(
    given: Identity | None, state: State
) -> None:
    manager = aborting()
    manager.ended(given, unresolved_sequences=True)
    assert manager.state is state


def test_under_tv1_records_wait_until_their_partition_is_enlisted() -> None:
    manager = TransactionManager("tx")
    manager.on(Event.INITIALIZE)
    manager.initialized(FIRST, 1)
    manager.begin()
    assert not manager.may_send_to(("t", 0))
    assert manager.take_to_enlist() == {("t", 0)}
    assert not manager.has_to_enlist
    manager.enlisted({("t", 0)})
    assert manager.may_send_to(("t", 0))
    assert not manager.may_send_to(("t", 1))
    manager.begin_end(commit=True)
    manager.ended(None)
    manager.begin()
    assert not manager.may_send_to(("t", 0)), "each transaction enlists anew"


def test_under_tv2_the_leader_enlists() -> None:
    assert open_transaction().may_send_to(("t", 0))


def test_nothing_leaves_outside_a_transaction() -> None:
    for state in set(State) - {State.IN_TRANSACTION, State.COMMITTING}:
        assert not MADE[state]().may_send_to(("t", 0)), state


def test_a_transaction_that_sent_nothing_needs_no_end_txn() -> None:
    manager = ready()
    manager.begin()
    assert not manager.end_txn_needed
    manager.left()
    assert manager.end_txn_needed
    manager.ended_without_us(Identity(7, 2))
    assert not manager.end_txn_needed


def test_a_producer_without_transactional_id_has_no_transactions() -> None:
    manager = TransactionManager(None)
    manager.on(Event.INITIALIZE)
    manager.initialized(FIRST, 1)
    manager.require_sending()
    assert manager.may_send_to(("t", 0))
    for forbidden in (
        manager.begin,
        lambda: manager.begin_end(commit=True),
        lambda: manager.begin_end(commit=False),
    ):
        with pytest.raises(RequestError, match="transactional_id"):
            forbidden()
