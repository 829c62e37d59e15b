"""The nodes that a client may ask: where they listen, what a call shows them, and which could not be reached.

The bootstrap list may have gRPC or Kafka listeners; a Kafka listener is asked for the gRPC ones when nothing
else is known.  The endpoints of the cluster's own answers come before the list, which stays as a fallback.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import grpc

from ...proto import data_pb2_grpc
from ...runtime.network import AnswersInHttp2
from ...security.client_security import AuthenticationRefused, SecurityError
from ...security.grpc_session import Metadata
from ...wire.errors import ErrorCode
from .channels import Channels
from .errors import Problem, ReadError, problem_of_call
from .kafka_address import grpc_addresses

Reply = TypeVar("Reply")


class Nodes:
    """The nodes of one cluster, for one thread."""

    def __init__(self, bootstrap: Sequence[str], channels: Channels, *, is_secured: bool) -> None:
        self._bootstrap = tuple(bootstrap)
        self._channels = channels
        self._is_secured = is_secured
        # gRPC endpoints by Kafka listener of the bootstrap list
        self._grpc_of: dict[str, tuple[str, ...]] = {}
        # from the cluster's answers
        self._endpoints: tuple[str, ...] = ()
        self._first = 0  # which of them `ask_any` asks first
        self._unreachable: set[str] = set()

    def close(self) -> None:
        """A channel kept from task to task must not try to connect for ever."""
        for endpoint in self._unreachable:
            self._channels.drop(endpoint)

    def learn(self, endpoints: Sequence[str]) -> None:
        """Takes the cluster's own answer for where its nodes listen."""
        self._endpoints = tuple(endpoints)

    def begin_with_next(self) -> None:
        """After an answer that cannot be kept: `ask_any` begins with another node."""
        self._first += 1

    def ask_any(self, ask: Callable[[grpc.Channel, Metadata], Reply]) -> tuple[Reply | None, Problem | None]:
        """One round over all known nodes, until one answers."""
        problem: Problem | None = None
        given = itertools.chain.from_iterable(self._grpc_of.get(each, (each,)) for each in self._bootstrap)
        left = deque(dict.fromkeys((*self._endpoints, *given)))
        left.rotate(-self._first)
        while left:
            endpoint = left.popleft()
            try:
                return ask(self._channels.to(endpoint), self.shown(endpoint)), None
            except grpc.RpcError as failure:
                found = self.problem_of(failure, endpoint)
                if problem is None or not (problem.curable and found.is_of_tls):
                    problem = found
                if (
                    endpoint in self._bootstrap
                    and found.code == ErrorCode.NETWORK_EXCEPTION
                    and not self._endpoints
                ):
                    left.extend(self._behind(endpoint))
        assert problem is not None, "the bootstrap list is never empty"
        return None, problem

    def _behind(self, endpoint: str) -> tuple[str, ...]:
        """The gRPC endpoints to use when the bootstrap address is a Kafka listener."""
        if self._is_secured:
            return ()
        try:
            found = grpc_addresses(endpoint)
        except AnswersInHttp2:
            return ()
        if found:
            self._grpc_of[endpoint] = found
        return found

    def stub(self, endpoint: str) -> data_pb2_grpc.DataStub:
        return data_pb2_grpc.DataStub(self._channels.to(endpoint))

    def shown(self, endpoint: str) -> Metadata:
        """What a call shows of the client's identity.  Raises ReadError when the node refuses it, and
        grpc.RpcError."""
        try:
            return self._channels.authorization(endpoint)
        except (AuthenticationRefused, SecurityError) as refused:
            raise ReadError(ErrorCode.SASL_AUTHENTICATION_FAILED, f"{endpoint}: {refused}") from None

    def problem_of(self, failure: grpc.RpcError, endpoint: str) -> Problem:
        return self.judged(problem_of_call(failure, endpoint), endpoint)

    def judged(self, problem: Problem, endpoint: str) -> Problem:
        """The problem, once what it says of the endpoint is noted."""
        if problem.code == ErrorCode.SASL_AUTHENTICATION_FAILED:
            # the node has started anew, or the connection has: authenticate again
            problem.curable = self._channels.forget_session(endpoint)
        if problem.code == ErrorCode.NETWORK_EXCEPTION and not problem.method_unknown:
            self._unreachable.add(endpoint)
        return problem
