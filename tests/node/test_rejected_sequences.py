"""What came behind a refused batch is refused alike, so that the client repeats both in order and takes no
new epoch for it."""

from __future__ import annotations

from tidegate.controller.state.model import TOPIC_NAME_LENGTH_MAX
from tidegate.node.serving.rejected_sequences import REMEMBERED_MAX, REMEMBERED_S, RejectedSequences, Sender
from tidegate.wire.errors import ErrorCode

P = Sender("flights", 0, producer_id=7, producer_epoch=1)
MOVED, GAP = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_later_sequences_get_the_rejected_batchs_error_until_it_succeeds() -> None:
    batches = RejectedSequences()
    assert batches.refused(P, 10, MOVED, 0.0) is MOVED
    assert batches.refused(P, 15, GAP, 0.1) is MOVED
    assert batches.refused(P, 20, ErrorCode.UNKNOWN_PRODUCER_ID, 0.1) is MOVED
    batches.accepted(P)
    assert batches.refused(P, 25, GAP, 0.2) is GAP


def test_a_true_gap_stays_one() -> None:
    batches = RejectedSequences()
    assert batches.refused(P, 15, GAP, 0.0) is GAP
    batches.refused(P, 10, MOVED, 0.0)
    assert batches.refused(P, 10, GAP, 0.1) is GAP, "the batch itself is out of order"
    assert batches.refused(P, 5, GAP, 0.1) is GAP, "what came before it does not wait for it"
    assert batches.refused(P._replace(producer_epoch=2), 15, GAP, 0.1) is GAP
    assert batches.refused(P._replace(partition=1), 15, GAP, 0.1) is GAP
    assert batches.refused(P, 15, GAP, REMEMBERED_S + 1) is GAP


def test_the_first_refused_batch_counts_also_past_the_end_of_the_sequences() -> None:
    batches = RejectedSequences()
    batches.refused(P, 2**31 - 3, MOVED, 0.0)
    batches.refused(P, 2, ErrorCode.NOT_ENOUGH_REPLICAS, 0.1)
    assert batches.refused(P, 0, GAP, 0.2) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_only_retried_errors_are_remembered_and_not_without_bound() -> None:
    batches = RejectedSequences()
    batches.refused(P, 10, ErrorCode.INVALID_RECORD, 0.0)
    assert batches.refused(P, 15, GAP, 0.1) is GAP
    for number in range(REMEMBERED_MAX + 5):
        batches.refused(P._replace(producer_id=number), 0, MOVED, 0.0)
    assert len(batches) == REMEMBERED_MAX


def test_what_is_too_long_for_a_topic_is_not_remembered() -> None:
    batches = RejectedSequences()
    for length in (TOPIC_NAME_LENGTH_MAX + 1, 8 << 20):
        long = P._replace(topic="t" * length)
        assert (
            batches.refused(long, 10, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0.0)
            is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    assert len(batches) == 0
    batches.refused(P._replace(topic="t" * TOPIC_NAME_LENGTH_MAX), 10, MOVED, 0.0)
    assert len(batches) == 1
