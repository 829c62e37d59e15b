"""What the client of the data service takes an answer for, and which leader it believes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from tidegate.proto import data_pb2 as pb
from tidegate.spark import connection
from tidegate.spark.connection import DataClient, LeaderView, ReadError
from tidegate.wire.errors import ErrorCode

from .conftest import Script, ScriptedNode

PLACE = ("flights", 0)


@pytest.fixture
def client() -> Iterator[DataClient]:
    client = DataClient(["127.0.0.1:1"], retry_timeout_ms=300)
    yield client
    client.close()


@grpc.Call.register  # only these three of its methods are asked
class Failure(grpc.RpcError):
    """A call that failed."""

    def __init__(self, code: grpc.StatusCode, detail: pb.ErrorDetail | None = None) -> None:
        self._code, self._detail = code, detail

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "so it is"

    def trailing_metadata(self) -> Any:
        return [] if self._detail is None else [("tidegate-error-bin", self._detail.SerializeToString())]


@pytest.mark.parametrize(("epoch", "is_taken"), [(4, False), (5, True), (6, True)])
def test_a_node_with_old_metadata_restores_no_former_leader(
    client: DataClient, epoch: int, is_taken: bool
) -> None:
    known, told = LeaderView(1, 5, "a:1"), LeaderView(2, epoch, "b:1")
    client.remember_leader(*PLACE, known)
    client._note_leader(*PLACE, told)
    assert client.known_leader(*PLACE) == (told if is_taken else known)
    client._note_leader(*PLACE, None)  # one that knows no leader takes none away
    assert client.known_leader(*PLACE) is not None


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
    client: DataClient, epoch: int, code: ErrorCode, is_taken: bool
) -> None:
    client.remember_leader(*PLACE, LeaderView(1, 5, "a:1"))
    leader = pb.Leader(node_id=2, leader_epoch=epoch, endpoint="b:1")
    detail = pb.ErrorDetail(error_code=code, message="moved", leader=leader)
    client._forget(*PLACE, client._problem_of(Failure(grpc.StatusCode.UNAVAILABLE, detail), "a:1"))
    assert client.known_leader(*PLACE) == (LeaderView(2, epoch, "b:1") if is_taken else None)


@pytest.mark.parametrize("status", list(grpc.StatusCode))
def test_a_lost_connection_is_tried_again_and_a_refusal_is_not(
    client: DataClient, status: grpc.StatusCode
) -> None:
    problem = client._problem_of(Failure(status), "a:1")
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
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ],
)
def test_what_passes_is_tried_again(client: DataClient, code: ErrorCode) -> None:
    detail = pb.ErrorDetail(error_code=code, message="so it is")
    assert client._problem_of(Failure(grpc.StatusCode.UNAVAILABLE, detail), "a:1").curable


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNSUPPORTED_VERSION,
    ],
)
def test_what_does_not_pass_is_said_at_once(client: DataClient, code: ErrorCode) -> None:
    detail = pb.ErrorDetail(error_code=code, message="so it is", log_start_offset=7)
    problem = client._problem_of(Failure(grpc.StatusCode.UNAVAILABLE, detail), "a:1")
    assert not problem.curable
    assert problem.error().log_start_offset == 7


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [(10, 19)],
        [(11, 20)],
        [(10, 21)],
        [(10, 14), (15, 20)],
        [(10, 15), (14, 20)],
        [(10, 10), (10, 20)],
        [(10, 20), (20, 10), (10, 20)],
    ],
)
def test_a_split_adjoins_and_covers_what_was_asked(ranges: list[tuple[int, int]]) -> None:
    asked = pb.PlanRangesRequest(topic="flights", partition=0, start=10, end=20)

    def split(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
        answer = [pb.Range(start=start, end=end) for start, end in parts]
        return [(part.start, part.end) for part in connection._whole_split(asked, answer)]

    assert split([(10, 15), (15, 20)]) == [(10, 15), (15, 20)]
    with pytest.raises(ReadError, match=r"flights-0: the split of \[10, 20\) has gaps"):
        split(ranges)


class TestPlansOfManyPartitions:
    """Against a node that may answer a part of what it is asked."""

    @pytest.fixture
    def answer(self, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[Any], pb.PlanManyRangesReply]]:
        """What the nodes do; a test puts its function in."""
        chosen: list[Callable[[Any], pb.PlanManyRangesReply]] = []
        monkeypatch.setattr(
            ScriptedNode, "PlanManyRanges", lambda _, request, context: chosen[0](request), raising=False
        )
        return chosen

    @staticmethod
    def planned(scripted: Script) -> dict[tuple[str, int], list[tuple[int, int]]]:
        client = DataClient(list(scripted.endpoints.values()), retry_timeout_ms=400)
        try:
            wanted = {("flights", 0): (0, 30), ("flights", 1): (5, 9), ("flights", 2): (1, 2)}
            found = client.plan_many_ranges(client.describe(["flights"]), wanted, 100)
            return {key: [(part.start, part.end) for part in parts] for key, parts in found.items()}
        finally:
            client.close()

    @pytest.fixture(autouse=True)
    def three_partitions(self, answer: object, scripted: Script) -> None:
        scripted.partitions |= {1: scripted.partitions[0], 2: scripted.partitions[0]}

    def test_the_rest_of_a_part_is_asked_again(self, answer: list[Any], scripted: Script) -> None:
        def one(request: Any) -> pb.PlanManyRangesReply:
            part = request.partitions[0]
            ranges = [pb.Range(start=part.start, end=part.end)]
            return pb.PlanManyRangesReply(partitions=[pb.PartitionRanges(ranges=ranges)])

        answer.append(one)
        assert self.planned(scripted) == {
            ("flights", 0): [(0, 30)], ("flights", 1): [(5, 9)], ("flights", 2): [(1, 2)],
        }  # fmt: skip

    def test_a_node_that_plans_nothing_is_not_asked_for_ever(
        self, answer: list[Any], scripted: Script
    ) -> None:
        answer.append(lambda request: pb.PlanManyRangesReply())
        with pytest.raises(ReadError, match="planned no range"):
            self.planned(scripted)
