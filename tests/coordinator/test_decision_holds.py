"""While a cut is taken a shard decides no commit and completes none: what waits, and for how long
(docs/semantics.md K1 to K3)."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from tidegate.controller.state.model import TWO_PHASE_COMMIT_LEVEL
from tidegate.coordinator.running_shard import RuntimeConfig
from tidegate.coordinator.transaction import decision_holds
from tidegate.coordinator.transaction.cut_events import (
    HeldReply,
    HoldDecisions,
    ReleaseDecisions,
    ReleasedReply,
)
from tidegate.coordinator.transaction.decision_holds import HOLD_MS_MAX, HOLDS_MAX
from tidegate.coordinator.transaction.events import (
    AddPartitions,
    CompleteHeld,
    EndTxn,
    InitProducerId,
    MarkersWritten,
    ProducerReply,
    SendMarkers,
    TransactionConfig,
)
from tidegate.coordinator.transaction.job_events import (
    AbortJob,
    CarryOutJob,
    CommitJob,
    ContinueJob,
    DecisionReply,
    OpenAttempt,
    TimeoutJob,
)
from tidegate.coordinator.transaction.jobs import JobId, JobState, Winner
from tidegate.coordinator.transaction.shard import TransactionShard
from tidegate.coordinator.transaction.state import TransactionPartition, TransactionState
from tidegate.wire.errors import ErrorCode

from .coordinator_doubles import Driver, code_of

ID, JOB = "orders", JobId("sink", "7")
PLACE = TransactionPartition("flights", 0)
NONE = ErrorCode.NONE


class Coordinator(Driver):
    """A shard with one open transaction."""

    def __init__(self, version: int = 2, waiting_max: int = 100) -> None:
        ids, config = count(100), TransactionConfig(completion_wait_ms=500)
        super().__init__(
            lambda partition, epoch: TransactionShard(
                config, lambda: next(ids), epoch, finalised_level=lambda: TWO_PHASE_COMMIT_LEVEL
            ),
            config=RuntimeConfig(waiting_max=waiting_max),
        )
        self.version = version
        self.load()
        self.begin()

    def begin(self) -> None:
        self.producer: ProducerReply = self.ask(InitProducerId(ID, 60_000))
        identity = self.producer.producer_id, self.producer.producer_epoch
        self.ask(AddPartitions(ID, *identity, (PLACE,), self.version))

    @property
    def shard(self) -> TransactionShard:
        ((_, _, shard),) = self.runtime.shards()
        assert isinstance(shard, TransactionShard)
        return shard

    @property
    def state(self) -> TransactionState:
        return self.shard.transactions[ID].state

    def end(self, *, commit: bool = True) -> EndTxn:
        return EndTxn(ID, self.producer.producer_id, self.producer.producer_epoch, commit, self.version)

    def hold(self, hold_id: str = "cut", hold_ms: int = 500) -> HeldReply:
        found = self.ask(HoldDecisions(hold_id, hold_ms))
        assert isinstance(found, HeldReply), found
        return found

    def release(self, held: HeldReply, hold_id: str = "cut") -> bool:
        found = self.ask(ReleaseDecisions(hold_id, held.leader_epoch, held.until_ms))
        assert isinstance(found, ReleasedReply), found
        return found.has_held

    def carry_out(self) -> None:
        """The effects, as a node does."""
        self.commit()
        while self.effects:
            effects, self.effects[:] = [effect for _, _, effect in self.effects], []
            for effect in effects:
                match effect:
                    case SendMarkers():
                        self.runtime.submit(0, MarkersWritten(effect.identity), None)
                    case CompleteHeld():
                        for event in effect.events:
                            self.runtime.submit(0, event, None)
                    case ContinueJob():
                        self.runtime.submit(0, CarryOutJob(effect.job), None)
                    case _:
                        raise AssertionError(effect)
            self.commit()

    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.runtime.tick()
        self.carry_out()

    def code(self, label: str) -> Any:
        found = self.replies.get(label)
        return None if found is None else code_of(found) or NONE


def test_a_hold_that_comes_twice_is_not_made_longer() -> None:
    """By the copy of a request: its taker has the answer to the first one."""
    coordinator = Coordinator()
    held = coordinator.hold()
    coordinator.now_ms += 100
    again = coordinator.ask(HoldDecisions("cut", 500))
    assert code_of(again) is ErrorCode.INVALID_REQUEST
    assert coordinator.release(held)


@pytest.mark.parametrize("version", [1, 2])
def test_a_commit_waits_for_the_release_and_is_decided_then(version: int) -> None:
    coordinator = Coordinator(version)
    held = coordinator.hold()
    assert held.decided == frozenset()
    coordinator.submit("commit", coordinator.end())
    coordinator.carry_out()
    assert "commit" not in coordinator.replies
    assert coordinator.state is TransactionState.ONGOING
    assert coordinator.release(held)
    coordinator.carry_out()
    assert isinstance(coordinator.replies["commit"], ProducerReply)
    assert coordinator.state is TransactionState.COMPLETE_COMMIT


def test_a_hold_names_what_is_decided_and_completes_none_of_it() -> None:
    coordinator = Coordinator()
    coordinator.ask(coordinator.end())
    held = coordinator.hold()
    assert held.decided == {coordinator.producer.producer_id}
    coordinator.carry_out()
    assert coordinator.state is TransactionState.PREPARE_COMMIT, "its markers are written"
    assert coordinator.release(held)
    coordinator.carry_out()
    assert coordinator.state is TransactionState.COMPLETE_COMMIT


def test_the_answer_to_a_hold_waits_until_what_it_names_is_committed() -> None:
    coordinator = Coordinator()
    coordinator.submit("commit", coordinator.end())
    coordinator.submit("hold", HoldDecisions("cut", 500))
    assert "hold" not in coordinator.replies
    coordinator.commit()
    assert coordinator.replies["hold"].decided == {coordinator.producer.producer_id}


def test_aborts_and_new_transactions_go_on_while_a_shard_is_held() -> None:
    coordinator = Coordinator()
    coordinator.hold()
    assert isinstance(coordinator.ask(coordinator.end(commit=False)), ProducerReply)
    coordinator.carry_out()
    assert coordinator.state is TransactionState.COMPLETE_ABORT
    coordinator.begin()
    assert coordinator.state is TransactionState.ONGOING


def test_a_commit_that_waits_is_judged_anew_as_soon_as_its_transaction_ends() -> None:
    """TV1: a commit that waited behind the abort would end the next transaction of the same epoch."""
    coordinator = Coordinator(version=1)
    coordinator.hold()
    coordinator.submit("commit", coordinator.end())
    assert code_of(coordinator.ask(coordinator.end(commit=False))) is NONE
    coordinator.commit()
    assert coordinator.code("commit") is ErrorCode.INVALID_TXN_STATE


def test_a_new_instance_fences_the_producer_whose_commit_waits() -> None:
    coordinator = Coordinator()
    coordinator.hold()
    coordinator.submit("commit", coordinator.end())
    assert code_of(coordinator.ask(InitProducerId(ID, 60_000))) is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.commit()
    assert coordinator.code("commit") is ErrorCode.PRODUCER_FENCED


def test_no_timeout_ends_a_transaction_whose_commit_waits() -> None:
    coordinator = Coordinator()
    coordinator.now_ms += 59_500
    held = coordinator.hold(hold_ms=HOLD_MS_MAX)
    coordinator.submit("commit", coordinator.end())
    coordinator.wait(1_500)
    assert coordinator.state is TransactionState.ONGOING
    assert coordinator.release(held)
    assert isinstance(coordinator.replies["commit"], ProducerReply)


def test_a_timeout_in_the_tick_that_ends_the_hold_ends_no_commit_that_waits() -> None:
    coordinator = Coordinator()
    coordinator.now_ms += 59_500
    coordinator.hold(hold_ms=HOLD_MS_MAX)  # its taker dies
    coordinator.submit("commit", coordinator.end())  # in time
    coordinator.wait(HOLD_MS_MAX)
    assert isinstance(coordinator.replies["commit"], ProducerReply)
    assert coordinator.state is TransactionState.COMPLETE_COMMIT


def test_a_hold_ends_by_itself_and_its_taker_learns_that_it_did() -> None:
    coordinator = Coordinator()
    held = coordinator.hold(hold_ms=300)
    coordinator.submit("commit", coordinator.end())
    coordinator.wait(299)
    assert "commit" not in coordinator.replies
    coordinator.wait(101)
    assert isinstance(coordinator.replies["commit"], ProducerReply)
    assert not coordinator.release(held)


def test_a_hold_ends_also_while_as_many_callers_wait_as_may() -> None:
    """The shard takes no request then, and its timers go on: they end the wait."""
    coordinator = Coordinator(waiting_max=1)
    coordinator.hold(hold_ms=300)
    coordinator.submit("commit", coordinator.end())
    coordinator.submit("more", coordinator.end())
    assert coordinator.code("more") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    coordinator.wait(300)
    assert isinstance(coordinator.replies["commit"], ProducerReply)


def test_a_commit_passes_as_soon_as_the_hold_is_over_without_a_timer() -> None:
    coordinator = Coordinator()
    coordinator.hold(hold_ms=300)
    coordinator.now_ms += 300
    assert isinstance(coordinator.ask(coordinator.end()), ProducerReply)


def test_a_release_names_the_very_hold_that_was_answered() -> None:
    """A copy of the request that comes late begins another hold under the same name."""
    coordinator = Coordinator()
    held = coordinator.hold(hold_ms=300)
    coordinator.wait(600)
    again = coordinator.hold(hold_ms=300)
    assert again.until_ms > held.until_ms
    assert not coordinator.release(held)


def test_holds_one_after_the_other_leave_commits_their_time() -> None:
    """Each hold may join those before; together they end after HOLD_MS_MAX, and then as long there is
    none."""
    coordinator = Coordinator()
    began_ms = coordinator.now_ms
    coordinator.submit("commit", coordinator.end())
    for number in range(5):
        found = coordinator.hold(str(number), HOLD_MS_MAX)
        assert found.until_ms == began_ms + HOLD_MS_MAX
        coordinator.now_ms += HOLD_MS_MAX // 5
    refused = coordinator.ask(HoldDecisions("late", HOLD_MS_MAX))
    assert code_of(refused) is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.wait(HOLD_MS_MAX)
    coordinator.hold("later")


def test_a_commit_waits_for_all_cuts_that_hold() -> None:
    coordinator = Coordinator()
    first, second = coordinator.hold("first"), coordinator.hold("second")
    coordinator.submit("commit", coordinator.end())
    assert coordinator.release(first, "first")
    assert "commit" not in coordinator.replies
    assert coordinator.release(second, "second")
    coordinator.commit()
    assert isinstance(coordinator.replies["commit"], ProducerReply)


def test_the_number_of_holds_and_of_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_holds, "HELD_REQUESTS_MAX", 2)
    coordinator = Coordinator()
    for number in range(HOLDS_MAX):
        coordinator.hold(str(number))
    assert code_of(coordinator.ask(HoldDecisions("more", 500))) is ErrorCode.CONCURRENT_TRANSACTIONS
    for number in range(3):
        coordinator.submit(str(number), coordinator.end())
    coordinator.commit()
    assert coordinator.code("2") is ErrorCode.CONCURRENT_TRANSACTIONS
    assert "0" not in coordinator.replies
    coordinator.wait(2_000)
    coordinator.begin()
    coordinator.hold()
    for number in range(3, 6):  # those that waited before do not count any more
        coordinator.submit(str(number), coordinator.end())
    coordinator.commit()
    assert ["3" in coordinator.replies, "4" in coordinator.replies] == [False, False]
    assert coordinator.code("5") is ErrorCode.CONCURRENT_TRANSACTIONS
    monkeypatch.setattr(decision_holds, "DECIDED_MAX", 0)
    decided = Coordinator()
    decided.ask(decided.end())
    assert code_of(decided.ask(HoldDecisions("cut", 500))) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_commit_whose_transaction_has_ended_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_holds, "HELD_REQUESTS_MAX", 1)
    coordinator = Coordinator(version=1)
    coordinator.hold()
    coordinator.submit("ended", coordinator.end())
    assert code_of(coordinator.ask(coordinator.end(commit=False))) is NONE
    coordinator.carry_out()
    assert coordinator.code("ended") is ErrorCode.INVALID_TXN_STATE
    coordinator.begin()
    coordinator.submit("next", coordinator.end())
    coordinator.commit()
    assert "next" not in coordinator.replies, "it waits"


def test_a_job_is_decided_after_the_release_and_its_winners_are_named_before_they_commit() -> None:
    coordinator = Coordinator()
    opened = coordinator.ask(OpenAttempt(JOB, "a", 60_000))
    winner = Winner("a", opened.producer_id, opened.producer_epoch)
    held = coordinator.hold()
    coordinator.submit("commit", CommitJob(JOB, (winner,)))
    coordinator.carry_out()
    assert "commit" not in coordinator.replies
    assert coordinator.release(held)
    coordinator.commit()
    found = coordinator.replies["commit"]
    assert isinstance(found, DecisionReply)
    assert found.outcome is JobState.COMMITTED
    coordinator.now_ms += 1_000
    assert coordinator.hold("second").decided == {opened.producer_id}, "nothing of it is carried out"


def test_a_job_whose_commit_waits_does_not_time_out() -> None:
    coordinator = Coordinator()
    opened = coordinator.ask(OpenAttempt(JOB, "a", 60_000))
    coordinator.now_ms += 600_000
    held = coordinator.hold()
    winner = Winner("a", opened.producer_id, opened.producer_epoch)
    coordinator.submit("commit", CommitJob(JOB, (winner,)))
    coordinator.ask(TimeoutJob(JOB))
    coordinator.release(held)
    coordinator.commit()
    found = coordinator.replies["commit"]
    assert isinstance(found, DecisionReply)
    assert found.outcome is JobState.COMMITTED


def test_a_commit_of_a_job_that_waits_is_refused_as_soon_as_the_job_is_aborted() -> None:
    coordinator = Coordinator()
    opened = coordinator.ask(OpenAttempt(JOB, "a", 60_000))
    coordinator.hold()
    winner = Winner("a", opened.producer_id, opened.producer_epoch)
    coordinator.submit("commit", CommitJob(JOB, (winner,)))
    assert coordinator.ask(AbortJob(JOB)).outcome is JobState.ABORTED
    coordinator.commit()
    assert coordinator.code("commit") is ErrorCode.INVALID_TXN_STATE


def test_a_shard_that_is_loaded_again_knows_no_hold() -> None:
    coordinator = Coordinator()
    held = coordinator.hold()
    coordinator.submit("commit", coordinator.end())
    coordinator.commit()
    coordinator.load(epoch=2)
    coordinator.commit()
    assert coordinator.code("commit") is ErrorCode.NOT_COORDINATOR
    assert not coordinator.release(held)
