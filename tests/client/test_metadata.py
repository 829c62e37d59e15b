"""What a client believes about the cluster: newer leader epochs win, whatever comes last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from tidegate.client.connecting.metadata import ClusterView, parse_bootstrap
from tidegate.wire import codec
from tidegate.wire.describe_transactions import decode_described_transactions
from tidegate.wire.errors import ErrorCode, KafkaError


def metadata(
    leader: int,
    epoch: int,
    *,
    topic: str = "t",
    error: ErrorCode = ErrorCode.NONE,
    topic_id: UUID | None = None,
) -> Any:
    partition = SimpleNamespace(
        partition_index=0,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=(1, 2),
        isr_nodes=(1,),
        error_code=error,
    )
    return SimpleNamespace(
        brokers=[SimpleNamespace(node_id=n, host="h", port=9000 + n, rack=None) for n in (1, 2)],
        cluster_id="c",
        controller_id=1,
        topics=[
            SimpleNamespace(
                name=topic, error_code=0, is_internal=False, partitions=[partition], topic_id=topic_id
            )
        ],
    )


def test_a_broker_that_lags_behind_does_not_bring_an_old_leader_back() -> None:
    view = ClusterView().merged(metadata(2, 5), all_topics=False)
    assert view.merged(metadata(1, 4), all_topics=False).leader("t", 0) == 2
    assert view.merged(metadata(1, 6), all_topics=False).leader("t", 0) == 1


def test_a_topic_that_was_made_again_begins_anew() -> None:
    view = ClusterView().merged(metadata(2, 5), all_topics=False).without_topics(["t"])
    assert view.merged(metadata(1, 0), all_topics=False).leader("t", 0) == 1


def test_a_topic_with_another_id_begins_anew_without_an_error_answer() -> None:
    view = ClusterView().merged(metadata(2, 5, topic_id=UUID(int=1)), all_topics=False)
    assert view.merged(metadata(1, 0, topic_id=UUID(int=2)), all_topics=False).leader("t", 0) == 1
    assert view.merged(metadata(1, 4, topic_id=UUID(int=1)), all_topics=False).leader("t", 0) == 2


def test_a_full_answer_forgets_topics_that_are_gone() -> None:
    view = ClusterView().merged(metadata(2, 5, topic="old"), all_topics=False)
    assert "old" in view.merged(metadata(1, 1), all_topics=False).topics
    assert "old" not in view.merged(metadata(1, 1), all_topics=True).topics


def test_a_leader_that_is_not_among_the_brokers_is_no_leader() -> None:
    assert ClusterView().merged(metadata(9, 1), all_topics=False).leader("t", 0) == -1


def test_bootstrap_addresses() -> None:
    assert parse_bootstrap("a:1, b:2,") == [("a", 1), ("b", 2)]
    assert parse_bootstrap("[::1]:9092") == [("::1", 9092)]
    for wrong in ("", "a", "a:", ":1", "a:0", "a:99999", "a:x"):
        with pytest.raises(ValueError, match="host:port"):
            parse_bootstrap(wrong)


def test_a_transaction_that_is_not_open_can_be_described() -> None:
    state = {
        "error_code": ErrorCode.NONE, "transactional_id": "x", "transaction_state": "Empty",
        "transaction_timeout": 60000,
        "transaction_start_time": -1, "producer_id": 7, "producer_epoch": 3,
        "topics": [{"topic": "t", "partitions": [1, 2]}],
    }  # fmt: skip
    frame = codec.response_header(65, 0, 9) + codec.response(65, 0, {"transaction_states": [state]})
    (found,) = decode_described_transactions(0, frame)
    assert (found.state, found.started_ms, found.timeout_ms, found.producer_id) == ("Empty", -1, 60000, 7)
    assert found.partitions == {"t": [1, 2]}
    for end in range(4, len(frame)):
        with pytest.raises(KafkaError):
            decode_described_transactions(0, frame[:end])
