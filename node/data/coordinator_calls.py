"""How a gRPC service of the transaction coordinators answers: a call that fails ends with a `JobError`, and
NOT_COORDINATOR names the coordinator, as far as this node's metadata know."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from ...proto import jobs_pb2 as pb
from ...wire.errors import ErrorCode, KafkaError
from ..cluster.cluster_view import ClusterView
from ..cluster.internal_topics import TRANSACTION_STATE, transaction_partition_for

Reply = TypeVar("Reply")
Context = grpc.aio.ServicerContext[Any, Any]

ERROR_KEY: Final = "tidegate-error-bin"
_STATUS: Final = {
    ErrorCode.INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.INVALID_TXN_STATE: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.POLICY_VIOLATION: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.PRODUCER_FENCED: grpc.StatusCode.ABORTED,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.SASL_AUTHENTICATION_FAILED: grpc.StatusCode.UNAUTHENTICATED,
    ErrorCode.UNSUPPORTED_VERSION: grpc.StatusCode.UNIMPLEMENTED,
    ErrorCode.UNKNOWN_SERVER_ERROR: grpc.StatusCode.INTERNAL,
}
"""Any other code is UNAVAILABLE: the call may be repeated."""


class CoordinatorCalls:
    """See the module's text."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    async def answer(self, context: Context, key: str, call: Coroutine[Any, Any, Reply]) -> Reply:
        """`key`: the transactional id, or any of the job."""
        try:
            return await call
        except KafkaError as error:
            detail = pb.JobError(error_code=error.code, message=error.message, coordinator_id=-1)
            if error.code is ErrorCode.NOT_COORDINATOR:
                self._name_coordinator(detail, key)
            await context.abort(
                _STATUS.get(error.code, grpc.StatusCode.UNAVAILABLE),
                str(error),
                ((ERROR_KEY, detail.SerializeToString()),),
            )

    def _name_coordinator(self, detail: pb.JobError, key: str) -> None:
        topic = self._cluster.state.topics.get(TRANSACTION_STATE)
        if topic is None:
            return
        partition = topic.partitions.get(transaction_partition_for(key, len(topic.partitions)))
        if partition is None or partition.leader in (-1, self._cluster.node_id):
            return
        detail.coordinator_id = partition.leader
        broker = self._cluster.state.brokers.get(partition.leader)
        detail.endpoint = str(broker.grpc) if broker else ""
