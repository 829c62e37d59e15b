"""Before a transaction's first append the coordinator is asked, and what its answer is worth hangs on the
guard taken before.

docs/semantics.md T8, T9 and I6.  Here the coordinator is scripted; the guard is the log's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidegate.coordinator.transaction.events import AddPartitions, DescribeTransactions, PartitionsReply
from tidegate.coordinator.transaction.state import TransactionPartition
from tidegate.node.cluster.internal_topics import TRANSACTION_STATE, partition_for
from tidegate.node.cluster.peers import Peers
from tidegate.node.coordinators import transaction_enlistment
from tidegate.node.coordinators.transaction_coordination import TransactionCoordination
from tidegate.node.coordinators.transaction_enlistment import RETRIED, TransactionEnlistment
from tidegate.node.handlers.transactions import add_partitions_to_txn
from tidegate.node.serving.broker import Broker
from tidegate.node.serving.requests import Deferred, RequestContext
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.disk import RealDisk
from tidegate.storage.log.log import AppendOrigin, Log, LogConfig
from tidegate.tests.eventually import eventually
from tidegate.tests.permissions import ALL_ALLOWED
from tidegate.wire import codec
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import ControlType, NewRecord, encode_batch, encode_marker

KEY = ("flights", 0)
Codes = dict[tuple[str, int], ErrorCode]


class FastClock(SystemClock):
    """The pauses between two questions take no time, but count."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, delay_s: float) -> None:
        self.now += delay_s
        await asyncio.sleep(0)


class Coordinator:
    """Answers on this node or, as a peer, on another one, from a script of codes; the last one stays."""

    def __init__(self, *codes: ErrorCode, local: bool = True) -> None:
        self.codes = list(codes)
        self.asked: list[Any] = []
        self.clock = FastClock()
        self.leader = 1 if local else 2
        count = 4
        partitions = {n: SimpleNamespace(leader=self.leader) for n in range(count)}
        flights = SimpleNamespace(partitions=dict.fromkeys(range(5)))
        topics = {TRANSACTION_STATE: SimpleNamespace(partitions=partitions), "flights": flights}
        self.topics = topics
        peers = cast(Peers, SimpleNamespace(peer=lambda node_id: self))
        self.enlistment = TransactionEnlistment(1, cast(Any, self), cast(Any, self), peers, self.clock)
        self.before: Callable[[], None] = lambda: None

    async def ensure_internal_topic(self, name: str) -> Any:
        """Created at its first use, with a coordinator that knows no transactional id."""
        if name not in self.topics:
            self.topics[name] = SimpleNamespace(
                partitions={n: SimpleNamespace(leader=self.leader) for n in range(4)}
            )
            self.codes = [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        return self.topics[name]

    def _next(self) -> ErrorCode:
        return self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]

    def refusals(self, wanted: Collection[tuple[str, int]]) -> Codes:
        cluster = SimpleNamespace(state=SimpleNamespace(topics=self.topics))
        return TransactionCoordination.refusals(cast(Any, SimpleNamespace(_cluster=cluster)), wanted)

    def partition(self, topic: str, index: int) -> TransactionPartition:
        return TransactionPartition(topic, index, None)

    async def ask(self, transactional_id: str, event: AddPartitions | DescribeTransactions) -> Any:
        self.asked.append(event)
        code = self._next()
        if isinstance(event, DescribeTransactions):
            if code is not ErrorCode.NONE:
                raise KafkaError(code, "not here")
            return SimpleNamespace(metadata=SimpleNamespace(producer_id=7))
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            raise KafkaError(code, "elsewhere")
        return PartitionsReply(dict.fromkeys(event.partitions, code))

    async def request(self, api_key: ApiKey, version: int, fields: dict[str, Any], timeout_s: float) -> Any:
        self.asked.append(fields)
        code = self._next()
        if code is ErrorCode.NETWORK_EXCEPTION:
            raise KafkaError(code, "gone")
        assert (api_key, version) == (ApiKey.ADD_PARTITIONS_TO_TXN, 5)
        topics = [
            SimpleNamespace(
                name=topic["name"],
                results_by_partition=[
                    SimpleNamespace(partition_index=i, partition_error_code=code) for i in topic["partitions"]
                ],
            )
            for transaction in fields["transactions"]
            for topic in transaction["topics"]
        ]
        return SimpleNamespace(error_code=0, results_by_transaction=[SimpleNamespace(topic_results=topics)])

    async def exchange(
        self,
        api_key: ApiKey,
        version: int,
        body: list[bytes | memoryview],
        decode: Callable[[memoryview], Any],
        timeout_s: float,
    ) -> Any:
        """The answer's own bytes, about a transactional id that has had no transaction yet."""
        assert api_key is ApiKey.DESCRIBE_TRANSACTIONS
        self.asked.append(body)
        state = {
            "error_code": self._next(), "transactional_id": "tid", "transaction_state": "Empty",
            "transaction_timeout": 60000, "transaction_start_time": -1, "producer_id": 7,
            "producer_epoch": 0, "topics": [],
        }  # fmt: skip
        answer = codec.response(api_key, version, {"transaction_states": [state]})
        return decode(memoryview(codec.response_header(api_key, version, 1) + answer))

    async def enlist(self, *, verify_only: bool = False) -> ErrorCode:
        codes: Codes = await self.enlistment.ask(
            "tid", 7, 0, [KEY], verify_only=verify_only, before_asking=lambda: self.before()
        )
        assert set(codes) == {KEY}
        return codes[KEY]


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTION_ABORTABLE])
async def test_a_final_answer_is_passed_on(local: bool, code: ErrorCode) -> None:
    coordinator = Coordinator(code, local=local)
    assert await coordinator.enlist() is code
    assert len(coordinator.asked) == 1


@pytest.mark.parametrize("local", [True, False])
async def test_passing_trouble_is_asked_again_until_there_is_an_answer(local: bool) -> None:
    passing = ErrorCode.NOT_COORDINATOR if local else ErrorCode.NETWORK_EXCEPTION
    coordinator = Coordinator(ErrorCode.CONCURRENT_TRANSACTIONS, passing, ErrorCode.NONE, local=local)
    assert await coordinator.enlist() is ErrorCode.NONE
    assert len(coordinator.asked) == 3


NEVER_TOLD = (RETRIED | {ErrorCode.OPERATION_NOT_ATTEMPTED}) - {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


@pytest.mark.parametrize("code", sorted(NEVER_TOLD))
async def test_a_lasting_error_becomes_a_retriable_one(code: ErrorCode) -> None:
    coordinator = Coordinator(code)
    assert await coordinator.enlist() is ErrorCode.NOT_ENOUGH_REPLICAS
    assert ErrorCode.NOT_ENOUGH_REPLICAS.retriable


async def test_a_topic_deleted_while_the_question_repeats_is_not_enlisted() -> None:
    """Without its id no node could ever know that it was deleted, and the transaction would wait for its
    marker for ever."""
    coordinator = Coordinator(ErrorCode.CONCURRENT_TRANSACTIONS)
    question = asyncio.create_task(coordinator.enlist())
    await eventually(lambda: coordinator.asked)
    del coordinator.topics["flights"]
    coordinator.codes, asked = [ErrorCode.NONE], len(coordinator.asked)
    assert await question is ErrorCode.NOT_ENOUGH_REPLICAS
    assert len(coordinator.asked) == asked


async def test_a_missing_coordinator_is_retried() -> None:
    coordinator = Coordinator(ErrorCode.NONE)
    coordinator.topics[TRANSACTION_STATE].partitions[partition_for("tid", 4)].leader = -1
    assert await coordinator.enlist() is ErrorCode.NOT_ENOUGH_REPLICAS
    assert coordinator.asked == []


async def test_a_partition_that_the_answer_leaves_out_is_not_taken_for_enlisted() -> None:
    coordinator = Coordinator(ErrorCode.NONE, local=False)

    async def forgetful(*_: Any) -> Any:
        return SimpleNamespace(error_code=0, results_by_transaction=[])

    coordinator.request = forgetful  # type: ignore[assignment]
    assert await coordinator.enlist() is ErrorCode.NOT_ENOUGH_REPLICAS


@pytest.mark.parametrize("verify_only", [True, False])
async def test_old_clients_are_verified_and_new_ones_enlisted(verify_only: bool) -> None:
    here, there = Coordinator(ErrorCode.NONE), Coordinator(ErrorCode.NONE, local=False)
    await here.enlist(verify_only=verify_only)
    await there.enlist(verify_only=verify_only)
    assert (here.asked[0].verify_only, here.asked[0].transaction_version) == (
        verify_only,
        1 if verify_only else 2,
    )
    assert there.asked[0]["transactions"][0]["verify_only"] is verify_only


@pytest.mark.parametrize("local", [True, False])
async def test_questions_of_one_transaction_that_come_together_are_one(local: bool) -> None:
    coordinator = Coordinator(ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE, local=local)
    taken: list[int] = []

    def ask(number: int, producer_epoch: int = 0) -> asyncio.Task[Codes]:
        return asyncio.create_task(
            coordinator.enlistment.ask(
                "tid",
                7,
                producer_epoch,
                [("flights", number)],
                verify_only=True,
                before_asking=lambda: taken.append(number),
            )
        )

    together = [ask(number) for number in (0, 1, 2, 1)]
    apart = ask(3, producer_epoch=1)
    answers = await asyncio.gather(*together)
    await apart
    assert [list(answer) for answer in answers] == [[("flights", number)] for number in (0, 1, 2, 1)]
    assert len(coordinator.asked) == 3, "one question and its repetition for four, and one of another epoch"
    assert sorted(taken) == [0, 0, 1, 1, 1, 1, 2, 2, 3]  # the guard of all producers, before every question
    await ask(4)
    assert len(coordinator.asked) == 4


async def test_a_question_without_askers_is_cancelled() -> None:
    coordinator = Coordinator(ErrorCode.NONE)
    gone = asyncio.create_task(coordinator.enlist())
    await asyncio.sleep(0)
    gone.cancel()
    assert await coordinator.enlist() is ErrorCode.NONE
    assert len(coordinator.asked) == 1
    with pytest.raises(asyncio.CancelledError):
        await gone
    first, second = asyncio.create_task(coordinator.enlist()), asyncio.create_task(coordinator.enlist())
    await asyncio.sleep(0)
    first.cancel()
    assert await second is ErrorCode.NONE, "one of two that asked together went away"


async def test_the_guard_is_taken_before_every_question() -> None:
    coordinator = Coordinator(
        ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE
    )
    order: list[int] = []
    coordinator.before = lambda: order.append(len(coordinator.asked))
    await coordinator.enlist()
    assert order == [0, 1, 2]


class TestGuard:
    """The promise with a real log: the marker of the previous transaction comes while the coordinator is
    asked."""

    @pytest.fixture
    def log(self, tmp_path: Path) -> Log:
        return Log.open(
            RealDisk(), tmp_path / "flights-0", topic="flights", partition=0, config=LogConfig(), clean=False,
            recovery_point=0,
        )  # fmt: skip

    @staticmethod
    def _batch(sequence: int) -> bytearray:
        records = [NewRecord(None, b"v", (), 1)]
        return bytearray(
            encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True)
        )

    def _append(self, log: Log, sequence: int, guard: Any) -> None:
        log.append_leader(
            self._batch(sequence), leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=1, guard=guard
        )

    def _marker(self, log: Log) -> None:
        marker = bytearray(encode_marker(ControlType.COMMIT, 7, 0, 0, 1))
        log.append_leader(
            marker, leader_epoch=0, origin=AppendOrigin.COORDINATOR, now_ms=1, transaction_version=0
        )

    async def _next_transaction(self, log: Log, *, again: bool) -> None:
        """One transaction is open; the next one's first append asks while the marker of the first is on its
        way."""
        self._append(log, 0, log.producers.start_verification(7, 0, 0))
        coordinator = Coordinator(ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE)
        guards: list[Any] = []

        def before() -> None:
            # after the first refusal the marker arrives, which ends the previous transaction
            if coordinator.asked:
                if len(coordinator.asked) == 1:
                    self._marker(log)
                if not again:
                    return
            guards[:] = [log.producers.start_verification(7, 0, 1)]

        coordinator.before = before
        assert await coordinator.enlist() is ErrorCode.NONE
        self._append(log, 1, guards[0])

    async def test_the_next_transaction_begins_with_the_guard_of_the_last_question(self, log: Log) -> None:
        await self._next_transaction(log, again=True)
        assert log.producers.has_open_transaction(7, 0)
        log.close(clean=False)

    async def test_with_the_guard_of_the_first_question_alone_it_is_refused(self, log: Log) -> None:
        """Ablation: `before_asking` only once.  The marker took that guard away, and rightly so."""
        with pytest.raises(KafkaError) as refused:
            await self._next_transaction(log, again=False)
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE
        assert not log.producers.has_open_transaction(7, 0)
        log.close(clean=False)

    async def test_an_append_without_any_guard_opens_no_transaction(self, log: Log) -> None:
        """A late batch of an ended transaction must not open one that no producer would ever end."""
        with pytest.raises(KafkaError) as refused:
            self._append(log, 0, None)
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE
        log.close(clean=False)


@pytest.mark.parametrize("local", [True, False])
async def test_before_the_first_transaction_an_id_is_answered_as_unknown(local: bool) -> None:
    """The client would retry for ever: without the state topic no coordinator could answer that the id is
    unknown."""
    coordinator = Coordinator(ErrorCode.NONE, local=local)
    del coordinator.topics[TRANSACTION_STATE]
    assert await coordinator.enlist() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert TRANSACTION_STATE in coordinator.topics


async def test_enlistments_of_one_leader_do_not_wait_for_each_other() -> None:
    """All of a leader's questions come on one connection, and every answer waits for a commit."""
    asked: list[str] = []
    committed = asyncio.Event()

    async def ask(transactional_id: str, event: AddPartitions) -> PartitionsReply:
        asked.append(transactional_id)
        await committed.wait()
        return PartitionsReply(dict.fromkeys(event.partitions, ErrorCode.NONE))

    transactions = SimpleNamespace(refusals=lambda wanted: {}, partition=TransactionPartition, ask=ask)
    broker = cast(Broker, SimpleNamespace(transactions=transactions, permissions=ALL_ALLOWED))
    topics = [SimpleNamespace(name="flights", partitions=[0])]
    answers = []
    for name in ("first", "second"):
        question = SimpleNamespace(
            transactional_id=name, producer_id=7, producer_epoch=0, topics=topics, verify_only=True
        )
        outcome = await add_partitions_to_txn.handle(
            broker,
            _version(4),
            SimpleNamespace(transactions=[question]),  # type: ignore[arg-type]
        )
        assert isinstance(outcome, Deferred), "the connection goes on with the next request"
        answers.append(asyncio.ensure_future(outcome.answer))
    await asyncio.sleep(0)
    assert asked == ["first", "second"]
    committed.set()
    for name, answer in zip(asked, answers, strict=True):
        (result,) = cast(dict[str, Any], await answer)["results_by_transaction"]
        assert result["transactional_id"] == name


def _version(number: int) -> RequestContext:
    return RequestContext(ApiKey.ADD_PARTITIONS_TO_TXN, number, 1, "", "127.0.0.1")


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize(
    ("producer_id", "codes", "wanted"),
    [
        (7, [ErrorCode.NONE], ErrorCode.NONE),
        (8, [ErrorCode.NONE], ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (7, [ErrorCode.TRANSACTIONAL_ID_NOT_FOUND], ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (7, [ErrorCode.NOT_COORDINATOR, ErrorCode.NONE], ErrorCode.NONE),
        (7, [ErrorCode.COORDINATOR_NOT_AVAILABLE], ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
async def test_a_producer_id_belongs_to_the_id_that_its_coordinator_names(
    local: bool, producer_id: int, codes: list[ErrorCode], wanted: ErrorCode
) -> None:
    coordinator = Coordinator(*codes, local=local)
    assert await coordinator.enlistment.confirm_owner("tid", producer_id) is wanted
    owner = coordinator.enlistment.owner_of(producer_id)
    assert owner == ("tid" if wanted is ErrorCode.NONE else None)


async def test_the_owners_of_producer_ids_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_enlistment, "OWNERS_MAX", 0)
    coordinator = Coordinator(ErrorCode.NONE)
    assert await coordinator.enlistment.confirm_owner("tid", 7) is ErrorCode.NONE
    assert coordinator.enlistment.owner_of(7) is None
