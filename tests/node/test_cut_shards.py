"""What a node answers to takers of cuts: the bounds of its partitions (docs/semantics.md K4, K5), and
requests that no node sends."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from tidegate.node.cuts import between_nodes, bounds
from tidegate.node.cuts.bounds import bounds_of
from tidegate.node.cuts.cut_shards import CutShards
from tidegate.proto import cuts_pb2 as pb
from tidegate.runtime.disk import RealDisk
from tidegate.storage.log.log import Log
from tidegate.tests.storage.workload import append, append_marker, batch, marker, open_log
from tidegate.wire.api import NodeRequest
from tidegate.wire.errors import ErrorCode, KafkaError

TOPIC_ID = UUID(int=1)


@pytest.fixture
def log(tmp_path: Any) -> Log:
    return open_log(RealDisk(), folder=tmp_path / "t-0")


def begin(log: Log, pid: int) -> int:
    """A transaction of one record; its offset."""
    append(log, batch(pid=pid, epoch=0, sequence=0, transactional=True))
    return log.log_end_offset - 1


def found(log: Log, up_to: int) -> tuple[dict[int, int], dict[int, int]]:
    """Open, and aborting, at this high watermark."""
    log.flush_now()
    log.set_high_watermark(up_to)
    answer = bounds_of(log, 0, 0)
    assert answer.high_watermark == up_to
    named = (
        {each.producer_id: each.first_offset for each in many} for many in (answer.open, answer.aborting)
    )
    return next(named), next(named)


def test_a_transaction_is_named_while_it_is_open_or_its_abort_may_be_lost(log: Log) -> None:
    for pid in (7, 8, 9):
        assert begin(log, pid) == pid - 7
    assert found(log, 2) == ({7: 0, 8: 1}, {}), "the third one lies above"
    append_marker(log, marker(7, 1, commit=False))
    append_marker(log, marker(8, 1, commit=True))
    assert found(log, 3) == ({9: 2}, {7: 0}), "the next leader may not have the ABORT"
    assert found(log, 4) == ({9: 2}, {})
    append_marker(log, marker(9, 1, commit=False))
    assert found(log, 6) == ({}, {})


def test_bounds_wait_for_the_start_of_the_leaders_epoch(log: Log) -> None:
    begin(log, 7)
    log.flush_now()
    log.set_high_watermark(1)
    assert bounds_of(log, 3, 1).leader_epoch == 3
    with pytest.raises(KafkaError, match="has not reached the epoch's start 2") as refused:
        bounds_of(log, 3, 2)
    assert refused.value.code is ErrorCode.OFFSET_NOT_AVAILABLE


def test_a_cut_names_a_bounded_number_of_transactions(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(log, 7)
    begin(log, 8)
    monkeypatch.setattr(bounds, "UNDECIDED_MAX", 2)
    assert len(found(log, 2)[0]) == 2
    monkeypatch.setattr(bounds, "UNDECIDED_MAX", 1)
    with pytest.raises(KafkaError, match="a cut names at most 1") as refused:
        found(log, 2)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


class Replicas:
    """One partition; its high watermark reaches the epoch's start as soon as a caller waits for that."""

    def __init__(self, log: Log, error: KafkaError | None = None) -> None:
        self.log, self.error, self.waits = log, error, 0
        self.topic_id = TOPIC_ID

    def replica(self, topic: str, partition: int) -> Replicas:
        return self

    def require_leader_at(self, leader_epoch: int) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(leader_epoch=5, epoch_start_offset=1)

    def when_committed(self, *arguments: Any) -> None:
        self.waits += 1
        self.log.set_high_watermark(1)
        then: partial[None] = arguments[-1]
        then(ErrorCode.NONE)


async def ask(replicas: Replicas, topic_id: UUID = TOPIC_ID) -> pb.PartitionBounds:
    request = pb.BoundsRequest(timeout_ms=100)
    request.topics.add(topic="t", topic_id=topic_id.bytes).partitions.add(partition=0, leader_epoch=5)
    shards = CutShards(cast(Any, None), cast(Any, replicas))
    (answer,) = (await shards.bounds(request)).partitions
    return answer


async def test_a_leader_answers_once_its_high_watermark_has_come(log: Log) -> None:
    begin(log, 7)
    log.flush_now()
    replicas = Replicas(log)
    answer = await ask(replicas)
    assert (answer.error_code, answer.high_watermark, replicas.waits) == (0, 1, 1)


async def test_what_is_no_answer_is_an_error_at_once(log: Log) -> None:
    begin(log, 7)
    log.flush_now()
    of_another = Replicas(log)
    answer = await ask(of_another, UUID(int=2))
    assert (answer.error_code, of_another.waits) == (ErrorCode.INCONSISTENT_TOPIC_ID, 0)
    refuses = Replicas(log, KafkaError(ErrorCode.FENCED_LEADER_EPOCH, "another epoch"))
    answer = await ask(refuses)
    assert (answer.error_code, answer.error_message) == (ErrorCode.FENCED_LEADER_EPOCH, "another epoch")
    assert refuses.waits == 0


@pytest.mark.parametrize(
    ("is_node", "body", "code"),
    [
        (False, b"", ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (True, b"x" * 101, ErrorCode.INVALID_REQUEST),
        (True, b"\xff", ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_request_that_no_node_sends_is_refused(
    is_node: bool, body: bytes, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(between_nodes, "REQUEST_BYTES_MAX", 100)
    broker: Any = SimpleNamespace(permissions=SimpleNamespace(may_act_as_node=lambda _: is_node))
    context: Any = SimpleNamespace(principal="User:x", api_key=NodeRequest.CUT_BOUNDS)
    with pytest.raises(KafkaError) as refused:
        between_nodes.handle(broker, context, memoryview(body))
    assert refused.value.code is code
    if len(body) > 100:
        assert "at most 100 are taken" in refused.value.message
