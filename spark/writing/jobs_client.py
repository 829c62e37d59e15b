"""The blocking client of the service of jobs (docs/transactions.md): finds the sink's coordinator, and tries
again after answers that were lost; each call may be repeated.

For any thread.  Any node names the coordinator; a call follows it, and waits longer and longer between
attempts, until `retry_timeout_ms` have passed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import grpc

from ...proto import jobs_pb2 as pb
from ...proto import jobs_pb2_grpc
from ...runtime.clock import Clock, SystemClock
from ...runtime.logs import get
from ...runtime.network import AnswersInHttp2
from ...security.client_security import AuthenticationRefused, SecurityError
from ...security.grpc_session import Metadata
from ...wire.errors import ErrorCode
from ..connecting.channels import Channels, has_failed_by_tls, protocol_advice
from ..connecting.kafka_address import grpc_addresses
from ..connecting.retry import RetryBudget
from .results import Attempt, WriteError

log = get(__name__)

Reply = TypeVar("Reply")
Call = Callable[[jobs_pb2_grpc.JobsStub, float, Metadata], Reply]

ERROR_KEY: Final = "tidegate-error-bin"
CALL_TIMEOUT_S: Final = 30.0
ABORT_PATIENCE_MS: Final = 10_000
_LOST: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN,
    }
)  # fmt: skip
"""The call may or may not have reached the node."""


class JobsClient:
    """The calls about one job.  `find`: gRPC addresses of a Kafka listener."""

    def __init__(
        self,
        job: pb.Job,
        bootstrap: Sequence[str],
        job_bootstrap: Sequence[str],
        channels: Channels,
        retry_timeout_ms: int,
        *,
        clock: Clock | None = None,
        find: Callable[[str], tuple[str, ...]] = grpc_addresses,
    ) -> None:
        self._job = job
        self._bootstrap = bootstrap
        self._job_bootstrap = tuple(job_bootstrap)
        self._channels = channels
        self._retry_timeout_ms = retry_timeout_ms
        self._clock = clock or SystemClock()
        self._find = find
        self._coordinator = ""
        self._candidates: list[str] = []
        self._asked = 0  # of `bootstrap`, in turn
        self._failed_by_tls = 0  # in a row
        self._lock = threading.Lock()  # over the candidates, and the failures
        self._is_closed = False

    def open_attempt(self, attempt: str, timeout_ms: int) -> pb.OpenAttemptReply:
        request = pb.OpenAttemptRequest(job=self._job, attempt=attempt, timeout_ms=timeout_ms)
        return self._ask(
            "OpenAttempt",
            lambda stub, timeout, shown: stub.OpenAttempt(request, timeout=timeout, metadata=shown),
        )

    def prepare_attempt(self, attempt: Attempt, timeout_ms: int) -> pb.PrepareAttemptReply:
        request = pb.PrepareAttemptRequest(
            job=self._job,
            attempt=attempt.name,
            producer_id=attempt.producer_id,
            producer_epoch=attempt.producer_epoch,
            timeout_ms=timeout_ms,
        )
        return self._ask(
            "PrepareAttempt",
            lambda stub, timeout, shown: stub.PrepareAttempt(request, timeout=timeout, metadata=shown),
        )

    def renew(self, timeout_ms: int) -> pb.RenewJobReply:
        request = pb.RenewJobRequest(job=self._job, timeout_ms=timeout_ms)
        return self._ask(
            "RenewJob", lambda stub, timeout, shown: stub.RenewJob(request, timeout=timeout, metadata=shown)
        )

    def commit(self, winners: Sequence[Attempt], rows: int) -> pb.JobReply:
        """`rows`: of the winners together."""
        request = pb.CommitJobRequest(
            job=self._job,
            rows=rows,
            winners=[
                pb.Winner(attempt=each.name, producer_id=each.producer_id, producer_epoch=each.producer_epoch)
                for each in winners
            ],
        )
        return self._ask(
            "CommitJob", lambda stub, timeout, shown: stub.CommitJob(request, timeout=timeout, metadata=shown)
        )

    def abort(self, run: str | None = None) -> pb.JobReply:
        """Does nothing to a job that another run has; None aborts it all the same.  Does not try for long: a
        job that no task renews ends by its deadline."""
        request = pb.AbortJobRequest(job=self._job, run=run)
        return self._ask(
            "AbortJob",
            lambda stub, timeout, shown: stub.AbortJob(request, timeout=timeout, metadata=shown),
            min(ABORT_PATIENCE_MS, self._retry_timeout_ms),
        )

    def close(self) -> None:
        """Calls in progress end, with WriteError."""
        self._is_closed = True
        self._channels.close()

    def _ask(self, method: str, call: Call[Reply], retry_timeout_ms: int | None = None) -> Reply:
        """Raises WriteError."""
        patience_ms = self._retry_timeout_ms if retry_timeout_ms is None else retry_timeout_ms
        budget = RetryBudget(self._clock, patience_ms / 1000, patience_ms / 1000)
        timeout_s = min(CALL_TIMEOUT_S, max(1.0, patience_ms / 1000))
        while True:
            endpoint = self._coordinator or self._candidate()
            if self._is_closed:
                raise _closed(method)
            if endpoint:
                try:
                    shown = self._channels.authorization(endpoint)
                    stub = jobs_pb2_grpc.JobsStub(self._channels.to(endpoint))
                    reply = call(stub, timeout_s, shown)
                except (AuthenticationRefused, SecurityError) as refused:
                    raise WriteError(ErrorCode.SASL_AUTHENTICATION_FAILED, f"{endpoint}: {refused}") from None
                except grpc.RpcError as failure:
                    problem = self._problem(method, failure, endpoint)
                except ValueError:  # gRPC's word for a channel that was closed
                    if not self._is_closed:
                        raise
                    raise _closed(method) from None
                else:
                    self._coordinator = endpoint
                    return reply
            else:
                problem = WriteError(
                    ErrorCode.BROKER_NOT_AVAILABLE,
                    f"{method}: no broker of bootstrap {','.join(self._bootstrap)} named its gRPC listener: "
                    "are these Kafka listeners, and is a broker there? Where they want TLS or a login, set "
                    "'kafka.security.protocol', and gRPC listeners in 'jobBootstrap'",
                )
            log.debug("job_call_retried", method=method, endpoint=endpoint, reason=problem)
            if not budget.wait(reason=problem):
                raise problem

    def _candidate(self) -> str:
        """A listener after the other, asked for only when it is its turn."""
        with self._lock:
            if not self._candidates:
                self._candidates = list(self._job_bootstrap) or self._found()
            return self._candidates.pop(0) if self._candidates else ""

    def _found(self) -> list[str]:
        """Raises WriteError when all of them are gRPC listeners: any other may be a broker that starts."""
        wrong: list[str] = []
        for _ in self._bootstrap:
            address = self._bootstrap[self._asked % len(self._bootstrap)]
            self._asked += 1
            try:
                if found := self._find(address):
                    return list(found)
            except AnswersInHttp2:
                wrong.append(address)
        if len(wrong) == len(self._bootstrap):
            raise WriteError(
                ErrorCode.INVALID_REQUEST,
                f"bootstrap {','.join(wrong)}: gRPC listeners, where a sink wants Kafka listeners, on "
                "another port (`tidegate dev` and `tidegate cluster up`: 100 below)",
            )
        return []

    def _problem(self, method: str, failure: grpc.RpcError, endpoint: str) -> WriteError:
        """The error of a call that may be tried again; raises the one of a call that must not."""
        assert isinstance(failure, grpc.Call)
        self._coordinator = ""
        by_tls = has_failed_by_tls(failure.details() or "")
        with self._lock:
            self._failed_by_tls = self._failed_by_tls + 1 if by_tls else 0
            is_every_node = by_tls and self._failed_by_tls >= max(1, len(self._job_bootstrap))
        what = f"{method} of job {self._job.sink}/{self._job.batch}"
        detail = dict(failure.trailing_metadata() or ()).get(ERROR_KEY)
        if isinstance(detail, bytes):
            error = pb.JobError.FromString(detail)
            code = ErrorCode.from_wire(error.error_code)
            if code is ErrorCode.NOT_COORDINATOR:
                self._coordinator = error.endpoint
            elif code.retriable:
                self._coordinator = endpoint
            if code is ErrorCode.SASL_AUTHENTICATION_FAILED and self._channels.forget_session(endpoint):
                return WriteError(code, f"{what}: {error.message}")
            if not code.retriable:
                raise WriteError(code, f"{what}: {error.message}{_advice(code, self._job)}") from None
            return WriteError(code, f"{what}: {error.message}")
        message = f"{what}: {endpoint}: {failure.code().name}: {failure.details()}"
        if failure.code() is grpc.StatusCode.UNAUTHENTICATED:
            problem = WriteError(ErrorCode.SASL_AUTHENTICATION_FAILED, message)
            if self._channels.forget_session(endpoint):
                return problem
            raise problem from None
        if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise WriteError(
                ErrorCode.UNSUPPORTED_VERSION, f"{message}: the node has no job transactions: upgrade it"
            ) from None
        problem = WriteError(ErrorCode.NETWORK_EXCEPTION, message + protocol_advice(message))
        if failure.code() not in _LOST or is_every_node:
            raise problem from None
        return problem


def _closed(method: str) -> WriteError:
    return WriteError(ErrorCode.NETWORK_EXCEPTION, f"{method}: the client was closed during the call")


def _advice(code: ErrorCode, job: pb.Job) -> str:
    if code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return f". The sink needs WRITE on transactional ids that begin with tidegate.job/{job.sink}"
    return ""
