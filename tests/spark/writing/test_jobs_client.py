"""The client of the service of jobs tries again what may pass, follows the coordinator, and says plainly what
it gives up for."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import grpc
import pytest
from tidegate.proto import jobs_pb2 as pb
from tidegate.security.client_security import SecurityError
from tidegate.security.grpc_session import Metadata
from tidegate.spark.connecting.channels import Channels
from tidegate.spark.connecting.kafka_address import grpc_addresses
from tidegate.spark.writing.jobs_client import ABORT_PATIENCE_MS, CALL_TIMEOUT_S, JobsClient
from tidegate.spark.writing.results import Attempt, WriteError
from tidegate.wire.errors import ErrorCode

from .jobs_stub import Scripted, Serve, servers

COMMITTED = pb.JobReply(outcome=pb.COMMITTED, is_yours=True)
WINNER = Attempt("0-0-abc", 7, 1)


@pytest.fixture
def serve() -> Iterator[Serve]:
    with servers() as start:
        yield start


def client(address: str, retry_timeout_ms: int = 20_000) -> JobsClient:
    job = pb.Job(sink="etl", batch="3")
    return JobsClient(job, ["k:1"], [address], Channels(), retry_timeout_ms, find=lambda _: ())


@pytest.mark.parametrize(
    "passing",
    [
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ""),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ""),
        (ErrorCode.NOT_COORDINATOR, ""),
    ],
)
def test_what_may_pass_is_asked_again_with_the_same_request(
    serve: Serve, passing: grpc.StatusCode | tuple[ErrorCode, str]
) -> None:
    node = Scripted(passing, passing, COMMITTED)
    assert client(serve(node)).commit([WINNER], 5).is_yours
    assert len(node.requests) == 3
    assert {request.SerializeToString() for request in node.requests} == {
        node.requests[0].SerializeToString()
    }


def test_the_coordinator_that_a_node_names_is_asked_from_then_on(serve: Serve) -> None:
    coordinator = Scripted(COMMITTED)
    other = Scripted((ErrorCode.NOT_COORDINATOR, serve(coordinator)))
    jobs = client(serve(other))
    for _ in range(2):
        jobs.commit([WINNER], 5)
    assert (len(other.requests), len(coordinator.requests)) == (1, 2)


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        (
            (ErrorCode.INVALID_TXN_STATE, ""),
            ErrorCode.INVALID_TXN_STATE,
            "CommitJob of job etl/3: the script says so",
        ),
        (
            (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ""),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "needs WRITE on transactional ids that begin with tidegate.job/etl",
        ),
        (grpc.StatusCode.UNAUTHENTICATED, ErrorCode.SASL_AUTHENTICATION_FAILED, "UNAUTHENTICATED"),
        (grpc.StatusCode.UNIMPLEMENTED, ErrorCode.UNSUPPORTED_VERSION, "has no job transactions"),
        (grpc.StatusCode.INVALID_ARGUMENT, ErrorCode.NETWORK_EXCEPTION, "INVALID_ARGUMENT"),
    ],
)
def test_what_cannot_pass_ends_at_once(
    serve: Serve, said: grpc.StatusCode | tuple[ErrorCode, str], code: ErrorCode, message: str
) -> None:
    node = Scripted(said)
    with pytest.raises(WriteError, match=message) as ended:
        client(serve(node)).commit([WINNER], 5)
    assert (ended.value.code, len(node.requests)) == (code, 1)


def test_it_gives_up_after_the_timeout_with_the_last_reason(serve: Serve) -> None:
    node = Scripted(grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(WriteError, match=r"CommitJob of job etl/3: .*the script says so"):
        client(serve(node), retry_timeout_ms=300).commit([WINNER], 5)
    assert len(node.requests) > 1


def test_a_cluster_that_names_no_listener_is_named() -> None:
    jobs = JobsClient(pb.Job(), ["k:1", "l:2"], [], Channels(), 0, find=lambda _: ())
    with pytest.raises(WriteError, match="no broker of bootstrap k:1,l:2 named its gRPC listener"):
        jobs.commit([WINNER], 5)


def test_a_grpc_listener_where_kafkas_are_wanted_is_an_error_at_once(serve: Serve) -> None:
    node, wrong = Scripted(COMMITTED), serve(Scripted(COMMITTED))
    address = serve(node)

    def find(listener: str) -> tuple[str, ...]:
        return (address,) if listener == "k:1" else grpc_addresses(listener)

    with pytest.raises(WriteError, match=f"bootstrap {wrong}: gRPC listeners, .* wants Kafka listeners"):
        JobsClient(pb.Job(), [wrong], [], Channels(), 60_000, find=find).commit([WINNER], 5)
    JobsClient(pb.Job(), [wrong, "k:1"], [], Channels(), 60_000, find=find).commit([WINNER], 5)
    assert len(node.requests) == 1
    away = JobsClient(pb.Job(), ["127.0.0.1:1", wrong], [], Channels(), 1, find=find)
    with pytest.raises(WriteError, match="is a broker there"):
        away.commit([WINNER], 5)


class PlainTo(Channels):
    """TLS to every other node, which has none."""

    def __init__(self, *plain: str) -> None:
        super().__init__()
        self._plain, self._tls = plain, dict[str, grpc.Channel]()

    def to(self, endpoint: str) -> grpc.Channel:
        if endpoint in self._plain:
            return super().to(endpoint)
        if endpoint not in self._tls:
            self._tls[endpoint] = grpc.secure_channel(endpoint, grpc.ssl_channel_credentials())
        return self._tls[endpoint]


def test_a_node_that_tls_refuses_is_passed_over_and_all_of_them_are_an_error_at_once(serve: Serve) -> None:
    good, bad = serve(Scripted(COMMITTED)), [serve(Scripted(COMMITTED)) for _ in range(2)]
    JobsClient(pb.Job(), ["k:1"], [*bad, good], PlainTo(good), 60_000).commit([WINNER], 5)
    with pytest.raises(WriteError, match=r"another protocol than kafka\.security\.protocol"):
        JobsClient(pb.Job(), ["k:1"], bad, PlainTo(), 60_000).commit([WINNER], 5)


def test_listeners_are_asked_for_one_after_the_other_and_in_turn(serve: Serve) -> None:
    node, asked = Scripted(grpc.StatusCode.UNAVAILABLE, COMMITTED), []
    address = serve(node)

    def find(listener: str) -> tuple[str, ...]:
        asked.append(listener)
        return () if listener == "l:2" else (address,)

    jobs = JobsClient(pb.Job(), ["k:1", "l:2", "m:3"], [], Channels(), 30_000, find=find)
    jobs.commit([WINNER], 5)
    assert asked == ["k:1", "l:2", "m:3"]  # the first one's node was away


def test_a_client_that_is_closed_asks_no_more(serve: Serve) -> None:
    node = Scripted(COMMITTED)
    jobs = client(serve(node))
    jobs.commit([WINNER], 5)
    jobs.close()
    with pytest.raises(WriteError, match="was closed during the call"):
        jobs.commit([WINNER], 5)
    assert len(node.requests) == 1


class Sessions(Channels):
    """Has this many sessions that a node has forgotten."""

    def __init__(self, forgotten: int) -> None:
        super().__init__()
        self.forgotten = forgotten

    def forget_session(self, endpoint: str) -> bool:
        self.forgotten -= 1
        return self.forgotten >= 0


@pytest.mark.parametrize(
    "refused", [grpc.StatusCode.UNAUTHENTICATED, (ErrorCode.SASL_AUTHENTICATION_FAILED, "")]
)
def test_a_session_that_the_node_has_forgotten_is_made_again(
    serve: Serve, refused: grpc.StatusCode | tuple[ErrorCode, str]
) -> None:
    node = Scripted(refused, COMMITTED)
    jobs = JobsClient(pb.Job(), ["k:1"], [serve(node)], Sessions(1), 20_000, find=lambda _: ())
    assert jobs.commit([WINNER], 5).is_yours
    node = Scripted(refused)
    jobs = JobsClient(pb.Job(), ["k:1"], [serve(node)], Sessions(0), 20_000, find=lambda _: ())
    with pytest.raises(WriteError):
        jobs.commit([WINNER], 5)
    assert len(node.requests) == 1  # credentials that are refused stay refused


def test_an_error_of_another_kind_is_not_taken_for_a_closed_client(
    monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    jobs = client(serve(Scripted(COMMITTED)))

    def fails(*_: object) -> None:
        raise ValueError("odd")

    monkeypatch.setattr(Channels, "to", fails)
    with pytest.raises(ValueError, match="odd"):
        jobs.commit([WINNER], 5)


def over(
    addresses: list[str], channels: Channels | None = None, retry_timeout_ms: int = 20_000
) -> JobsClient:
    job = pb.Job(sink="etl", batch="3")
    return JobsClient(job, ["k:1"], addresses, channels or Channels(), retry_timeout_ms)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((COMMITTED, COMMITTED), ()),
        ((COMMITTED, grpc.StatusCode.UNAVAILABLE), (COMMITTED,)),  # another node may know the new one
        (((ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ""), COMMITTED, COMMITTED), ()),
    ],
)
def test_a_coordinator_is_asked_until_it_is_away(
    serve: Serve, first: tuple[pb.JobReply, ...], second: tuple[pb.JobReply, ...]
) -> None:
    nodes = Scripted(*first), Scripted(*second)
    jobs = over([serve(node) for node in nodes])
    for _ in range(2):
        assert jobs.commit([WINNER], 5).is_yours
    assert [len(node.requests) for node in nodes] == [len(first), len(second)]
    jobs.close()


@pytest.mark.parametrize(("patience_ms", "timeout_s"), [(100, 1.0), (5_000, 5.0), (600_000, CALL_TIMEOUT_S)])
def test_no_call_takes_much_longer_than_the_patience(patience_ms: int, timeout_s: float) -> None:
    jobs = over(["127.0.0.1:1"], retry_timeout_ms=patience_ms)
    assert jobs._ask("RenewJob", lambda stub, timeout, shown: timeout) == timeout_s
    jobs.close()


@pytest.mark.parametrize(
    ("patience_ms", "asked_ms"), [(100, 100), (10 * ABORT_PATIENCE_MS, ABORT_PATIENCE_MS)]
)
def test_an_abort_is_not_tried_for_long(
    monkeypatch: pytest.MonkeyPatch, patience_ms: int, asked_ms: int
) -> None:
    monkeypatch.setattr(JobsClient, "_ask", lambda _, method, call, patience_ms: (method, patience_ms))
    assert over([], retry_timeout_ms=patience_ms).abort() == ("AbortJob", asked_ms)


def test_a_commit_names_each_winner_and_an_abort_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(request: object, **_: object) -> object:
        return request

    stub = SimpleNamespace(CommitJob=asked, AbortJob=asked)
    monkeypatch.setattr(JobsClient, "_ask", lambda _, method, call, *more: call(stub, 1.0, ()))
    jobs, job = over([]), pb.Job(sink="etl", batch="3")
    winner = pb.Winner(attempt=WINNER.name, producer_id=7, producer_epoch=1)
    assert jobs.commit([WINNER], 5) == pb.CommitJobRequest(job=job, winners=[winner], rows=5)
    assert jobs.abort("r") == pb.AbortJobRequest(job=job, run="r")
    assert jobs.abort() == pb.AbortJobRequest(job=job), "of whichever run it is"


def test_a_login_that_is_refused_is_the_error_of_the_write() -> None:
    class Refusing(Channels):
        def authorization(self, endpoint: str) -> Metadata:
            raise SecurityError("no such user")

    with pytest.raises(WriteError, match="no such user") as refused:
        over(["127.0.0.1:1"], Refusing()).commit([WINNER], 5)
    assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_call_during_which_the_client_is_closed_ends() -> None:
    channels = Channels()
    jobs = over(["127.0.0.1:1"], channels)

    def closes(*_: object) -> pb.JobReply:
        jobs.close()
        assert not channels._open
        raise ValueError("Cannot invoke RPC on closed channel!")

    with pytest.raises(WriteError, match="CommitJob: the client was closed during the call"):
        jobs._ask("CommitJob", closes)
