"""A following transaction of the same producer does not wait in back-off: its first request waits for the
markers."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from tidegate.coordinator.transaction.awaiting_completion import AWAITING_PER_ID_MAX
from tidegate.coordinator.transaction.events import (
    AddOffsets,
    AddPartitions,
    EndTxn,
    InitProducerId,
    MarkersWritten,
    PartitionsReply,
    ProducerReply,
    SendMarkers,
    TransactionConfig,
)
from tidegate.coordinator.transaction.shard import TransactionShard
from tidegate.coordinator.transaction.state import TransactionPartition, TransactionState
from tidegate.wire.errors import ErrorCode, KafkaError

from .coordinator_doubles import Driver, code_of

ID, WAIT_MS = "orders", 500
P0, P1 = TransactionPartition("flights", 0), TransactionPartition("flights", 1)


class Coordinator(Driver):
    """A shard whose last transaction is being completed: PREPARE is committed, the markers are on their
    way."""

    max_epoch = 32767

    def __init__(self, wait_ms: int = WAIT_MS, version: int = 1) -> None:
        ids, config = (
            count(100),
            TransactionConfig(completion_wait_ms=wait_ms, max_producer_epoch=self.max_epoch),
        )
        super().__init__(lambda partition, epoch: TransactionShard(config, lambda: next(ids), epoch))
        self.load()
        self.producer = self.ask(InitProducerId(ID, 60_000))
        self.ask(self.add(P0, version))
        ended = self.ask(EndTxn(ID, self.producer.producer_id, self.producer.producer_epoch, True, version))
        if version >= 2:
            self.producer = ended
        assert self.state is TransactionState.PREPARE_COMMIT

    def add(
        self, partition: TransactionPartition, version: int = 1, *, verify: bool = False
    ) -> AddPartitions:
        return AddPartitions(
            ID, self.producer.producer_id, self.producer.producer_epoch, (partition,), version, verify
        )

    def end(self, version: int) -> EndTxn:
        return EndTxn(ID, self.producer.producer_id, self.producer.producer_epoch, True, version)

    @property
    def state(self) -> TransactionState:
        (_, _, shard), *_ = self.runtime.shards()
        assert isinstance(shard, TransactionShard)
        return shard.transactions[ID].state

    def markers_are_written(self) -> None:
        sends = [effect for _, _, effect in self.effects if isinstance(effect, SendMarkers)]
        self.effects.clear()
        for send in sends:
            self.runtime.submit(0, MarkersWritten(send.identity), None)

    def code(self, label: str) -> ErrorCode | None:
        return code_of(self.replies[label]) if label in self.replies else None


@pytest.fixture(params=[32767, 1], autouse=True)
def _with_epochs_that_are_used_up(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1, epoch 0 is the last that a client may hold: every transaction ends with another producer id."""
    monkeypatch.setattr(Coordinator, "max_epoch", request.param)


def test_the_next_transactions_first_request_waits_for_the_markers() -> None:
    coordinator = Coordinator()
    coordinator.submit("add", coordinator.add(P1))
    coordinator.commit()
    assert coordinator.code("add") is None
    coordinator.markers_are_written()
    assert coordinator.state is TransactionState.ONGOING, "written, not yet committed"
    assert coordinator.code("add") is None, "written, not yet committed"
    coordinator.commit()
    assert coordinator.replies["add"] == PartitionsReply({P1: ErrorCode.NONE})


def test_ablation_no_request_waits_for_completion() -> None:
    coordinator = Coordinator(wait_ms=0)
    assert code_of(coordinator.ask(coordinator.add(P1))) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_waiting_request_is_handled_anew_after_completion() -> None:
    """A new instance comes first: what the old one asked while it waited is fenced."""
    coordinator = Coordinator()
    coordinator.submit("new instance", InitProducerId(ID, 60_000))
    coordinator.submit("old instance", coordinator.add(P1))
    coordinator.submit(
        "offsets",
        AddOffsets(ID, coordinator.producer.producer_id, coordinator.producer.producer_epoch, P0, 1),
    )
    coordinator.markers_are_written()
    coordinator.commit()
    rotated = coordinator.max_epoch == 1
    assert coordinator.replies["new instance"] == (
        ProducerReply(101, 0) if rotated else ProducerReply(100, 1)
    )
    refusal = ErrorCode.INVALID_PRODUCER_ID_MAPPING if rotated else ErrorCode.PRODUCER_FENCED
    assert coordinator.code("old instance") is coordinator.code("offsets") is refusal


def test_no_request_waits_longer_than_the_configured_time() -> None:
    coordinator = Coordinator()
    coordinator.submit("first", coordinator.add(P1))
    coordinator.tick(WAIT_MS // 2)
    coordinator.submit("second", coordinator.add(P1))
    coordinator.tick(WAIT_MS // 2)
    coordinator.commit()
    assert coordinator.code("first") is ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.code("second") is None
    coordinator.markers_are_written()
    coordinator.commit()
    assert coordinator.code("second") is ErrorCode.NONE


def test_only_few_wait_for_one_transactional_id() -> None:
    coordinator = Coordinator()
    for number in range(AWAITING_PER_ID_MAX + 1):
        coordinator.submit(str(number), coordinator.add(P1))
    coordinator.commit()
    codes = [coordinator.code(str(number)) for number in range(AWAITING_PER_ID_MAX + 1)]
    assert codes == [None] * AWAITING_PER_ID_MAX + [ErrorCode.CONCURRENT_TRANSACTIONS]


@pytest.mark.parametrize("what", ["repeated end of TV1", "leader that verifies", "leader that enlists"])
def test_a_request_that_may_not_wait_gets_concurrent_transactions(what: str) -> None:
    """An EndTxn of TV1 that waited behind the next transaction's beginning would end that; a guard does not
    live through a marker."""
    coordinator = Coordinator()
    event: Any = {
        "repeated end of TV1": coordinator.end(1),
        "leader that verifies": coordinator.add(P1, verify=True),
        "leader that enlists": coordinator.add(P1, 2),
    }[what]
    coordinator.submit("it", event)
    coordinator.commit()
    assert coordinator.code("it") is ErrorCode.CONCURRENT_TRANSACTIONS


def test_the_next_end_of_tv2_waits_for_the_markers_of_the_last_one() -> None:
    coordinator = Coordinator(version=2)
    coordinator.submit("end", coordinator.end(2))
    coordinator.commit()
    assert coordinator.code("end") is None
    coordinator.markers_are_written()
    coordinator.commit()
    assert coordinator.code("end") in (ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE)


def test_when_complete_is_refused_they_wait_on_and_are_answered_once() -> None:
    coordinator = Coordinator()
    coordinator.submit("add", coordinator.add(P1))
    coordinator.log.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "alone")
    coordinator.markers_are_written()
    assert coordinator.code("add") is None
    assert coordinator.state is TransactionState.PREPARE_COMMIT
    coordinator.log.refuse = None
    coordinator.tick(TransactionConfig().completion_retry_interval_ms)
    coordinator.commit()
    assert coordinator.code("add") is ErrorCode.NONE


def test_a_coordinator_that_loses_the_partition_rejects_waiting_requests() -> None:
    coordinator = Coordinator()
    coordinator.submit("add", coordinator.add(P1))
    coordinator.runtime.unload(0, 2)
    assert coordinator.code("add") is ErrorCode.NOT_COORDINATOR
