"""A job whose attempts wrote to few and to many partitions: its ends fit into batches that the log takes
(docs/semantics.md T33)."""

from __future__ import annotations

import logging

import pytest
from tidegate.coordinator.transaction.events import AddPartitions, TransactionConfig
from tidegate.coordinator.transaction.jobs import JobState, Winner, transactional_id
from tidegate.coordinator.transaction.state import TransactionPartition
from tidegate.wire.errors import ErrorCode, KafkaError

from .coordinator_doubles import LimitedLog
from .test_jobs import JOB, Coordinator, outcome

PARTITIONS = {"a": 900, "b": 3_900, "c": 1, "d": 3_900}
"""The names are as long as a name can be: the end of an attempt has up to 1 MB of them, which a log just
takes."""


@pytest.fixture
def cluster() -> Coordinator:
    made = Coordinator(LimitedLog())
    made.config = TransactionConfig()
    made.load()
    return made


def prepared(cluster: Coordinator) -> tuple[Winner, ...]:
    winners = []
    for attempt, count in PARTITIONS.items():
        winner = cluster.open(attempt)
        places = tuple(TransactionPartition(f"{number:0249d}", 0) for number in range(count))
        name = transactional_id(JOB, attempt)
        cluster.ask(AddPartitions(name, winner.producer_id, winner.producer_epoch, places, 2))
        cluster.prepare(winner)
        winners.append(winner)
    return tuple(winners)


def test_a_decided_job_is_carried_out_in_batches_that_the_log_takes(
    cluster: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    assert outcome(cluster.decide(*prepared(cluster))) == (JobState.COMMITTED, True)
    for _ in range(3):
        cluster.wait(200)
    assert not caplog.messages
    assert {len(each.partitions) for each in cluster.sent} == set(PARTITIONS.values())
    shard = cluster.shard
    assert not shard.jobs.book.unfinished
    assert not shard.jobs.book.attempts.get(JOB)


def test_an_own_event_that_no_log_takes_is_told(
    cluster: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.carries_out = False
    cluster.decide(*prepared(cluster))
    cluster.carries_out = True
    cluster.log.refuse = KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "too large")
    with caplog.at_level(logging.ERROR):
        cluster.settle()
    assert any("coordinator_event_not_written" in each and "CarryOutJob" in each for each in caplog.messages)
