"""The gRPC service of two-phase commit: transactions that a program prepares and ends later (KIP-939), which
Kafka's protocol has no request for.

The node that coordinates the transactional id answers; any other refuses with NOT_COORDINATOR and names the
coordinator, as far as its metadata know.  An answer leaves when its record is committed (docs/semantics.md
A7).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from ...coordinator.transaction.events import PrepareTransaction
from ...proto import jobs_pb2 as pb
from ...proto import jobs_pb2_grpc
from ...wire.errors import ErrorCode, KafkaError
from ..cluster.cluster_view import ClusterView
from ..cluster.internal_topics import TRANSACTION_STATE, partition_for
from ..coordinators.transaction_coordination import TransactionCoordination
from ..serving.grpc_callers import GrpcAccess
from ..settings.configuration import Configuration

Reply = TypeVar("Reply")
Context = grpc.aio.ServicerContext[Any, Any]

ERROR_KEY: Final = "tidegate-error-bin"
_STATUS: Final = {
    ErrorCode.INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.INVALID_TXN_STATE: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.PRODUCER_FENCED: grpc.StatusCode.ABORTED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.SASL_AUTHENTICATION_FAILED: grpc.StatusCode.UNAUTHENTICATED,
    ErrorCode.UNSUPPORTED_VERSION: grpc.StatusCode.UNIMPLEMENTED,
    ErrorCode.UNKNOWN_SERVER_ERROR: grpc.StatusCode.INTERNAL,
}
"""Any other code is UNAVAILABLE: the call may be repeated."""


class TwoPhaseCommitService(jobs_pb2_grpc.TwoPhaseCommitServicer):
    """See the module's text."""

    def __init__(
        self,
        configuration: Configuration,
        cluster: ClusterView,
        transactions: TransactionCoordination,
        access: GrpcAccess,
    ) -> None:
        self._configuration = configuration
        self._cluster = cluster
        self._transactions = transactions
        self._access = access

    async def PrepareTransaction(
        self, request: pb.PrepareTransactionRequest, context: Context
    ) -> pb.PrepareTransactionReply:
        async def prepare() -> pb.PrepareTransactionReply:
            self._access.require(self._access.caller(context), "PrepareTransaction", request.transactional_id)
            if not self._configuration.flag("transaction.two.phase.commit.enable"):
                raise KafkaError(
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "two-phase commit is not enabled on this node (transaction.two.phase.commit.enable)",
                )
            event = PrepareTransaction(request.transactional_id, request.producer_id, request.producer_epoch)
            prepared = await self._transactions.ask(request.transactional_id, event)
            return pb.PrepareTransactionReply(
                producer_id=prepared.producer_id, producer_epoch=prepared.producer_epoch
            )

        return await self._answer(context, request.transactional_id, prepare())

    async def _answer(self, context: Context, key: str, call: Coroutine[Any, Any, Reply]) -> Reply:
        """Ends the call with a `JobError` when it fails."""
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
        partition = topic.partitions.get(partition_for(key, len(topic.partitions))) if topic else None
        if partition is None or partition.leader in (-1, self._cluster.node_id):
            return
        detail.coordinator_id = partition.leader
        broker = self._cluster.state.brokers.get(partition.leader)
        detail.endpoint = str(broker.grpc) if broker else ""
