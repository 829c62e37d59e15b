"""The gRPC service of two-phase commit: transactions that a program prepares and ends later (KIP-939), which
Kafka's protocol has no request for.  An answer leaves when its record is committed (docs/semantics.md A7)."""

from __future__ import annotations

from ...coordinator.transaction.events import PrepareTransaction
from ...proto import jobs_pb2 as pb
from ...proto import jobs_pb2_grpc
from ...wire.errors import ErrorCode, KafkaError
from ..coordinators.transaction_coordination import TransactionCoordination
from ..serving.grpc_callers import GrpcAccess
from ..settings.configuration import Configuration
from .coordinator_calls import Context, CoordinatorCalls


class TwoPhaseCommitService(jobs_pb2_grpc.TwoPhaseCommitServicer):
    """See the module's text."""

    def __init__(
        self,
        configuration: Configuration,
        transactions: TransactionCoordination,
        access: GrpcAccess,
        calls: CoordinatorCalls,
    ) -> None:
        self._configuration = configuration
        self._transactions = transactions
        self._access = access
        self._calls = calls

    async def PrepareTransaction(
        self, request: pb.PrepareTransactionRequest, context: Context
    ) -> pb.PrepareTransactionReply:
        async def prepare() -> pb.PrepareTransactionReply:
            caller, name = self._access.caller(context), request.transactional_id
            self._access.require(caller, "PrepareTransaction", name)
            self._access.require(caller, "PrepareTransaction/two-phase", name)
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

        return await self._calls.answer(context, request.transactional_id, prepare())
