"""The marker queue: grouping, retries with a fresh leader, fencing, identity (docs/semantics.md T16 to
T18)."""

from __future__ import annotations

from uuid import UUID

import pytest
from tidegate.coordinator.transaction.events import MarkersWritten, SendMarkers, TransactionIdentity
from tidegate.coordinator.transaction.markers import MarkerBatch, MarkerQueue
from tidegate.coordinator.transaction.state import TransactionPartition
from tidegate.wire.errors import ErrorCode

TOPIC_ID = UUID(int=7)
P = [TransactionPartition("flights", index, TOPIC_ID) for index in range(4)]


def send(
    name: str, *partitions: TransactionPartition, producer_id: int = 100, epoch: int = 1, offset: int = 10
) -> SendMarkers:
    identity = TransactionIdentity(name, producer_id, epoch, 3, offset)
    return SendMarkers(name, producer_id, epoch, 3, True, partitions, 2, identity)


class Cluster:
    """Partition -> leader, and a queue over it."""

    def __init__(self) -> None:
        self.leaders: dict[TransactionPartition, int] = {P[0]: 1, P[1]: 1, P[2]: 2, P[3]: 2}
        self.queue = MarkerQueue(self.leaders.get, retry_backoff_ms=10)

    def errors(
        self, batch: MarkerBatch, code: ErrorCode = ErrorCode.NONE
    ) -> dict[tuple[int, str, int], ErrorCode]:
        return {
            (t.send.producer_id, p.topic, p.partition): code for t in batch.transactions for p in t.partitions
        }


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_markers_are_grouped_by_leader_and_the_last_answer_completes(cluster: Cluster) -> None:
    wanted = send("a", *P)
    cluster.queue.add(5, wanted)
    first, second = sorted(cluster.queue.take(0), key=lambda batch: batch.node_id)
    assert [(b.node_id, set(b.transactions[0].partitions)) for b in (first, second)] == [
        (1, set(P[:2])),
        (2, set(P[2:])),
    ]
    assert cluster.queue.complete(first, cluster.errors(first), 0).written == ()
    assert cluster.queue.complete(second, cluster.errors(second), 0).written == (
        (5, MarkersWritten(wanted.identity)),
    )
    assert len(cluster.queue) == 0
    assert cluster.queue.take(0) == []


def test_a_transaction_without_partitions_is_written_at_once(cluster: Cluster) -> None:
    wanted = send("a")
    assert cluster.queue.add(5, wanted).written == ((5, MarkersWritten(wanted.identity)),)


def test_transactions_share_a_batch_and_each_broker_has_one_in_flight(cluster: Cluster) -> None:
    cluster.queue.add(0, send("a", P[0], producer_id=1))
    cluster.queue.add(0, send("b", P[1], producer_id=2))
    (batch,) = cluster.queue.take(0)
    assert len(batch.transactions) == 2
    cluster.queue.add(0, send("c", P[0], producer_id=3))
    assert cluster.queue.take(0) == [], "broker 1 has one in flight"
    cluster.queue.complete(batch, cluster.errors(batch), 0)
    assert [t.send.transactional_id for t in cluster.queue.take(0)[0].transactions] == ["c"]


def test_a_retry_looks_the_leader_up_again_after_a_pause(cluster: Cluster) -> None:
    cluster.queue.add(0, send("a", P[0]))
    (batch,) = cluster.queue.take(0)
    assert (
        cluster.queue.complete(batch, cluster.errors(batch, ErrorCode.NOT_LEADER_OR_FOLLOWER), 100).retried
        == 1
    )
    cluster.leaders[P[0]] = 2
    assert cluster.queue.take(109) == []
    assert cluster.queue.next_attempt_ms() == 110
    (again,) = cluster.queue.take(110)
    assert again.node_id == 2
    assert again.number != batch.number


@pytest.mark.parametrize(
    "code", [c for c in ErrorCode if c not in (ErrorCode.NONE,)], ids=lambda code: code.name
)
def test_no_error_but_fencing_makes_it_forget_a_marker(cluster: Cluster, code: ErrorCode) -> None:
    cluster.queue.add(0, send("a", P[0], P[2]))
    batches = cluster.queue.take(0)
    result = cluster.queue.complete(batches[0], cluster.errors(batches[0], code), 0)
    if code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        assert len(result.cancelled) == 1
        assert len(cluster.queue) == 0
    else:
        assert result.cancelled == ()
        assert len(cluster.queue) == 1
        assert result.retried == 1


def test_a_lost_connection_sends_everything_again(cluster: Cluster) -> None:
    cluster.queue.add(0, send("a", P[0], P[1]))
    (batch,) = cluster.queue.take(0)
    cluster.queue.failed(batch, 0)
    (again,) = cluster.queue.take(10)
    assert set(again.transactions[0].partitions) == {P[0], P[1]}


def test_a_partition_missing_in_the_answer_is_sent_again(cluster: Cluster) -> None:
    cluster.queue.add(0, send("a", P[0], P[1]))
    (batch,) = cluster.queue.take(0)
    cluster.queue.complete(batch, {(100, "flights", 0): ErrorCode.NONE}, 0)
    (again,) = cluster.queue.take(10)
    assert again.transactions[0].partitions == (P[1],)


def test_a_partition_without_a_known_leader_waits(cluster: Cluster) -> None:
    del cluster.leaders[P[0]]
    cluster.queue.add(0, send("a", P[0]))
    assert cluster.queue.take(0) == []
    assert len(cluster.queue) == 1
    cluster.leaders[P[0]] = 2
    assert cluster.queue.take(9) == []
    assert [batch.node_id for batch in cluster.queue.take(10)] == [2]


def test_a_late_answer_of_an_older_transaction_completes_no_newer_one(cluster: Cluster) -> None:
    """KAFKA-16352, with the very same producer id and epoch (TV1)."""
    old = send("a", P[0], offset=10)
    cluster.queue.add(0, old)
    (batch,) = cluster.queue.take(0)
    cluster.queue.cancel_state_partition(0)  # the coordinator moved away, and came back
    new = send("a", P[0], offset=20)
    cluster.queue.add(0, new)
    assert cluster.queue.complete(batch, cluster.errors(batch), 0).written == ()
    assert len(cluster.queue) == 1
    (again,) = cluster.queue.take(0)
    assert cluster.queue.complete(again, cluster.errors(again), 0).written == (
        (0, MarkersWritten(new.identity)),
    )


def test_a_late_fencing_error_of_an_older_transaction_cancels_no_newer_one(cluster: Cluster) -> None:
    cluster.queue.add(0, send("a", P[0], offset=10))
    (batch,) = cluster.queue.take(0)
    cluster.queue.cancel_state_partition(0)
    cluster.queue.add(0, send("a", P[0], offset=20))
    result = cluster.queue.complete(batch, cluster.errors(batch, ErrorCode.TRANSACTION_COORDINATOR_FENCED), 0)
    assert result.cancelled == ()
    assert len(cluster.queue) == 1


def test_two_transactions_of_one_producer_id_never_share_a_batch(cluster: Cluster) -> None:
    cluster.queue.add(0, send("a", P[0], offset=10))
    cluster.queue.add(1, send("a", P[1], offset=20))
    (batch,) = cluster.queue.take(0)
    assert len(batch.transactions) == 1
    cluster.queue.complete(batch, cluster.errors(batch), 0)
    (second,) = cluster.queue.take(0)
    assert second.transactions[0].send.identity.prepare_offset == 20


def test_only_a_partition_that_is_gone_drops_a_marker(cluster: Cluster) -> None:
    reborn = TransactionPartition("flights", 0, UUID(int=8))
    wanted = send("a", P[0], reborn)
    cluster.queue.add(3, wanted)
    assert cluster.queue.partition_gone(TransactionPartition("flights", 0, UUID(int=9))).written == ()
    assert cluster.queue.partition_gone(P[0]).written == ()
    assert set(cluster.queue.waiting_partitions()) == {reborn}
    assert cluster.queue.partition_gone(reborn).written == ((3, MarkersWritten(wanted.identity)),)


def test_an_answer_after_the_topic_is_gone_is_no_second_completion(cluster: Cluster) -> None:
    cluster.queue.add(3, send("a", P[0]))
    (batch,) = cluster.queue.take(0)
    assert len(cluster.queue.partition_gone(P[0]).written) == 1
    assert (
        cluster.queue.complete(batch, cluster.errors(batch, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), 0).written
        == ()
    )
    assert cluster.queue.take(1_000) == []


def test_unloading_one_state_partition_leaves_the_others(cluster: Cluster) -> None:
    cluster.queue.add(1, send("a", P[0], producer_id=1))
    cluster.queue.add(2, send("b", P[0], producer_id=2))
    assert cluster.queue.cancel_state_partition(1) == 1
    (batch,) = cluster.queue.take(0)
    assert [t.send.transactional_id for t in batch.transactions] == ["b"]


def test_a_broker_that_does_not_answer_costs_a_look_now_and_then(cluster: Cluster) -> None:
    """All that waits for it is gone through at each look, and nothing comes of it but when a leader has
    moved."""
    cluster.queue.add(0, send("a", P[0], producer_id=1))
    (unanswered,) = cluster.queue.take(1000)
    cluster.queue.add(0, send("b", P[0], producer_id=2))
    assert cluster.queue.take(1000) == []
    assert cluster.queue.next_attempt_ms() == 1050
    cluster.leaders[P[0]] = unanswered.node_id + 1
    (moved,) = cluster.queue.take(1050)
    assert moved.node_id != unanswered.node_id
    assert cluster.queue.next_attempt_ms() is None


def test_a_batch_is_bounded(cluster: Cluster) -> None:
    cluster.queue = MarkerQueue(cluster.leaders.get, markers_per_batch_max=3)
    for number in range(5):
        cluster.queue.add(0, send(str(number), P[0], producer_id=number))
    (batch,) = cluster.queue.take(0)
    assert len(batch.transactions) == 3
    cluster.queue.complete(batch, cluster.errors(batch), 0)
    assert len(cluster.queue.take(0)[0].transactions) == 2
