"""A service of jobs in front of the nodes: passes each call on to the sink's coordinator, and loses
answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc
from tidegate.proto import jobs_pb2 as pb
from tidegate.proto import jobs_pb2_grpc

from .steps import Method

ERROR_KEY: Final = "tidegate-error-bin"
HOPS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Decision:
    """The first decision about a job."""

    winners: frozenset[str]
    decided_ms: int


class LosingAnswers(jobs_pb2_grpc.JobsServicer):
    """`lose` answers of a method; what was decided meanwhile stands in `decisions`, by sink and batch."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()
        self._method: Method = ""
        self._left = 0
        self.lost = 0
        self.decisions: dict[tuple[str, str], Decision] = {}

    def lose(self, method: Method, count: int) -> None:
        """The next answers to this method."""
        with self._lock:
            self._method, self._left, self.lost = method, count, 0

    def _passed(self, method: Method, request: Any, context: Any, call: Callable[[Any], Any]) -> Any:
        reply = self._asked(context, call)
        if isinstance(reply, pb.JobReply) and reply.outcome == pb.COMMITTED:
            decision = Decision(frozenset(each.attempt for each in reply.winners), reply.decided_ms)
            self.decisions[request.job.sink, request.job.batch] = decision
        with self._lock:
            is_lost = method == self._method and self._left > 0
            if is_lost:
                self._left -= 1
                self.lost += 1
        if is_lost:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
        return reply

    def _asked(self, context: Any, call: Callable[[Any], Any]) -> Any:
        """Follows the coordinator; the last error is the caller's."""
        address = self._addresses[0]
        for hop in range(HOPS_MAX):
            with self._lock:
                channel = self._channels.setdefault(address, grpc.insecure_channel(address))
            try:
                return call(jobs_pb2_grpc.JobsStub(channel))
            except grpc.RpcError as failure:
                assert isinstance(failure, grpc.Call)
                detail = dict(failure.trailing_metadata() or ()).get(ERROR_KEY)
                named = pb.JobError.FromString(detail).endpoint if isinstance(detail, bytes) else ""
                if not named or hop == HOPS_MAX - 1:
                    if isinstance(detail, bytes):
                        context.set_trailing_metadata(((ERROR_KEY, detail),))
                    context.abort(failure.code(), failure.details() or "")
                address = named
        raise AssertionError("the loop returns or aborts")

    def OpenAttempt(self, request: Any, context: Any) -> Any:
        return self._passed("OpenAttempt", request, context, lambda stub: stub.OpenAttempt(request))

    def PrepareAttempt(self, request: Any, context: Any) -> Any:
        return self._passed("PrepareAttempt", request, context, lambda stub: stub.PrepareAttempt(request))

    def RenewJob(self, request: Any, context: Any) -> Any:
        return self._asked(context, lambda stub: stub.RenewJob(request))

    def CommitJob(self, request: Any, context: Any) -> Any:
        return self._passed("CommitJob", request, context, lambda stub: stub.CommitJob(request))

    def AbortJob(self, request: Any, context: Any) -> Any:
        return self._asked(context, lambda stub: stub.AbortJob(request))

    def ListJobs(self, request: Any, context: Any) -> Any:
        return self._asked(context, lambda stub: stub.ListJobs(request))

    def DescribeJob(self, request: Any, context: Any) -> Any:
        return self._asked(context, lambda stub: stub.DescribeJob(request))


@contextmanager
def served(service: LosingAnswers) -> Iterator[str]:
    """Its address."""
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    jobs_pb2_grpc.add_JobsServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0)
