"""The end of a producer: every waiting caller gets its result or an error, and the producer accepts no record
afterwards."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest
from tidegate.client import blocking
from tidegate.client.connecting.errors import RequestError
from tidegate.client.producing.producer import Producer
from tidegate.client.producing.sender import Sender
from tidegate.client.producing.transaction_manager import State
from tidegate.tests.eventually import eventually
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import KafkaError

SENDERS = 4


async def test_a_producer_takes_nothing_before_start_and_after_close(broker: Any) -> None:
    producer = Producer(broker.bootstrap)
    with pytest.raises(RequestError, match="not started"):
        await producer.send("t", b"early")
    await producer.start()
    await producer.close()
    await producer.close()
    for call in (
        lambda: producer.send("t", b"late"),
        producer.flush,
        producer.start,
        lambda: producer.partitions_for("t"),
    ):
        with pytest.raises(RequestError, match="closed"):
            await call()
    never = Producer(broker.bootstrap)
    await never.close()
    with pytest.raises(RequestError, match="closed"):
        await never.start()
    assert broker.logs == {}


async def test_close_sends_what_is_left_and_two_closes_at_once_are_one(broker: Any) -> None:
    producer = Producer(broker.bootstrap, linger_ms=10_000)
    await producer.start()
    futures = [await producer.send("t", b"%d" % number, partition=0) for number in range(50)]
    await asyncio.gather(producer.close(), producer.close())
    assert [future.result().offset for future in futures] == list(range(50))


async def test_a_cancelled_close_fails_unsent_records_and_releases_waiters(
    broker: Any, misbehaviour: Any
) -> None:
    broker.script(ApiKey.PRODUCE, *[misbehaviour.SILENCE] * 50)
    producer = Producer(broker.bootstrap, linger_ms=0, memory_bytes=2000, batch_bytes=500)
    await producer.start()
    future = await producer.send("t", b"x" * 1000, partition=0)
    for_room = asyncio.create_task(producer.send("t", b"x" * 1500, partition=0))
    flushing = asyncio.create_task(producer.flush())
    await asyncio.sleep(0.05)  # both wait now; if not yet, they are refused at once, which is right, too
    closing = asyncio.create_task(producer.close())
    with pytest.raises(RequestError, match="closed"):
        await asyncio.wait_for(for_room, 30)
    assert not closing.done()
    assert not future.done()
    closing.cancel()
    await asyncio.wait({closing, flushing}, timeout=30)
    assert closing.cancelled()
    assert flushing.done()
    with pytest.raises(KafkaError, match="closed before"):
        future.result()
    with pytest.raises(RequestError, match="closed"):
        await producer.send("t", b"late")


async def test_a_send_that_waits_for_metadata_fails_when_the_producer_closes(
    broker: Any, misbehaviour: Any
) -> None:
    producer = Producer(broker.bootstrap)
    await producer.start()
    broker.script(ApiKey.METADATA, misbehaviour.SILENCE)
    sending = asyncio.create_task(producer.send("t", b"v"))
    async with asyncio.timeout(30):
        await eventually(lambda: len(broker.sent(ApiKey.METADATA)) >= 2)
        await producer.close()
        with pytest.raises(RequestError, match="closed"):
            await sending


async def test_close_waits_for_the_answer_of_a_commit_in_flight(broker: Any) -> None:
    producer = Producer(broker.bootstrap, transactional_id="tx", linger_ms=0)
    await producer.start()
    await producer.begin()
    await producer.send("t", b"v")
    committing = asyncio.create_task(producer.commit())
    await asyncio.sleep(0)
    await producer.close()
    await committing
    assert [committed for _, _, committed in broker.outcomes] == [True]
    assert producer.state is State.READY


async def test_a_close_that_fails_nothing_would_leave_its_callers_waiting(
    broker: Any, misbehaviour: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The safeguard is needed: with it switched off, a record of a silent broker has no fate after close."""
    monkeypatch.setattr(Sender, "_fail_everything", lambda self, error: None)
    broker.script(ApiKey.PRODUCE, misbehaviour.SILENCE)
    producer = Producer(broker.bootstrap, linger_ms=0)
    await producer.start()
    future = await producer.send("t", b"v")
    closing = asyncio.create_task(producer.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    assert not future.done()


async def test_closing_ends_every_record_of_every_thread(broker: Any) -> None:
    producer = blocking.Producer(broker.bootstrap, linger_ms=0)
    futures: list[Future[Any]] = []
    refusals: list[BaseException] = []
    enough = threading.Event()

    def send() -> None:
        try:
            while True:
                futures.append(producer.send("t", b"x" * 300))
                if len(futures) > 100:
                    enough.set()
        except BaseException as error:
            refusals.append(error)

    def play() -> None:
        producer.start()
        threads = [threading.Thread(target=send, daemon=True) for _ in range(SENDERS)]
        for thread in threads:
            thread.start()
        assert enough.wait(20)
        producer.close()
        producer.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()

    await asyncio.to_thread(play)
    assert len(refusals) == SENDERS, refusals
    assert all(isinstance(error, RequestError) for error in refusals), refusals
    assert all(future.done() for future in futures)
    assert sum(len(log) for log in broker.logs.values()) == sum(
        future.exception() is None for future in futures
    )


async def test_calls_after_close_say_so_in_all_blocking_clients(broker: Any) -> None:
    def play() -> None:
        with blocking.Producer(broker.bootstrap) as producer:
            pass
        with blocking.Consumer(broker.bootstrap) as consumer:
            consumer.assign([("t", 0)])
        with blocking.Admin(broker.bootstrap) as admin:
            pass
        for client in (producer, consumer, admin):
            client.close()
        for call in (
            lambda: producer.send("t", b"v"),
            producer.flush,
            producer.start,
            consumer.poll,
            admin.list_topics,
        ):
            with pytest.raises(RequestError, match="closed: make a new one"):
                call()

    await asyncio.to_thread(play)


async def test_cancelling_an_acknowledgement_changes_nothing(broker: Any) -> None:
    def play() -> None:
        with blocking.Producer(broker.bootstrap, linger_ms=50) as producer:
            future = producer.send("t", b"v", partition=0)
            assert not future.cancel()
            assert not future.cancelled()
            assert future.result(10).offset == 0

    await asyncio.to_thread(play)


async def test_a_call_from_the_clients_own_thread_is_refused_and_does_not_hang(broker: Any) -> None:
    said: list[BaseException] = []

    def play() -> None:
        with blocking.Producer(broker.bootstrap, linger_ms=200) as producer:

            def again(_: Any) -> None:
                for call in (producer.flush, producer.close):
                    try:
                        call()
                    except RequestError as error:
                        said.append(error)

            future = producer.send("t", b"v")
            future.add_done_callback(again)
            assert future.result(10).offset == 0

    await asyncio.wait_for(asyncio.to_thread(play), 20)
    assert len(said) == 2
    assert all("another thread" in str(error) for error in said)
