"""Services of jobs for what no healthy node does: answers that are lost, coordinators that move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from tidegate.proto import jobs_pb2 as pb
from tidegate.proto import jobs_pb2_grpc
from tidegate.wire.errors import ErrorCode


class Passed(jobs_pb2_grpc.JobsServicer):
    """Passes all on to a node."""

    def __init__(self, address: str) -> None:
        self._node = jobs_pb2_grpc.JobsStub(grpc.insecure_channel(address))

    def OpenAttempt(self, request: Any, context: Any) -> Any:
        return self._node.OpenAttempt(request)

    def PrepareAttempt(self, request: Any, context: Any) -> Any:
        return self._node.PrepareAttempt(request)

    def RenewJob(self, request: Any, context: Any) -> Any:
        return self._node.RenewJob(request)

    def CommitJob(self, request: Any, context: Any) -> Any:
        return self._node.CommitJob(request)

    def AbortJob(self, request: Any, context: Any) -> Any:
        return self._node.AbortJob(request)

    def ListJobs(self, request: Any, context: Any) -> Any:
        return self._node.ListJobs(request)

    def DescribeJob(self, request: Any, context: Any) -> Any:
        return self._node.DescribeJob(request)


class AnswerLost(Passed):
    """Loses the first answers to commits, which the node has carried out."""

    def __init__(self, address: str, lost: int) -> None:
        super().__init__(address)
        self._lost = lost
        self.commits = self.aborts = 0

    def CommitJob(self, request: Any, context: Any) -> Any:
        reply = super().CommitJob(request, context)
        self.commits += 1
        if self.commits <= self._lost:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
        return reply

    def AbortJob(self, request: Any, context: Any) -> Any:
        self.aborts += 1
        return super().AbortJob(request, context)


class Scripted(Passed):
    """Commits as `said` says, the last for ever: an error's code with the endpoint that it names, a status
    without detail, or a reply."""

    def __init__(self, *said: tuple[ErrorCode, str] | grpc.StatusCode | pb.JobReply) -> None:
        super().__init__("127.0.0.1:1")  # nothing else is asked
        self.said = list(said)
        self.requests: list[pb.CommitJobRequest] = []

    def CommitJob(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        said = self.said.pop(0) if len(self.said) > 1 else self.said[0]
        if isinstance(said, pb.JobReply):
            return said
        if isinstance(said, grpc.StatusCode):
            return context.abort(said, "the script says so")
        error = pb.JobError(error_code=said[0], message="the script says so", endpoint=said[1])
        context.set_trailing_metadata((("tidegate-error-bin", error.SerializeToString()),))
        return context.abort(grpc.StatusCode.FAILED_PRECONDITION, "see the detail")


Serve = Callable[[jobs_pb2_grpc.JobsServicer], str]
"""Starts a server for a service, and gives its address."""


@contextmanager
def servers() -> Iterator[Serve]:
    started: list[grpc.Server] = []

    def serve(service: jobs_pb2_grpc.JobsServicer) -> str:
        server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        jobs_pb2_grpc.add_JobsServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        started.append(server)
        return f"127.0.0.1:{port}"

    yield serve
    for server in started:
        server.stop(0)
