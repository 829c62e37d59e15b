"""Lists of transaction states outside of the coordinator's room: a new state has its place in each."""

from __future__ import annotations

from tidegate.chaos.load.workload import UNDECIDED
from tidegate.chaos.run.timed_kills import UNFINISHED
from tidegate.client.command_line.transactions import TRANSACTION_STATES
from tidegate.coordinator.transaction.state import PROPERTIES, TransactionState


def test_the_command_line_knows_every_state() -> None:
    assert set(TRANSACTION_STATES) == {state.display_name for state in TransactionState}


def test_chaos_looks_for_every_state_that_can_hang() -> None:
    """PREPARE_EPOCH_FENCE is Kafka's alone."""
    runs = {state.display_name for state, each in PROPERTIES.items() if each.runs}
    assert set(UNDECIDED) == runs | {TransactionState.PREPARE_EPOCH_FENCE.display_name}


def test_chaos_kills_a_coordinator_in_every_state_whose_markers_are_missing() -> None:
    decided = {state.display_name for state, each in PROPERTIES.items() if each.completed_as is not None}
    assert decided == UNFINISHED
