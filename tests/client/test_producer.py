"""The producer on the wire: resending, transactions under TV1 and TV2, and every way in which the end of one
can go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tidegate.client.connecting.errors import (
    AbortableError,
    BufferExhausted,
    CommitOutcomeUnknown,
    ConnectionFailed,
    DeliveryTimeout,
    FatalError,
    ProducerFenced,
    RequestError,
    TransactionTimedOut,
)
from tidegate.client.producing.accumulator import Accumulator
from tidegate.client.producing.partitioner import partition_of_key
from tidegate.client.producing.producer import GroupMetadata, Producer
from tidegate.client.producing.transaction_manager import State
from tidegate.client.requests.transaction_requests import Identity
from tidegate.tests.eventually import eventually
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.produce import ProduceResponse, ProduceResponsePartition, encode_produce_response
from tidegate.wire.records import Compression, decode_batch, parse_header


def transactional(broker: Any, **settings: Any) -> Producer:
    return Producer(broker.bootstrap, transactional_id="tx", linger_ms=0, **settings)


async def test_records_arrive_once_and_in_order_although_answers_are_lost(
    broker: Any, misbehaviour: Any
) -> None:
    broker.script(
        ApiKey.PRODUCE,
        misbehaviour.NORMAL,
        misbehaviour.DO_THEN_DROP,
        misbehaviour.DROP,
        misbehaviour.DO_THEN_DROP,
    )
    async with Producer(broker.bootstrap, linger_ms=0, batch_bytes=200) as producer:
        futures = [await producer.send("t", b"%03d" % number, partition=0) for number in range(100)]
        await producer.flush()
    assert [value for _, value in broker.logs["t", 0]] == [b"%03d" % number for number in range(100)]
    assert [future.result().offset for future in futures] == list(range(100))


async def test_without_idempotence_one_batch_at_a_time_and_no_sequence(broker: Any) -> None:
    async with Producer(broker.bootstrap, linger_ms=0, idempotent=False, acks=1, batch_bytes=100) as producer:
        for number in range(20):
            await producer.send("t", b"%d" % number, partition=0)
    assert len(broker.logs["t", 0]) == 20
    headers = [parse_header(seen.body.topics[0][1][0][1]) for seen in broker.sent(ApiKey.PRODUCE)]
    assert {header.base_sequence for header in headers} == {-1}


async def test_a_record_goes_where_its_key_its_caller_or_the_partitioner_says(broker: Any) -> None:
    """By default where every Kafka client would put the key; records without one stay together; an explicit
    partition wins."""
    async with Producer(broker.bootstrap, linger_ms=0) as producer:
        keyed = [await producer.send_and_wait("t", b"v", key=b"key-%d" % number) for number in range(20)]
        assert [sent.partition for sent in keyed] == [
            partition_of_key(b"key-%d" % number, 3) for number in range(20)
        ]
        assert (await producer.send_and_wait("t", b"v", key=b"key-0", partition=2)).partition == 2
    async with Producer(broker.bootstrap, linger_ms=10_000) as producer:
        together = [await producer.send("t", b"v") for _ in range(20)]
        await producer.flush()
        assert len({sent.result().partition for sent in together}) == 1

    def by_value(topic: str, key: bytes | None, value: bytes | None, partitions: Sequence[int]) -> int:
        assert (topic, key, list(partitions)) == ("t", b"k", [0, 1, 2])
        return int(value or b"0")

    async with Producer(broker.bootstrap, linger_ms=0, partitioner=by_value) as producer:
        for number in (2, 0, 1):
            assert (await producer.send_and_wait("t", b"%d" % number, key=b"k")).partition == number
        with pytest.raises(RequestError, match="not 7"):
            await producer.send("t", b"7", key=b"k")


@pytest.mark.parametrize("codec", [codec.name.lower() for codec in Compression])
async def test_every_codec_arrives_readable(broker: Any, codec: str) -> None:
    async with Producer(broker.bootstrap, compression=codec) as producer:
        await producer.send_and_wait("t", b"x" * 1000, key="k", headers={"a": b"1"}, timestamp_ms=5)
    (_topic, ((_, records),)) = broker.sent(ApiKey.PRODUCE)[0].body.topics[0]
    assert parse_header(records).compression is Compression[codec.upper()]
    (record,) = decode_batch(records)
    assert (record.key, record.value, record.timestamp_ms, tuple(record.headers)) == (
        b"k",
        b"x" * 1000,
        5,
        (("a", b"1"),),
    )


async def test_tv2_sends_no_add_partitions_and_uses_the_epoch_that_end_txn_gave(broker: Any) -> None:
    async with transactional(broker) as producer:
        for _ in range(3):
            async with producer.transaction():
                await producer.send("t", b"v")
        assert producer.identity == Identity(7, 3)
    assert broker.sent(ApiKey.ADD_PARTITIONS_TO_TXN) == []
    assert {seen.version for seen in broker.sent(ApiKey.PRODUCE)} == {12}
    assert {seen.version for seen in broker.sent(ApiKey.END_TXN)} == {5}
    assert {seen.body.transactional_id for seen in broker.sent(ApiKey.PRODUCE)} == {"tx"}
    assert [committed for _, _, committed in broker.outcomes] == [True] * 3


async def test_tv2_is_gated_on_the_finalised_feature_and_not_on_api_versions(broker: Any) -> None:
    broker.transaction_version = 1  # the API versions would allow TV2
    async with transactional(broker) as producer:
        async with producer.transaction():
            await producer.send("t", b"v", partition=1)
        assert producer.transaction_version == 1
    kinds = [seen.key for seen in broker.seen]
    assert (
        kinds.index(ApiKey.ADD_PARTITIONS_TO_TXN) < kinds.index(ApiKey.PRODUCE) < kinds.index(ApiKey.END_TXN)
    )
    assert max(seen.version for seen in broker.sent(ApiKey.PRODUCE)) < 12
    assert max(seen.version for seen in broker.sent(ApiKey.END_TXN)) < 5


async def test_an_empty_transaction_costs_no_request(broker: Any) -> None:
    async with transactional(broker) as producer, producer.transaction():
        pass
    assert broker.sent(ApiKey.END_TXN) == []


async def test_a_failing_body_aborts_and_shows_the_failure(broker: Any) -> None:
    async with transactional(broker) as producer:
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await producer.send_and_wait("t", b"v")
                raise ZeroDivisionError
        assert producer.state is State.READY
    assert [committed for _, _, committed in broker.outcomes] == [False]


BUSY = {
    "results_by_topic_v3_and_below": [
        {
            "name": "t",
            "results_by_partition": [
                {"partition_index": 0, "partition_error_code": ErrorCode.CONCURRENT_TRANSACTIONS}
            ],
        }
    ]
}


async def test_under_tv1_a_partition_is_enlisted_once_for_many_records(broker: Any) -> None:
    """An enlistment too many may come behind the end of its transaction, and so begin a transaction that no
    client knows of."""
    broker.transaction_version = 1
    async with transactional(broker, batch_bytes=100) as producer:
        broker.script(ApiKey.ADD_PARTITIONS_TO_TXN, BUSY, BUSY)
        async with producer.transaction():
            for number in range(20):
                await producer.send("t", b"%030d" % number, partition=0)
                await asyncio.sleep(0.002)  # another turn of the sender
    assert len(broker.logs["t", 0]) == 20
    assert len(broker.sent(ApiKey.ADD_PARTITIONS_TO_TXN)) == 3


async def test_an_enlistment_that_is_still_refused_ends_with_its_transaction(broker: Any) -> None:
    broker.transaction_version = 1
    async with transactional(broker) as producer:
        broker.script(ApiKey.ADD_PARTITIONS_TO_TXN, *[BUSY] * 100)
        await producer.begin()
        await producer.send("t", b"v", partition=0)
        await eventually(lambda: broker.sent(ApiKey.ADD_PARTITIONS_TO_TXN))
        await producer.abort()
        asked = len(broker.sent(ApiKey.ADD_PARTITIONS_TO_TXN))
        await asyncio.sleep(0.3)  # long enough for two more
        assert len(broker.sent(ApiKey.ADD_PARTITIONS_TO_TXN)) == asked
        broker._scripts.clear()
        async with producer.transaction():
            await producer.send("t", b"w", partition=0)
    assert [value for _, value in broker.logs["t", 0]] == [b"w"]


async def test_a_commit_whose_answer_is_lost_is_repeated_and_recognised(
    broker: Any, misbehaviour: Any
) -> None:
    async with transactional(broker) as producer:
        broker.script(ApiKey.END_TXN, misbehaviour.DO_THEN_DROP)
        async with producer.transaction():
            await producer.send("t", b"v")
        assert producer.state is State.READY
    assert [committed for _, _, committed in broker.outcomes] == [True]
    assert len(broker.sent(ApiKey.END_TXN)) == 2


async def test_an_unknown_outcome_can_be_learnt_by_committing_again(broker: Any, misbehaviour: Any) -> None:
    async with transactional(broker, max_block_s=0.3, request_timeout_s=0.2) as producer:
        await producer.begin()
        await producer.send_and_wait("t", b"v")
        broker.script(ApiKey.END_TXN, misbehaviour.DO_THEN_DROP, *[misbehaviour.DROP] * 10)
        with pytest.raises(CommitOutcomeUnknown, match="commit\\(\\) again"):
            await producer.commit()
        broker._scripts.clear()
        await producer.commit()
        assert producer.state is State.READY
    assert [committed for _, _, committed in broker.outcomes] == [True]


async def test_after_an_unknown_outcome_the_next_transaction_has_a_new_epoch(
    broker: Any, misbehaviour: Any
) -> None:
    """KAFKA-17754: else a late copy of the old EndTxn could end the next transaction."""
    async with transactional(broker, max_block_s=0.3, request_timeout_s=0.2) as producer:
        await producer.begin()
        await producer.send_and_wait("t", b"v")
        epoch = producer.identity.producer_epoch
        broker.script(ApiKey.END_TXN, *[misbehaviour.DROP] * 20)
        with pytest.raises(CommitOutcomeUnknown):
            await producer.commit()
        broker._scripts.clear()
        await producer.begin()
        assert producer.identity.producer_epoch > epoch
        init = broker.sent(ApiKey.INIT_PRODUCER_ID)[-1]
        assert (init.body.producer_id, init.body.producer_epoch) == (7, epoch), (
            "asked for with the old identity (KIP-360)"
        )
        await producer.send("t", b"w")
        await producer.commit()
    assert [committed for _, _, committed in broker.outcomes] == [False, True]


async def test_a_fenced_producer_stays_fenced_after_an_unknown_outcome(
    broker: Any, misbehaviour: Any
) -> None:
    async with transactional(broker, max_block_s=0.3, request_timeout_s=0.2) as producer:
        await producer.begin()
        await producer.send_and_wait("t", b"v")
        broker.script(ApiKey.END_TXN, *[misbehaviour.DROP] * 20)
        with pytest.raises(CommitOutcomeUnknown):
            await producer.commit()
        broker._scripts.clear()
        broker.producer, broker.last_epoch = (7, 9), -1  # another one came
        with pytest.raises(ProducerFenced, match="took over"):
            await producer.begin()
        assert producer.state is State.FATAL_ERROR
        with pytest.raises(ProducerFenced):
            await producer.begin()


async def test_a_cancelled_commit_counts_as_unknown(broker: Any, misbehaviour: Any) -> None:
    async with transactional(broker) as producer:
        await producer.begin()
        await producer.send_and_wait("t", b"v")
        broker.script(ApiKey.END_TXN, misbehaviour.SILENCE)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.commit(), 0.1)
        assert producer.state is State.UNINITIALIZED
        await producer.begin()
        assert broker.sent(ApiKey.INIT_PRODUCER_ID)[-1].body.producer_epoch == 0, (
            "a new epoch, asked for with the old one"
        )


@pytest.mark.parametrize("end_error", [None, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
async def test_a_timed_out_transaction_is_not_the_end_of_the_producer(
    broker: Any, end_error: ErrorCode | None
) -> None:
    """KIP-588: the coordinator aborted and raised the epoch; InitProducerId with the old identity shows that
    no other producer took over."""
    async with transactional(broker) as producer:
        await producer.begin()
        await producer.send_and_wait("t", b"v")
        broker.last_epoch, broker.producer, broker.transaction_open, broker.last_committed = (
            0,
            (7, 1),
            False,
            False,
        )
        if end_error is not None:
            broker.script(ApiKey.END_TXN, {"error_code": end_error, "producer_id": -1, "producer_epoch": -1})
        with pytest.raises(TransactionTimedOut):
            await producer.commit()
        assert producer.state is State.ABORTABLE_ERROR
        await producer.abort()
        async with producer.transaction():
            await producer.send("t", b"again")
    assert [committed for _, _, committed in broker.outcomes] == [True]


async def test_a_fenced_commit_is_fatal(broker: Any) -> None:
    async with transactional(broker) as producer:
        await producer.begin()
        await producer.send_and_wait("t", b"v")
        broker.producer, broker.last_epoch = (7, 5), -1
        with pytest.raises(ProducerFenced):
            await producer.commit()
        assert producer.state is State.FATAL_ERROR
        with pytest.raises(ProducerFenced):
            await producer.send("t", b"v")


async def test_a_lost_record_makes_the_transaction_abortable_and_commit_refuses(broker: Any) -> None:
    def refuse(body: Any) -> bytes:
        (topic, ((partition, _),)) = body.topics[0]
        answer = ProduceResponsePartition(partition, ErrorCode.TRANSACTION_ABORTABLE)
        return encode_produce_response(12, ProduceResponse([(topic, [answer])]))

    async with transactional(broker) as producer:
        await producer.begin()
        broker.script(ApiKey.PRODUCE, refuse)
        await producer.send("t", b"v")
        with pytest.raises(AbortableError, match="run it again"):
            await producer.commit()
        with pytest.raises(AbortableError, match="call abort"):
            await producer.send("t", b"w")
        await producer.abort()
        async with producer.transaction():
            await producer.send("t", b"v")
    assert broker.outcomes[-1][2] is True


async def test_offsets_travel_with_the_transaction_and_the_fence_of_the_group(broker: Any) -> None:
    async with transactional(broker) as producer, producer.transaction():
        await producer.send_offsets_to_transaction({("in", 2): 41}, GroupMetadata("g", 3, "me"))
    (seen,) = broker.sent(ApiKey.TXN_OFFSET_COMMIT)
    assert (seen.version, seen.body.generation_id, seen.body.member_id) == (5, 3, "me")
    assert broker.offsets == {("in", 2): 41}
    assert broker.sent(ApiKey.ADD_OFFSETS_TO_TXN) == []
    assert [committed for _, _, committed in broker.outcomes] == [True]


async def test_offsets_of_a_removed_member_make_the_transaction_abortable(broker: Any) -> None:
    def refuse(body: Any) -> dict[str, Any]:
        part = {"partition_index": 2, "error_code": ErrorCode.ILLEGAL_GENERATION}
        return {"topics": [{"name": "in", "partitions": [part]}]}

    async with transactional(broker) as producer:
        broker.script(ApiKey.TXN_OFFSET_COMMIT, refuse)
        with pytest.raises(AbortableError, match="rebalanced"):
            async with producer.transaction():
                await producer.send_offsets_to_transaction({("in", 2): 41}, GroupMetadata("g", 3, "me"))
        assert producer.state is State.READY
    assert broker.offsets == {}


async def test_a_moving_coordinator_is_followed(broker: Any) -> None:
    async with transactional(broker) as producer:
        code = {"error_code": ErrorCode.NOT_COORDINATOR, "producer_id": -1, "producer_epoch": -1}
        busy = {"error_code": ErrorCode.CONCURRENT_TRANSACTIONS, "producer_id": -1, "producer_epoch": -1}
        broker.script(ApiKey.END_TXN, code, busy)
        async with producer.transaction():
            await producer.send("t", b"v")
    assert len(broker.sent(ApiKey.FIND_COORDINATOR)) == 2
    assert len(broker.sent(ApiKey.END_TXN)) == 3


def too_large(body: Any) -> bytes:
    answers = [
        (
            topic,
            [ProduceResponsePartition(partition, ErrorCode.MESSAGE_TOO_LARGE) for partition, _ in batches],
        )
        for topic, batches in body.topics
    ]
    return encode_produce_response(12, ProduceResponse(answers))


async def test_a_batch_that_is_too_large_for_the_broker_is_halved_until_it_fits(broker: Any) -> None:
    async with Producer(broker.bootstrap, linger_ms=20) as producer:
        broker.script(ApiKey.PRODUCE, too_large, too_large)
        for number in range(8):
            await producer.send("t", b"%d" % number, partition=0)
        await producer.flush()
    assert [value for _, value in broker.logs["t", 0]] == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize(
    ("headers", "error"),
    [([("\ud800", b"v")], UnicodeEncodeError), ([("n", "text")], TypeError), ([(b"n", b"v")], TypeError)],
)
async def test_a_header_that_cannot_be_encoded_is_refused_and_nothing_else_fails(
    broker: Any, headers: Any, error: type[Exception]
) -> None:
    async with Producer(broker.bootstrap) as producer:
        before = await producer.send("t", b"before", partition=0)
        with pytest.raises(error):
            await producer.send("t", b"refused", partition=0, headers=headers)
        after = await producer.send("t", b"after", partition=0, headers=[("\N{SNOWMAN}" * 9, None)])
        await producer.flush()
    assert before.result().offset < after.result().offset
    assert [value for _, value in broker.logs["t", 0]] == [b"before", b"after"]


async def test_a_defect_while_an_answer_is_settled_fails_every_record(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers come to a callback: what it raises would go to the event loop alone, and the batch would stay
    in flight for ever."""

    def split(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(Accumulator, "split", split)
    async with asyncio.timeout(20), Producer(broker.bootstrap, linger_ms=60_000) as producer:
        broker.script(ApiKey.PRODUCE, *[too_large] * 6)
        futures = [await producer.send("t", b"v", partition=number % 3) for number in range(6)]
        await producer.flush()
        for future in futures:
            with pytest.raises(FatalError, match=r"the producer's sender failed: ZeroDivisionError"):
                await future
        with pytest.raises(FatalError, match="sender failed"):
            await producer.send("t", b"v", partition=0)


async def test_an_answer_that_is_cut_off_counts_as_lost(broker: Any) -> None:
    def cut(size: int) -> Callable[[Any], bytes]:
        return lambda body: too_large(body)[:size]

    async with Producer(broker.bootstrap, linger_ms=0) as producer:
        broker.script(ApiKey.PRODUCE, cut(0), cut(3), cut(12), cut(-1))
        await producer.send_and_wait("t", b"v", partition=0)
    assert [value for _, value in broker.logs["t", 0]] == [b"v"]
    assert len(broker.sent(ApiKey.PRODUCE)) == 5


async def test_delivery_timeout_is_raised_and_the_producer_continues(broker: Any, misbehaviour: Any) -> None:
    async with Producer(
        broker.bootstrap, linger_ms=0, delivery_timeout_s=0.3, request_timeout_s=0.2
    ) as producer:
        broker.script(ApiKey.PRODUCE, *[misbehaviour.DROP] * 50)
        future = await producer.send("t", b"v", partition=0)
        with pytest.raises(DeliveryTimeout, match="may or may not"):
            await future
        broker._scripts.clear()
        assert (await producer.send_and_wait("t", b"w", partition=0)).offset == 0
        assert len(broker.sent(ApiKey.INIT_PRODUCER_ID)) == 2, (
            "a batch of unknown fate: a new producer id, or a gap"
        )


async def test_a_full_buffer_waits_and_then_says_so(broker: Any, misbehaviour: Any) -> None:
    settings: dict[str, Any] = {"memory_bytes": 4000, "max_block_s": 0.2, "batch_bytes": 500}
    async with Producer(broker.bootstrap, linger_ms=0, delivery_timeout_s=0.5, **settings) as producer:
        broker.script(ApiKey.PRODUCE, *[misbehaviour.SILENCE] * 50)
        with pytest.raises(BufferExhausted, match="memory_bytes"):
            for _ in range(100):
                await producer.send("t", b"x" * 200, partition=0)
        broker._scripts.clear()


async def test_what_lingers_is_sent_when_a_record_has_no_room(broker: Any) -> None:
    settings: dict[str, Any] = {"memory_bytes": 4000, "max_block_s": 5.0, "batch_bytes": 10_000}
    async with Producer(broker.bootstrap, linger_ms=60_000, **settings) as producer:
        lingering = await producer.send("t", b"x" * 1500, partition=0)
        await producer.send("t", b"x" * 3000, partition=0)
        assert lingering.done()


async def test_wrong_use_is_refused_with_advice(broker: Any) -> None:
    async with transactional(broker) as producer:
        with pytest.raises(RequestError, match="begin"):
            await producer.send("t", b"v")
        with pytest.raises(RequestError, match="begin"):
            await producer.commit()
        await producer.begin()
        with pytest.raises(RequestError, match="commit"):
            await producer.begin()
        with pytest.raises(RequestError, match="0 to 2"):
            await producer.send("t", b"v", partition=9)
        with pytest.raises(RequestError, match="request_bytes_max"):
            await producer.send("t", b"x" * (2 << 20))
    async with Producer(broker.bootstrap, max_block_s=0.2) as plain:
        with pytest.raises(RequestError, match="transactional_id"):
            await plain.begin()
        with pytest.raises(KafkaError, match="topics create"):
            await plain.send("absent", b"v")
    with pytest.raises(RequestError, match="closed"):
        await plain.flush()
    for wrong, said in (
        ({"acks": 2}, "acks=2: choose 'all'"),
        ({"transactional_id": "x", "acks": 1}, "acks"),
        ({"compression": "brotli"}, "brotli"),
        ({"transactional_id": ""}, "transactional_id"),
    ):
        with pytest.raises(ValueError, match=said):
            Producer(broker.bootstrap, **wrong)


async def test_no_broker_is_said_in_one_sentence() -> None:
    with pytest.raises(
        ConnectionFailed, match=r"cannot reach any of 127\.0\.0\.1:1: connection refused: is the node running"
    ):
        async with Producer("127.0.0.1:1"):
            pass


async def test_an_id_that_the_cluster_refuses_ends_the_start(broker: Any) -> None:
    broker.script(ApiKey.INIT_PRODUCER_ID, {"error_code": ErrorCode.INVALID_TRANSACTION_TIMEOUT})
    with pytest.raises(FatalError, match=r"transaction\.max\.timeout\.ms"):
        async with transactional(broker, transaction_timeout_ms=10**9):
            pass


async def test_a_record_larger_than_the_memory_is_refused(broker: Any) -> None:
    async with Producer(broker.bootstrap, memory_bytes=1000, linger_ms=0) as producer:
        with pytest.raises(RequestError, match="memory_bytes=1000"):
            await producer.send("t", b"x" * 5000)
        assert (await producer.send_and_wait("t", b"x" * 800, partition=0)).offset == 0


async def test_a_producer_of_a_recreated_topic_sends_the_rest_in_order(broker: Any) -> None:
    async with Producer(broker.bootstrap, linger_ms=0, batch_bytes=100) as producer:
        for number in range(10):
            await producer.send_and_wait("t", b"old %d" % number, partition=0)
            await producer.send_and_wait("other", b"%d" % number, partition=0)
        broker.recreate("t")
        futures = [await producer.send("t", b"%02d" % number, partition=0) for number in range(40)]
        futures_of_other = [
            await producer.send("other", b"%d" % number, partition=0) for number in range(10, 20)
        ]
        await producer.flush()
    assert [future.result().offset for future in futures] == list(range(40))
    assert [value for _, value in broker.logs["t", 0]] == [b"%02d" % number for number in range(40)]
    assert [future.result().offset for future in futures_of_other] == list(range(10, 20))
    assert len(broker.sent(ApiKey.INIT_PRODUCER_ID)) == 2


@pytest.mark.parametrize("version", [1, 2])
async def test_a_transaction_into_a_recreated_topic_can_be_aborted_and_repeated(
    broker: Any, version: int
) -> None:
    broker.transaction_version = version
    async with transactional(broker) as producer:
        await producer.begin()
        await producer.send_and_wait("t", b"old", partition=0)
        broker.recreate("t")
        await producer.send("t", b"new", partition=0)
        with pytest.raises(AbortableError, match="abort"):
            await producer.commit()
        assert producer.state is State.ABORTABLE_ERROR
        await producer.abort()
        async with producer.transaction():
            for number in range(3):
                await producer.send("t", b"%d" % number, partition=0)
    assert [value for _, value in broker.logs["t", 0]] == [b"0", b"1", b"2"]
    assert [committed for _, _, committed in broker.outcomes][-1] is True
