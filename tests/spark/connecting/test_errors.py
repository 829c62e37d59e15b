"""Which failures another attempt can cure, and which are said at once."""

from __future__ import annotations

import grpc
import pytest
from tidegate.proto import data_pb2 as pb
from tidegate.spark.connecting.errors import problem_of_call
from tidegate.wire.errors import ErrorCode

from .grpc_calls import Failure


@pytest.mark.parametrize("status", list(grpc.StatusCode))
def test_a_lost_connection_is_tried_again_and_a_refusal_is_not(status: grpc.StatusCode) -> None:
    problem = problem_of_call(Failure(status), "a:1")
    lost = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED", "INTERNAL", "UNKNOWN"}
    assert problem.curable == (status.name in lost)
    assert problem.method_unknown == (status.name == "UNIMPLEMENTED")
    assert "a:1" in problem.message


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ],
)
def test_what_passes_is_tried_again(code: ErrorCode) -> None:
    detail = pb.ErrorDetail(error_code=code, message="so it is")
    assert problem_of_call(Failure(grpc.StatusCode.UNAVAILABLE, detail), "a:1").curable


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.SNAPSHOT_NOT_FOUND,  # a cut whose records the cleaner may have taken
        ErrorCode.UNSUPPORTED_VERSION,
    ],
)
def test_what_does_not_pass_is_said_at_once(code: ErrorCode) -> None:
    detail = pb.ErrorDetail(error_code=code, message="so it is", log_start_offset=7)
    problem = problem_of_call(Failure(grpc.StatusCode.UNAVAILABLE, detail), "a:1")
    assert not problem.curable
    assert problem.error().log_start_offset == 7
