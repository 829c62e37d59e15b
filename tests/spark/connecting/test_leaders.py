"""Which leader a client believes."""

from __future__ import annotations

import pytest
from tidegate.proto import data_pb2 as pb
from tidegate.spark.connecting.answers import LeaderView
from tidegate.spark.connecting.errors import problem_of_detail
from tidegate.spark.connecting.leaders import Leaders
from tidegate.wire.errors import ErrorCode

PLACE = ("flights", 0)


@pytest.mark.parametrize(("epoch", "is_taken"), [(4, False), (5, True), (6, True)])
def test_a_node_with_old_metadata_restores_no_former_leader(epoch: int, is_taken: bool) -> None:
    known, told = LeaderView(1, 5, "a:1"), LeaderView(2, epoch, "b:1")
    leaders = Leaders()
    leaders.begin_with(*PLACE, known)
    leaders.note(*PLACE, told)
    assert leaders.known(*PLACE) == (told if is_taken else known)
    leaders.note(*PLACE, None)  # one that knows no leader takes none away
    assert leaders.known(*PLACE) is not None


@pytest.mark.parametrize(
    ("epoch", "code", "is_taken"),
    [
        (4, ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
        (5, ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (6, ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (6, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False),
        (6, ErrorCode.UNKNOWN_TOPIC_ID, False),
    ],
)
def test_the_hint_of_a_refusal_is_taken_where_it_can_be_newer(
    epoch: int, code: ErrorCode, is_taken: bool
) -> None:
    leaders = Leaders()
    leaders.begin_with(*PLACE, LeaderView(1, 5, "a:1"))
    leader = pb.Leader(node_id=2, leader_epoch=epoch, endpoint="b:1")
    detail = pb.ErrorDetail(error_code=code, message="moved", leader=leader)
    leaders.forget(*PLACE, problem_of_detail(detail))
    assert leaders.known(*PLACE) == (LeaderView(2, epoch, "b:1") if is_taken else None)
