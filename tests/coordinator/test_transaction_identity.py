"""Producer ids and epochs: KIP-360, fencing, timeouts, repeated EndTxn, rotation; all with four epochs to an
id."""

from __future__ import annotations

from itertools import count
from typing import Any
from uuid import UUID

import pytest
from tidegate.controller.state.model import TWO_PHASE_COMMIT_LEVEL
from tidegate.coordinator.transaction.events import (
    AddPartitions,
    DescribeTransactions,
    EndTxn,
    InitProducerId,
    ListTransactions,
    MarkersWritten,
    NeedProducerIds,
    PrepareTransaction,
    ProducerReply,
    SendMarkers,
    TransactionConfig,
    TransactionIdentity,
)
from tidegate.coordinator.transaction.shard import TransactionShard
from tidegate.coordinator.transaction.state import TransactionMetadata, TransactionPartition, TransactionState
from tidegate.storage.topic_config import LogConfig
from tidegate.wire.errors import ErrorCode, KafkaError

from .coordinator_doubles import Driver, MemoryLog, code_of

ID = "orders"
MAX = 4
P0 = TransactionPartition("flights", 0)
DAY_MS = 24 * 3600 * 1000


class Coordinator(Driver):
    """One transaction shard behind a runtime, with markers written at once unless held back."""

    def __init__(self, *, max_epoch: int = MAX, log: MemoryLog | None = None, first_id: int = 100) -> None:
        self.ids: Any = count(first_id)
        self.hold_markers = False
        self.max_epoch = max_epoch
        self.level = TWO_PHASE_COMMIT_LEVEL
        config = TransactionConfig(max_producer_epoch=max_epoch)
        super().__init__(
            lambda partition, epoch: TransactionShard(
                config, lambda: next(self.ids, None), epoch, finalised_level=lambda: self.level
            ),
            log=log,
        )

    def settle(self) -> None:
        """Commits, and writes the markers of every SendMarkers until nothing is left to do."""
        self.commit()
        while not self.hold_markers and (
            sends := [e for _, _, e in self.effects if isinstance(e, SendMarkers)]
        ):
            self.effects.clear()
            for send in sends:
                self.runtime.submit(0, MarkersWritten(send.identity), None)
            self.commit()

    def ask(self, event: Any, partition: int = 0) -> Any:
        reply = super().ask(event, partition)
        self.settle()
        return reply

    def init(self, producer_id: int = -1, epoch: int = -1) -> Any:
        return self.ask(InitProducerId(ID, 60_000, producer_id, epoch))

    def keep(self, producer_id: int = -1, epoch: int = -1) -> Any:
        return self.ask(InitProducerId(ID, 60_000, producer_id, epoch, True, True))

    def prepare(self, producer: ProducerReply) -> Any:
        return self.ask(PrepareTransaction(ID, producer.producer_id, producer.producer_epoch))

    def begin(self, producer: ProducerReply, version: int = 2) -> Any:
        return self.ask(AddPartitions(ID, producer.producer_id, producer.producer_epoch, (P0,), version))

    def end(self, producer: ProducerReply, commit: bool = True, version: int = 2) -> Any:
        return self.ask(EndTxn(ID, producer.producer_id, producer.producer_epoch, commit, version))

    @property
    def entry(self) -> TransactionMetadata:
        (_, _, shard), *_ = self.runtime.shards()
        assert isinstance(shard, TransactionShard)
        return shard.transactions[ID]

    def fail_over(self) -> Coordinator:
        """Another node takes the partition over, from the log alone."""
        after = Coordinator(max_epoch=self.max_epoch, log=self.log, first_id=next(self.ids))
        after.now_ms = self.now_ms
        after.load(epoch=(self.runtime.leader_epoch(0) or 0) + 1)
        after.settle()
        return after


@pytest.fixture
def coordinator() -> Coordinator:
    made = Coordinator()
    made.load()
    return made


def test_the_first_init_gives_a_fresh_id_and_epoch_0(coordinator: Coordinator) -> None:
    assert coordinator.init() == ProducerReply(100, 0)


def test_an_id_that_no_record_can_hold_is_the_clients_mistake(coordinator: Coordinator) -> None:
    assert code_of(coordinator.ask(InitProducerId("x" * 32_768, 60_000))) is ErrorCode.INVALID_REQUEST


def test_every_new_instance_fences_the_last_one(coordinator: Coordinator) -> None:
    first = coordinator.init()
    assert coordinator.init() == ProducerReply(100, 1)
    assert code_of(coordinator.begin(first)) is ErrorCode.PRODUCER_FENCED


def test_a_new_instance_aborts_the_open_transaction_and_retries(coordinator: Coordinator) -> None:
    first = coordinator.init()
    coordinator.begin(first)
    assert code_of(coordinator.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.entry.state is TransactionState.COMPLETE_ABORT
    assert coordinator.init() == ProducerReply(100, 2), "no producer gets the epoch of the fence itself"
    assert code_of(coordinator.end(first)) is ErrorCode.PRODUCER_FENCED


def test_an_expected_epoch_is_bumped_and_its_retry_answered_the_same(coordinator: Coordinator) -> None:
    coordinator.init()
    assert coordinator.init(100, 0) == ProducerReply(100, 1)
    assert coordinator.init(100, 0) == ProducerReply(100, 1), "the answer was lost"
    assert coordinator.fail_over().init(100, 0) == ProducerReply(100, 1), "and the coordinator with it"


def test_a_retry_after_another_instance_came_is_fenced(coordinator: Coordinator) -> None:
    coordinator.init()
    coordinator.init(100, 0)
    coordinator.init()
    assert code_of(coordinator.init(100, 0)) is ErrorCode.PRODUCER_FENCED
    assert code_of(coordinator.init(100, 1)) is ErrorCode.PRODUCER_FENCED


def test_a_late_duplicate_of_init_does_not_fence_the_producer_that_went_on(coordinator: Coordinator) -> None:
    coordinator.init()
    producer = coordinator.init(100, 0)
    coordinator.begin(producer, version=1)
    assert code_of(coordinator.init(100, 0)) is ErrorCode.PRODUCER_FENCED, (
        "and it does not abort the open transaction either"
    )
    assert coordinator.end(producer, version=1) == ProducerReply(-1, -1)
    assert code_of(coordinator.init(100, 0)) is ErrorCode.PRODUCER_FENCED
    assert code_of(coordinator.begin(producer, version=1)) is ErrorCode.NONE


def test_an_unknown_expected_id_is_fenced(coordinator: Coordinator) -> None:
    coordinator.init()
    assert code_of(coordinator.init(55, 0)) is ErrorCode.PRODUCER_FENCED


# --- rotation -----------------------------------------------------------------------------------------------


def test_init_rotates_when_the_epochs_of_an_id_are_used_up(coordinator: Coordinator) -> None:
    assert [coordinator.init() for _ in range(6)] == [
        ProducerReply(100, 0),
        ProducerReply(100, 1),
        ProducerReply(100, 2),
        ProducerReply(100, 3),
        ProducerReply(101, 0),
        ProducerReply(101, 1),
    ]


def test_a_retry_across_the_rotation_is_recognised(coordinator: Coordinator) -> None:
    producer = ProducerReply(100, 0)
    coordinator.init()
    for _ in range(3):
        producer = coordinator.init(producer.producer_id, producer.producer_epoch)
    assert producer == ProducerReply(100, 3)
    assert coordinator.init(100, 3) == ProducerReply(101, 0)
    assert coordinator.init(100, 3) == ProducerReply(101, 0)
    assert coordinator.fail_over().init(100, 3) == ProducerReply(101, 0)


def test_tv2_commits_for_ever_over_rotated_ids(coordinator: Coordinator) -> None:
    producer, seen = coordinator.init(), set()
    for _ in range(40):
        assert code_of(coordinator.begin(producer)) is ErrorCode.NONE
        after = coordinator.end(producer)
        assert coordinator.end(producer) == after, (
            "a repeated EndTxn gets the same answer, also across a rotation"
        )
        assert after.producer_epoch < MAX
        assert (after.producer_id, after.producer_epoch) not in seen
        seen.add((after.producer_id, after.producer_epoch))
        producer = after


def test_a_commit_at_the_last_epoch_answers_the_next_producer_id(coordinator: Coordinator) -> None:
    for _ in range(4):
        producer = coordinator.init()
    coordinator.begin(producer)
    coordinator.hold_markers = True
    coordinator.effects.clear()
    assert coordinator.end(producer) == ProducerReply(101, 0)
    entry = coordinator.entry
    assert (entry.producer_id, entry.producer_epoch, entry.next_producer_id) == (100, MAX, 101)
    ((_, _, send),) = coordinator.effects
    assert (send.producer_id, send.producer_epoch) == (100, MAX)
    # KAFKA-18660: the producer already works under the new id while the markers are on their way: it must
    # wait.
    assert code_of(coordinator.begin(ProducerReply(101, 0))) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert code_of(coordinator.end(producer)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert code_of(coordinator.begin(producer)) is ErrorCode.PRODUCER_FENCED
    coordinator.hold_markers = False
    coordinator.settle()
    assert code_of(coordinator.begin(ProducerReply(101, 0))) is ErrorCode.NONE


def test_a_fence_at_the_last_epoch_rotates_as_well(coordinator: Coordinator) -> None:
    """KAFKA-20090."""
    for _ in range(4):
        producer = coordinator.init()
    coordinator.begin(producer)
    coordinator.tick(61_000)
    coordinator.settle()
    assert (coordinator.entry.producer_id, coordinator.entry.producer_epoch) == (101, 0)
    assert coordinator.end(producer, commit=False) == ProducerReply(101, 0), (
        "the abort that the client still sends is a repeat"
    )
    assert code_of(coordinator.begin(ProducerReply(101, 0))) is ErrorCode.NONE


def test_without_a_producer_id_the_client_retries_and_a_block_is_fetched(
    coordinator: Coordinator,
) -> None:
    ids, coordinator.ids = coordinator.ids, iter(())
    assert code_of(coordinator.init()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert coordinator.effects == [(0, 1, NeedProducerIds())]
    coordinator.ids = ids
    assert coordinator.init() == ProducerReply(100, 0)


# --- timeouts and expiry ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_a_timeout_fences_and_aborts_and_the_producer_may_resume(
    coordinator: Coordinator, version: int
) -> None:
    producer = coordinator.init()
    coordinator.begin(producer, version)
    coordinator.tick(60_000)
    assert coordinator.entry.state is TransactionState.ONGOING, "not a moment too early"
    coordinator.tick(1_001)
    coordinator.settle()
    assert coordinator.entry.state is TransactionState.COMPLETE_ABORT
    assert coordinator.entry.producer_epoch == 1
    assert code_of(coordinator.begin(producer, version)) is ErrorCode.PRODUCER_FENCED, (
        "late writes are fenced"
    )
    resumed = coordinator.init(producer.producer_id, producer.producer_epoch)
    assert resumed == ProducerReply(100, 2), "KIP-588, above the epoch of the markers"


def test_a_producer_resuming_after_the_last_epochs_fence_gets_a_fresh_id(coordinator: Coordinator) -> None:
    """With the fence's own epoch a late duplicate of its abort marker could end the producer's next
    transaction."""
    producer = coordinator.init()
    while producer.producer_epoch < MAX - 2:
        producer = coordinator.init(producer.producer_id, producer.producer_epoch)
    coordinator.begin(producer, 1)
    coordinator.tick(61_001)
    coordinator.settle()
    fence = coordinator.entry
    assert (fence.state, fence.producer_epoch) == (TransactionState.COMPLETE_ABORT, MAX - 1)
    resumed = coordinator.init(producer.producer_id, producer.producer_epoch)
    assert resumed == ProducerReply(101, 0)
    assert coordinator.init(producer.producer_id, producer.producer_epoch) == resumed, "its answer was lost"
    following = coordinator.init(resumed.producer_id, resumed.producer_epoch)
    assert following == ProducerReply(101, 1)
    assert (
        code_of(coordinator.init(producer.producer_id, producer.producer_epoch)) is ErrorCode.PRODUCER_FENCED
    )


def test_a_producer_that_a_new_instance_fenced_may_not_resume(coordinator: Coordinator) -> None:
    """Unlike after a timeout: it was replaced, also when the new instance has not come back for its epoch
    yet."""
    old = coordinator.init()
    coordinator.begin(old)
    assert code_of(coordinator.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert code_of(coordinator.end(old, commit=False)) is ErrorCode.PRODUCER_FENCED
    assert code_of(coordinator.init(old.producer_id, old.producer_epoch)) is ErrorCode.PRODUCER_FENCED


def test_a_decided_transaction_does_not_time_out(coordinator: Coordinator) -> None:
    producer = coordinator.init()
    coordinator.begin(producer)
    coordinator.hold_markers = True
    coordinator.end(producer)
    coordinator.tick(10 * DAY_MS)
    assert coordinator.entry.state is TransactionState.PREPARE_COMMIT
    assert coordinator.entry.producer_epoch == 1


@pytest.mark.parametrize("refused", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT])
def test_fencing_a_producer_bumps_one_epoch_however_often_the_append_fails(
    coordinator: Coordinator, refused: ErrorCode
) -> None:
    """KAFKA-9666."""
    producer = coordinator.init()
    coordinator.begin(producer)
    coordinator.log.refuse = KafkaError(refused, "no")
    for _ in range(10):
        assert (
            code_of(coordinator.submit("init", InitProducerId(ID, 60_000)))
            is ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        coordinator.tick(61_000)
    assert (coordinator.entry.state, coordinator.entry.producer_epoch) == (TransactionState.ONGOING, 0)
    coordinator.log.refuse = None
    coordinator.tick(1_000)
    coordinator.settle()
    assert (coordinator.entry.state, coordinator.entry.producer_epoch) == (TransactionState.COMPLETE_ABORT, 1)


def test_idle_ids_expire_with_a_tombstone_and_open_ones_do_not(coordinator: Coordinator) -> None:
    coordinator.init()
    coordinator.hold_markers = True
    busy = coordinator.ask(InitProducerId("busy", 900_000))
    coordinator.ask(AddPartitions("busy", busy.producer_id, 0, (P0,)))
    coordinator.tick(8 * DAY_MS)
    coordinator.settle()
    assert code_of(coordinator.ask(DescribeTransactions(ID))) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert code_of(coordinator.ask(DescribeTransactions("busy"))) is ErrorCode.NONE
    after = coordinator.fail_over()
    assert code_of(after.ask(DescribeTransactions(ID))) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert code_of(after.end(ProducerReply(100, 0))) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


# --- the end ------------------------------------------------------------------------------------------------


def test_the_client_gets_its_answer_after_prepare_and_before_the_markers(coordinator: Coordinator) -> None:
    """docs/semantics.md T11."""
    producer = coordinator.init()
    coordinator.begin(producer)
    coordinator.hold_markers = True
    coordinator.effects.clear()
    assert coordinator.submit("end", EndTxn(ID, producer.producer_id, 0, True, 2)) is None
    assert coordinator.effects == []
    coordinator.commit()
    assert coordinator.replies["end"] == ProducerReply(100, 1)
    ((_, _, send),) = coordinator.effects
    assert send.commit
    assert send.partitions == (P0,)
    assert send.coordinator_epoch == 1
    assert send.transaction_version == 2


def test_an_end_txn_of_an_earlier_transaction_cannot_touch_the_next_one(coordinator: Coordinator) -> None:
    """KAFKA-17754: TV2 tells them apart by the epoch."""
    producer = coordinator.init()
    coordinator.begin(producer)
    after = coordinator.end(producer, commit=False)
    coordinator.begin(after)
    for commit in (True, False):
        assert code_of(coordinator.end(producer, commit)) is ErrorCode.PRODUCER_FENCED
    assert coordinator.entry.state is TransactionState.ONGOING


def test_every_enlisted_partition_can_be_ended(coordinator: Coordinator) -> None:
    """The record that ends a transaction names its partitions as well, and what is to follow: it must fit,
    too."""
    producer = coordinator.init()
    many = [TransactionPartition(f"{number:0249}", 0, UUID(int=number + 1)) for number in range(2100)]
    enlisted, step = 0, 1024
    while step and enlisted < len(many):
        request = AddPartitions(
            ID, producer.producer_id, producer.producer_epoch, tuple(many[: enlisted + step]), 2
        )
        if code_of(coordinator.ask(request)) is ErrorCode.NONE:
            enlisted += step
        else:
            assert "more than one transaction can name" in str(coordinator.ask(request))
            step //= 2
    assert enlisted > 1900
    sizes = []
    coordinator.log.on_append = lambda partition: sizes.append(len(coordinator.log.data[partition]))
    before = len(coordinator.log.data[0])
    coordinator.hold_markers = True
    assert isinstance(coordinator.end(producer), ProducerReply)
    assert 1_000_000 < sizes[0] - before <= LogConfig().max_message_bytes


def test_tv2_may_abort_a_transaction_that_reached_no_partition(coordinator: Coordinator) -> None:
    producer = coordinator.init()
    assert coordinator.end(producer, commit=False) == ProducerReply(100, 1)
    assert coordinator.entry.state is TransactionState.COMPLETE_ABORT
    assert coordinator.end(ProducerReply(100, 1), commit=False) == ProducerReply(100, 2)


@pytest.mark.parametrize(
    ("committed", "code"), [(True, ErrorCode.INVALID_TXN_STATE), (False, ErrorCode.NONE)]
)
def test_an_abort_without_a_transaction_gets_kafkas_answer(
    coordinator: Coordinator, committed: bool, code: ErrorCode
) -> None:
    """librdkafka (TV1) sends EndTxn(abort) when it cannot know whether its AddPartitions arrived, and bumps
    the epoch afterwards.

    After a commit the coordinator cannot tell such an abort from one of the transaction that it committed
    under the same epoch, whose answer was lost: to say "aborted" would be wrong there.  So it is
    INVALID_TXN_STATE, which ends that producer; the next one of its transactional id works.
    """
    producer = coordinator.init()
    coordinator.begin(producer, 1)
    coordinator.end(producer, commit=committed, version=1)
    # The partitions of the next transaction are sent to a coordinator that is standing still.
    reply = coordinator.end(producer, commit=False, version=1)
    assert (reply.code if isinstance(reply, KafkaError) else ErrorCode.NONE) is code
    after = (
        coordinator.init() if committed else coordinator.init(producer.producer_id, producer.producer_epoch)
    )
    assert after == ProducerReply(100, 1)
    coordinator.begin(after, 1)
    coordinator.end(after, version=1)
    assert coordinator.entry.state is TransactionState.COMPLETE_COMMIT


def test_markers_of_another_transaction_complete_nothing(coordinator: Coordinator) -> None:
    """KAFKA-16352, the coordinator's half: TV1 uses the same producer id and epoch again."""
    producer = coordinator.init()
    coordinator.begin(producer, 1)
    coordinator.hold_markers = True
    coordinator.effects.clear()
    coordinator.end(producer, version=1)
    stale = coordinator.effects[0][2].identity
    coordinator.hold_markers = False
    coordinator.settle()
    coordinator.begin(producer, 1)
    coordinator.hold_markers = True
    coordinator.end(producer, version=1)
    for identity in (stale, TransactionIdentity(ID, 100, 0, 0, coordinator.entry.record_offset)):
        coordinator.ask(MarkersWritten(identity))
        assert coordinator.entry.state is TransactionState.PREPARE_COMMIT


def test_the_next_coordinator_takes_decided_transactions_up(coordinator: Coordinator) -> None:
    producer = coordinator.init()
    coordinator.begin(producer)
    coordinator.hold_markers = True
    coordinator.end(producer)
    after = Coordinator(log=coordinator.log)
    after.log.watermark[0] = 0  # as far as the new leader knows
    after.load(epoch=9, barrier=False)
    assert after.effects == []
    after.commit()
    ((partition, epoch, send),) = after.effects
    assert (partition, epoch, send.coordinator_epoch, send.commit, send.partitions) == (0, 9, 9, True, (P0,))
    after.settle()
    assert after.entry.state is TransactionState.COMPLETE_COMMIT
    assert after.end(producer) == ProducerReply(100, 1), "the answer that died with the first coordinator"


def test_transactions_are_listed_by_state_id_and_age(coordinator: Coordinator) -> None:
    producer = coordinator.init()
    coordinator.begin(producer)
    coordinator.ask(InitProducerId("other", 1_000))
    names = lambda event: {line.transactional_id for line in coordinator.ask(event).transactions}  # noqa: E731
    assert names(ListTransactions()) == {ID, "other"}
    assert names(ListTransactions(states=frozenset({"Ongoing"}))) == {ID}
    assert names(ListTransactions(producer_ids=frozenset({101}))) == {"other"}
    coordinator.now_ms += 500
    assert names(ListTransactions(duration_ms=499)) == {ID}
    assert names(ListTransactions(duration_ms=500)) == set()
    assert coordinator.ask(ListTransactions(states=frozenset({"Sleeping"}))).unknown_states == ("Sleeping",)
    described = coordinator.ask(DescribeTransactions(ID)).metadata
    assert described.state is TransactionState.ONGOING
    assert described.partitions == {P0}
    coordinator.hold_markers = True
    coordinator.end(producer)
    assert names(ListTransactions(duration_ms=499)) == {ID}, "its markers are not written: it still runs"
    coordinator.hold_markers = False
    coordinator.settle()
    assert coordinator.entry.state is TransactionState.COMPLETE_COMMIT
    assert names(ListTransactions(duration_ms=499)) == set(), "it has ended, however long ago it began"


# --- two-phase commit (KIP-939) -----------------------------------------------------------------------------


def markers_of(coordinator: Coordinator) -> tuple[int, int, bool]:
    (send,) = [effect for _, _, effect in coordinator.effects if isinstance(effect, SendMarkers)]
    return send.producer_id, send.producer_epoch, send.commit


def test_a_prepared_transaction_waits_for_its_owner_for_ever(coordinator: Coordinator) -> None:
    producer = coordinator.init()
    coordinator.begin(producer)
    assert coordinator.prepare(producer) == coordinator.prepare(producer) == producer
    coordinator = coordinator.fail_over()
    coordinator.now_ms += 100 * DAY_MS
    coordinator.runtime.tick()
    coordinator.settle()
    assert coordinator.entry.state is TransactionState.PREPARED
    assert code_of(coordinator.begin(producer)) is ErrorCode.INVALID_TXN_STATE, "nothing joins it"
    assert coordinator.end(producer) == ProducerReply(100, 1)
    assert coordinator.entry.state is TransactionState.COMPLETE_COMMIT


def test_with_two_phase_commit_an_open_transaction_has_no_timeout_either(coordinator: Coordinator) -> None:
    producer = coordinator.ask(InitProducerId(ID, 2**31 - 1, two_phase_commit=True))
    coordinator.begin(producer)
    coordinator.now_ms += 100 * DAY_MS
    coordinator.runtime.tick()
    coordinator.settle()
    assert coordinator.entry.state is TransactionState.ONGOING


def test_only_an_open_transaction_of_the_newer_protocol_is_prepared(coordinator: Coordinator) -> None:
    producer = coordinator.init()
    assert code_of(coordinator.prepare(producer)) is ErrorCode.INVALID_TXN_STATE
    coordinator.begin(producer, version=1)
    assert code_of(coordinator.prepare(producer)) is ErrorCode.UNSUPPORTED_VERSION
    assert code_of(coordinator.prepare(ProducerReply(100, 7))) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_what_is_kept_is_ended_with_the_next_epoch_alone(
    coordinator: Coordinator, prepared: bool, commit: bool
) -> None:
    former = coordinator.init()
    coordinator.begin(former)
    if prepared:
        coordinator.prepare(former)
    kept = coordinator.keep()
    assert kept == ProducerReply(100, 1, ongoing=(100, 0))
    assert code_of(coordinator.end(former, commit)) is ErrorCode.PRODUCER_FENCED
    assert code_of(coordinator.prepare(former)) is ErrorCode.PRODUCER_FENCED
    coordinator = coordinator.fail_over()
    coordinator.hold_markers = True
    following = coordinator.end(kept, commit)
    assert markers_of(coordinator) == (100, 1, commit), "above the epoch of the records"
    assert following == ProducerReply(100, 2), "and below the next producer's"
    assert code_of(coordinator.end(kept, commit)) is ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.hold_markers = False
    coordinator.settle()
    assert coordinator.end(kept, commit) == following, "repeated"
    assert code_of(coordinator.end(kept, not commit)) is ErrorCode.INVALID_TXN_STATE
    assert coordinator.entry.client_identity == (100, 2)


def test_what_is_kept_again_and_again_goes_on_under_another_producer_id(coordinator: Coordinator) -> None:
    """With four epochs an id; the markers carry on from the identity of the records."""
    coordinator.begin(coordinator.init())
    kept = [coordinator.keep() for _ in range(4)]
    assert [(each.producer_id, each.producer_epoch) for each in kept] == [
        (100, 1),
        (100, 2),
        (100, 3),
        (101, 0),
    ]
    assert {each.ongoing for each in kept} == {(100, 0)}
    coordinator.hold_markers = True
    assert coordinator.end(kept[-1]) == ProducerReply(101, 1)
    assert markers_of(coordinator) == (100, 1, True)
    coordinator.hold_markers = False
    coordinator.settle()
    assert coordinator.end(kept[-1]) == ProducerReply(101, 1), "repeated"
    assert coordinator.init() == ProducerReply(101, 2)


def test_the_last_epoch_may_be_used_up_by_the_end_of_what_is_kept(coordinator: Coordinator) -> None:
    coordinator.begin(coordinator.init())
    last = [coordinator.keep() for _ in range(3)][-1]
    assert coordinator.end(last) == ProducerReply(101, 0)
    assert coordinator.end(last) == ProducerReply(101, 0), "repeated"


def test_an_administrator_aborts_what_is_prepared_by_a_plain_init(coordinator: Coordinator) -> None:
    """`kafka-transactions.sh forceTerminateTransaction` sends it."""
    producer = coordinator.init()
    coordinator.begin(producer)
    coordinator.prepare(producer)
    kept = coordinator.keep()
    assert code_of(coordinator.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.entry.state is TransactionState.COMPLETE_ABORT
    assert code_of(coordinator.end(kept)) is ErrorCode.PRODUCER_FENCED
    assert coordinator.init() == ProducerReply(100, 3)


def test_with_nothing_to_keep_it_is_a_plain_init(coordinator: Coordinator) -> None:
    assert coordinator.keep() == ProducerReply(100, 0)
    assert coordinator.keep() == ProducerReply(100, 1)
    assert code_of(coordinator.keep(100, 3)) is ErrorCode.PRODUCER_FENCED


def test_a_foreign_identity_keeps_nothing(coordinator: Coordinator) -> None:
    coordinator.begin(coordinator.init())
    kept = coordinator.keep(100, 0)
    assert (kept.producer_id, kept.producer_epoch, kept.ongoing) == (100, 1, (100, 0))
    assert code_of(coordinator.keep(100, 0)) is ErrorCode.PRODUCER_FENCED


def test_two_phase_commit_waits_for_the_end_of_the_upgrade(coordinator: Coordinator) -> None:
    coordinator.level = TWO_PHASE_COMMIT_LEVEL - 1
    producer = coordinator.init()
    coordinator.begin(producer)
    for reply in (
        coordinator.prepare(producer), coordinator.keep(),
        coordinator.ask(InitProducerId("other", 60_000, two_phase_commit=True)),
    ):  # fmt: skip
        assert code_of(reply) is ErrorCode.UNSUPPORTED_VERSION
    assert coordinator.entry.state is TransactionState.ONGOING
