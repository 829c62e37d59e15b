"""Before a transaction's first append at a partition, the partition's leader adds or verifies it at the
transaction coordinator.

KIP-890.  Transactions v2 (the client sends its transactional id with Produce v12): the leader *enlists* the
partition.  An older client has enlisted it with AddPartitionsToTxn; the leader *verifies* that, so that a
delayed batch cannot open a transaction that no coordinator will end (docs/semantics.md T8).  The leader takes
a guard before it asks, and the append checks that the guard is still the partition's: the coordinator's
answer alone allows nothing.

The leader merges questions about one transaction that come together into one request: clients send a Produce
for each partition, and every enlistment costs the coordinator a record that it must commit.

With an authorizer the leader asks first to which transactional id a producer id belongs (`confirm_owner`): a
client may write with its own transactional id alone, so it can neither add to the transaction of another one
nor fence it.  Kafka asks only when a transaction begins, and then about the epoch that the client names.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

from ...coordinator.transaction.events import AddPartitions, DescribeTransactions
from ...runtime import logs
from ...runtime.clock import Clock
from ...wire import codec
from ...wire.api import ApiKey
from ...wire.describe_transactions import decode_described_transactions
from ...wire.errors import ErrorCode, KafkaError
from ..cluster.internal_topics import TRANSACTION_STATE, transaction_partition_for
from ..cluster.peers import Peers
from ..cluster.topic_creation import TopicCreation
from .transaction_coordination import TransactionCoordination

log = logs.get(__name__)

ENLIST_VERSION: Final = 5
DESCRIBE_VERSION: Final = 0
OWNERS_MAX: Final = 100_000
ANSWER_TIMEOUT_S: Final = 5.0
# The coordinator rejects the producer's next transaction until the markers of the last one are written:
# mostly milliseconds.
RETRY_S_FIRST: Final = 0.002
RETRY_S_MAX: Final = 0.05
# How long the leader repeats the request, before the client gets an error and backs off.
PATIENCE_S: Final = 2.0

# The coordinator moved, loads, or still completes the previous transaction: the leader asks again.
RETRIED: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)

Partition = tuple[str, int]
Transaction = tuple[str, int, int, bool]
"""Transactional id, producer id, producer epoch, and whether the coordinator only verifies."""


class _Question:
    """One request to the coordinator: partitions of one transaction, and how many Produce requests wait for
    its answer."""

    def __init__(self) -> None:
        self.partitions: dict[Partition, None] = {}
        self.before_asking: list[Callable[[], None]] = []
        self.answer: asyncio.Task[dict[Partition, ErrorCode]] | None = None
        self.waiting = 0


class TransactionEnlistment:
    """Asks the coordinator of a transaction, on this node or another one."""

    def __init__(
        self,
        node_id: int,
        topics: TopicCreation,
        transactions: TransactionCoordination,
        peers: Peers,
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._topics = topics
        self._transactions = transactions
        self._peers = peers
        self._clock = clock
        self._gathering: dict[Transaction, _Question] = {}
        self._owners: OrderedDict[int, str] = OrderedDict()

    def owner_of(self, producer_id: int) -> str | None:
        """The transactional id that a coordinator named for this producer id, as far as this node knows.  It
        never becomes another one."""
        return self._owners.get(producer_id)

    async def confirm_owner(self, transactional_id: str, producer_id: int) -> ErrorCode:
        """NONE when the producer id is the transactional id's, as its coordinator says.  Repeats the question
        as `ask` does."""
        deadline, pause_s = self._clock.monotonic() + PATIENCE_S, RETRY_S_FIRST
        while (code := await self._ask_owner(transactional_id, producer_id)) in RETRIED:
            if self._clock.monotonic() >= deadline:
                return ErrorCode.NOT_ENOUGH_REPLICAS
            await self._clock.sleep(pause_s)
            pause_s = min(RETRY_S_MAX, 2 * pause_s)
        return code

    async def _ask_owner(self, transactional_id: str, producer_id: int) -> ErrorCode:
        try:
            node_id = await self._coordinator_of(transactional_id)
            if node_id == self._node_id:
                question = DescribeTransactions(transactional_id)
                found = (await self._transactions.ask(transactional_id, question)).metadata.producer_id
            else:
                fields = {"transactional_ids": [transactional_id]}
                (state,) = await self._peers.peer(node_id).exchange(
                    ApiKey.DESCRIBE_TRANSACTIONS,
                    DESCRIBE_VERSION,
                    [codec.request(ApiKey.DESCRIBE_TRANSACTIONS, DESCRIBE_VERSION, fields)],
                    lambda frame: decode_described_transactions(DESCRIBE_VERSION, bytes(frame)),
                    ANSWER_TIMEOUT_S,
                )
                if state.error_code is not ErrorCode.NONE:
                    raise KafkaError(state.error_code, transactional_id)
                found = state.producer_id
        except KafkaError as error:
            unknown = error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING if unknown else error.code
        if found != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        self._owners[producer_id] = transactional_id
        if len(self._owners) > OWNERS_MAX:
            self._owners.popitem(last=False)
        return ErrorCode.NONE

    async def ask(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[Partition],
        *,
        verify_only: bool,
        before_asking: Callable[[], None],
    ) -> dict[Partition, ErrorCode]:
        """One code for each partition.  Repeats the request for `PATIENCE_S` after an error in `RETRIED`; the
        code is then NOT_ENOUGH_REPLICAS, which every client retries.

        `before_asking` takes the guards and runs before every repetition: when the marker of the producer's
        previous transaction arrives meanwhile, the partition drops the guards that were taken before.  It
        must not raise, because other Produce requests may share this question.
        """
        transaction = transactional_id, producer_id, producer_epoch, verify_only
        question = self._gathering.setdefault(transaction, _Question())
        question.partitions.update(dict.fromkeys(partitions))
        question.before_asking.append(before_asking)
        if question.answer is None:
            question.answer = asyncio.create_task(self._answer(transaction, question))
        question.waiting += 1
        try:
            codes = await asyncio.shield(question.answer)
        finally:
            question.waiting -= 1
            # the connections of all requests that share it are closed
            if not question.waiting and not question.answer.done():
                question.answer.cancel()
                if self._gathering.get(transaction) is question:
                    del self._gathering[transaction]
        return {partition: codes[partition] for partition in partitions}

    async def _answer(self, transaction: Transaction, question: _Question) -> dict[Partition, ErrorCode]:
        await asyncio.sleep(0)  # requests from the same read of the network join this question
        del self._gathering[transaction]
        transactional_id, producer_id, producer_epoch, verify_only = transaction
        partitions = list(question.partitions)
        deadline, pause_s = self._clock.monotonic() + PATIENCE_S, RETRY_S_FIRST
        while True:
            for before_asking in question.before_asking:
                before_asking()
            codes = await self._ask_once(
                transactional_id, producer_id, producer_epoch, partitions, verify_only
            )
            retried = {code for code in codes.values() if code in RETRIED}
            if not retried:
                return {p: _code_for_producer(code) for p, code in codes.items()}
            if self._clock.monotonic() >= deadline:
                log.info(
                    "transaction_not_enlisted",
                    transactional_id=transactional_id,
                    codes=[code.name for code in retried],
                )
                return {p: _code_for_producer(code) for p, code in codes.items()}
            await self._clock.sleep(pause_s)
            pause_s = min(RETRY_S_MAX, 2 * pause_s)

    async def _ask_once(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[Partition],
        verify_only: bool,
    ) -> dict[Partition, ErrorCode]:
        try:
            node_id = await self._coordinator_of(transactional_id)
            if node_id == self._node_id:
                transactions = self._transactions
                refusals = transactions.refusals(partitions)  # a topic may be deleted between two repetitions
                if refusals:
                    return refusals
                event = AddPartitions(
                    transactional_id,
                    producer_id,
                    producer_epoch,
                    tuple(transactions.partition(topic, index) for topic, index in partitions),
                    transaction_version=1 if verify_only else 2,
                    verify_only=verify_only,
                )
                reply = await transactions.ask(transactional_id, event)
                return {(p.topic, p.partition): code for p, code in reply.errors.items()}
            response = await self._peers.peer(node_id).request(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                ENLIST_VERSION,
                _fields(transactional_id, producer_id, producer_epoch, partitions, verify_only),
                ANSWER_TIMEOUT_S,
            )
            return _codes(response, partitions)
        except KafkaError as error:
            return dict.fromkeys(partitions, error.code)

    async def _coordinator_of(self, transactional_id: str) -> int:
        """Creates the state topic when it is missing, as FindCoordinator does: only a coordinator may answer
        that it does not know the transactional id, and this node's metadata may be older than the
        producer's."""
        topic = await self._topics.ensure_internal_topic(TRANSACTION_STATE)
        partition = topic.partitions.get(transaction_partition_for(transactional_id, len(topic.partitions)))
        if partition is None or partition.leader < 0:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{transactional_id!r} has no coordinator at the moment"
            )
        return partition.leader


def _code_for_producer(code: ErrorCode) -> ErrorCode:
    """The code for the producer: NOT_ENOUGH_REPLICAS, which every client retries, for an error that may pass,
    and for a partition that the coordinator did not add because of another one."""
    return (
        ErrorCode.NOT_ENOUGH_REPLICAS
        if code in RETRIED or code is ErrorCode.OPERATION_NOT_ATTEMPTED
        else code
    )


def _fields(
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Sequence[Partition],
    verify_only: bool,
) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return {
        "transactions": [
            {
                "transactional_id": transactional_id,
                "producer_id": producer_id,
                "producer_epoch": producer_epoch,
                "verify_only": verify_only,
                "topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()],
            }
        ]
    }


def _codes(response: Any, partitions: Sequence[Partition]) -> dict[Partition, ErrorCode]:
    if response.error_code != ErrorCode.NONE:
        return dict.fromkeys(partitions, ErrorCode.from_wire(int(response.error_code)))
    # of a partition that the answer leaves out: retried
    codes: dict[Partition, ErrorCode] = dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
    for result in response.results_by_transaction:
        for topic in result.topic_results:
            for partition in topic.results_by_partition:
                codes[topic.name, partition.partition_index] = ErrorCode.from_wire(
                    int(partition.partition_error_code)
                )
    return codes
