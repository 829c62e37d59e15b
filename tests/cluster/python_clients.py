"""The three Kafka clients of Python behind one small interface: what the same tests need of each of them.

A `Client` makes producers and readers; `send` returns when the records are acknowledged.  A `Member` is a
reader of a group at work in a thread of its own, as an application would have it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

PATIENCE_S = 30.0
POLL_S = 0.05

Found = list[tuple[int, int, bytes]]
"""(partition, offset, value) of records."""


def until(what: str, condition: Callable[[], bool]) -> None:
    """Waits until the condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.01)


class Producer(ABC):
    """A transactional producer, initialised."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, partition: int, values: Sequence[bytes]) -> None: ...

    @abstractmethod
    def move(self, offsets: Mapping[tuple[str, int], int], group: Any) -> None:
        """Offsets into the transaction, for what a reader's `group` says."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Reader(ABC):
    """A consumer of one topic: with a group it subscribes, without one it reads all partitions.  Used by one
    thread."""

    @abstractmethod
    def poll(self) -> Found: ...

    @abstractmethod
    def assigned(self) -> set[int]: ...

    @abstractmethod
    def commit(self, offsets: Mapping[int, tuple[int, str]] | None = None) -> None:
        """Positions, or {partition: (offset, metadata)}."""

    @abstractmethod
    def committed(self, partition: int) -> tuple[int, str] | None: ...

    @abstractmethod
    def seek(self, partition: int, offset: int) -> None: ...

    @abstractmethod
    def group(self) -> Any:
        """The group metadata that the reader received (KIP-447)."""

    @abstractmethod
    def offset_at(self, partition: int, time_ms: int) -> int | None: ...

    @abstractmethod
    def close(self) -> None: ...


class Client(ABC):
    """`fenced`, `left_behind`, `no_offset`: how its errors say so."""

    bootstrap: str
    fenced: tuple[str, ...]
    left_behind: tuple[str, ...] = ()
    no_offset: tuple[str, ...]

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @abstractmethod
    def producer(self, transactional_id: str, timeout_ms: int = 60_000) -> Producer: ...

    @abstractmethod
    def reader(self, topic: str, group: str | None, **settings: Any) -> Reader:
        """Settings: `assignor` ("range", "cooperative-sticky"), `instance`, `reset` ("earliest")."""

    @staticmethod
    def name_of(error: BaseException) -> str:
        return type(error).__name__

    def refusal(self, action: Callable[[], object]) -> str:
        """How the client calls what goes wrong, "" when nothing does."""
        try:
            action()
        except Exception as error:
            return self.name_of(error)
        return ""


class ConfluentKafka(Client):
    """librdkafka."""

    fenced = ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
    left_behind = ("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID")
    no_offset = ("_NO_OFFSET", "_AUTO_OFFSET_RESET")

    @staticmethod
    def name_of(error: BaseException) -> str:
        from confluent_kafka import KafkaException

        return str(error.args[0].name()) if isinstance(error, KafkaException) else type(error).__name__

    def producer(self, transactional_id: str, timeout_ms: int = 60_000) -> Producer:
        return _ConfluentProducer(self.bootstrap, transactional_id, timeout_ms)

    def reader(self, topic: str, group: str | None, **settings: Any) -> Reader:
        return _ConfluentReader(self.bootstrap, topic, group, **settings)


class _ConfluentProducer(Producer):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        from confluent_kafka import Producer

        identity = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **identity})
        self._producer.init_transactions(PATIENCE_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        from confluent_kafka import KafkaException

        failures: list[Any] = []
        for value in values:
            self._producer.produce(
                topic,
                value,
                partition=partition,
                on_delivery=lambda error, _message: failures.append(error) if error else None,
            )
        assert self._producer.flush(PATIENCE_S) == 0
        if failures:
            raise KafkaException(failures[0])

    def move(self, offsets: Mapping[tuple[str, int], int], group: Any) -> None:
        from confluent_kafka import TopicPartition

        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        self._producer.send_offsets_to_transaction(places, group, PATIENCE_S)

    def commit(self) -> None:
        self._producer.commit_transaction(PATIENCE_S)

    def abort(self) -> None:
        self._producer.abort_transaction(PATIENCE_S)

    def close(self) -> None:
        del self._producer  # it has no other end


class _ConfluentReader(Reader):
    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str | None,
        assignor: str = "range",
        instance: str | None = None,
        reset: str = "earliest",
    ) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group or "none",
            "auto.offset.reset": "error" if reset == "none" else reset,
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 300,
            "session.timeout.ms": 10_000,
            "fetch.wait.max.ms": 100,
            "partition.assignment.strategy": assignor,
        }
        if instance is not None:
            settings["group.instance.id"] = instance
        self.consumer = Consumer(settings)
        self._topic = topic
        if group is None:
            partitions = self.consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
            self.consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
        else:
            self.consumer.subscribe([topic])

    def poll(self) -> Found:
        from confluent_kafka import KafkaError, KafkaException

        found: Found = []
        for message in self.consumer.consume(500, POLL_S):
            error = message.error()
            if error is None:
                found.append((message.partition(), message.offset(), message.value()))  # type: ignore[arg-type]
            # it says so, and looks for the coordinator again
            elif error.code() != KafkaError.NOT_COORDINATOR:
                raise KafkaException(error)
        return found

    def assigned(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    def commit(self, offsets: Mapping[int, tuple[int, str]] | None = None) -> None:
        from confluent_kafka import TopicPartition

        if offsets is None:
            self.consumer.commit(asynchronous=False)
        else:
            places = [
                TopicPartition(self._topic, each, offset, text) for each, (offset, text) in offsets.items()
            ]
            self.consumer.commit(offsets=places, asynchronous=False)

    def committed(self, partition: int) -> tuple[int, str] | None:
        from confluent_kafka import TopicPartition

        (found,) = self.consumer.committed([TopicPartition(self._topic, partition)], PATIENCE_S)
        return None if found.offset < 0 else (found.offset, found.metadata or "")

    def seek(self, partition: int, offset: int) -> None:
        from confluent_kafka import TopicPartition

        self.consumer.seek(TopicPartition(self._topic, partition, offset))

    def group(self) -> Any:
        return self.consumer.consumer_group_metadata()

    def offset_at(self, partition: int, time_ms: int) -> int | None:
        from confluent_kafka import TopicPartition

        (found,) = self.consumer.offsets_for_times(
            [TopicPartition(self._topic, partition, time_ms)], PATIENCE_S
        )
        return None if found.offset < 0 else found.offset

    def close(self) -> None:
        self.consumer.close()


class KafkaPython(Client):
    """kafka-python."""

    fenced = ("ProducerFencedError", "InvalidProducerEpochError")
    left_behind = ("CommitFailedError", "IllegalGenerationError", "UnknownMemberIdError")
    no_offset = ("NoOffsetForPartitionError",)

    def producer(self, transactional_id: str, timeout_ms: int = 60_000) -> Producer:
        return _KafkaPythonProducer(self.bootstrap, transactional_id, timeout_ms)

    def reader(self, topic: str, group: str | None, **settings: Any) -> Reader:
        return _KafkaPythonReader(self.bootstrap, topic, group, **settings)


class _KafkaPythonProducer(Producer):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        from kafka import KafkaProducer

        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            linger_ms=5,
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        futures = [self._producer.send(topic, value, partition=partition) for value in values]
        self._producer.flush(PATIENCE_S)
        for future in futures:
            future.get(PATIENCE_S)

    def move(self, offsets: Mapping[tuple[str, int], int], group: Any) -> None:
        from kafka import TopicPartition
        from kafka.structs import OffsetAndMetadata

        places = {
            TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()
        }
        self._producer.send_offsets_to_transaction(places, group)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(1)


class _KafkaPythonReader(Reader):
    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str | None,
        assignor: str = "range",
        instance: str | None = None,
        reset: str = "earliest",
    ) -> None:
        from kafka import KafkaConsumer, TopicPartition
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor

        assignors = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}
        self.consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            group_instance_id=instance,
            auto_offset_reset=reset,
            enable_auto_commit=False,
            isolation_level="read_committed",
            heartbeat_interval_ms=300,
            session_timeout_ms=10_000,
            fetch_max_wait_ms=100,
            partition_assignment_strategy=[assignors[assignor]],
        )
        self._topic = topic
        if group is None:
            self.consumer.assign(
                [TopicPartition(topic, each) for each in self.consumer.partitions_for_topic(topic)]
            )
        else:
            self.consumer.subscribe([topic])

    def _place(self, partition: int) -> Any:
        from kafka import TopicPartition

        return TopicPartition(self._topic, partition)

    def poll(self) -> Found:
        found = self.consumer.poll(int(POLL_S * 1000)).values()
        return [(record.partition, record.offset, record.value) for records in found for record in records]

    def assigned(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    def commit(self, offsets: Mapping[int, tuple[int, str]] | None = None) -> None:
        from kafka.structs import OffsetAndMetadata

        if offsets is None:
            self.consumer.commit()
        else:
            places = {
                self._place(each): OffsetAndMetadata(offset, text, -1)
                for each, (offset, text) in offsets.items()
            }
            self.consumer.commit(places)

    def committed(self, partition: int) -> tuple[int, str] | None:
        found = self.consumer.committed(self._place(partition), metadata=True)
        return None if found is None or found.offset < 0 else (found.offset, found.metadata)

    def seek(self, partition: int, offset: int) -> None:
        self.consumer.seek(self._place(partition), offset)

    def group(self) -> Any:
        return self.consumer.group_metadata()

    def offset_at(self, partition: int, time_ms: int) -> int | None:
        place = self._place(partition)
        found = self.consumer.offsets_for_times({place: time_ms})[place]
        return None if found is None else int(found.offset)

    def close(self) -> None:
        self.consumer.close()


class Aiokafka(Client):
    """aiokafka, its loop in a thread: members send heartbeats whatever the test is doing.  It knows no
    KIP-447."""

    fenced = ("ProducerFenced",)
    no_offset = ("NoOffsetForPartitionError",)

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def producer(self, transactional_id: str, timeout_ms: int = 60_000) -> Producer:
        return _AiokafkaProducer(self, transactional_id, timeout_ms)

    def reader(self, topic: str, group: str | None, **settings: Any) -> Reader:
        return _AiokafkaReader(self, topic, group, **settings)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


class _AiokafkaProducer(Producer):
    def __init__(self, client: Aiokafka, transactional_id: str, timeout_ms: int) -> None:
        from aiokafka import AIOKafkaProducer

        async def start() -> Any:
            producer = AIOKafkaProducer(
                bootstrap_servers=client.bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
            )
            await producer.start()
            return producer

        self._run = client.run
        self._producer = self._run(start())

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        async def send() -> None:
            await asyncio.gather(
                *[await self._producer.send(topic, value, partition=partition) for value in values]
            )

        self._run(send())

    def move(self, offsets: Mapping[tuple[str, int], int], group: Any) -> None:
        from aiokafka import TopicPartition

        places = {TopicPartition(*place): offset for place, offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(places, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        self._run(self._producer.stop())


class _AiokafkaReader(Reader):
    def __init__(
        self,
        client: Aiokafka,
        topic: str,
        group: str | None,
        assignor: str = "range",
        instance: str | None = None,
        reset: str = "earliest",
    ) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor

        assert assignor == "range"

        async def start() -> Any:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=client.bootstrap,
                group_id=group,
                group_instance_id=instance,
                auto_offset_reset=reset,
                enable_auto_commit=False,
                isolation_level="read_committed",
                heartbeat_interval_ms=300,
                fetch_max_wait_ms=100,
                partition_assignment_strategy=[RangePartitionAssignor],
            )
            consumer.subscribe([topic])  # without a group: all of it
            await consumer.start()
            return consumer

        self._group = group
        self._run = client.run
        self._topic = topic
        self.consumer = self._run(start())

    def _place(self, partition: int) -> Any:
        from aiokafka import TopicPartition

        return TopicPartition(self._topic, partition)

    def poll(self) -> Found:
        found = self._run(self.consumer.getmany(timeout_ms=int(POLL_S * 1000))).values()
        return [(record.partition, record.offset, record.value) for records in found for record in records]

    def assigned(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    def commit(self, offsets: Mapping[int, tuple[int, str]] | None = None) -> None:
        self._run(
            self.consumer.commit(
                None if offsets is None else {self._place(each): at for each, at in offsets.items()}
            )
        )

    def committed(self, partition: int) -> tuple[int, str] | None:
        """The offset alone: aiokafka does not show the metadata."""
        found = self._run(self.consumer.committed(self._place(partition)))
        return None if found is None else (found, "")

    def seek(self, partition: int, offset: int) -> None:
        self.consumer.seek(self._place(partition), offset)

    def group(self) -> Any:
        return self._group

    def offset_at(self, partition: int, time_ms: int) -> int | None:
        place = self._place(partition)
        found = self._run(self.consumer.offsets_for_times({place: time_ms}))[place]
        return None if found is None else int(found.offset)

    def close(self) -> None:
        self._run(self.consumer.stop())


Work = Callable[[Found, Reader], None]


class Member:
    """A reader of a group in a thread of its own.  `work` is given what it reads, `history` is how its
    assignment changed."""

    def __init__(self, make: Callable[[], Reader], work: Work = lambda found, reader: None) -> None:
        self.assigned: set[int] = set()
        self.history: list[set[int]] = []
        self.failure: Exception | None = None
        self._work = work
        self._running = True
        self._thread = threading.Thread(target=self._live, args=(make,), daemon=True)
        self._thread.start()

    def _live(self, make: Callable[[], Reader]) -> None:
        try:
            reader = make()
        except Exception as error:
            self.failure = error
            return
        try:
            while self._running:
                found = reader.poll()
                assigned = reader.assigned()
                if not self.history or self.history[-1] != assigned:
                    self.history.append(assigned)
                self.assigned = assigned
                if found:
                    self._work(found, reader)
        except Exception as error:
            self.failure = error
        finally:
            self.assigned = set()
            reader.close()

    def leave(self) -> None:
        self._running = False
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the member did not end"


def until_they_share(partitions: int, *members: Member) -> None:
    """Each member has its part, and every partition one reader."""

    def shared() -> bool:
        for member in members:
            if member.failure is not None:
                raise member.failure
        parts = [member.assigned for member in members]
        return all(parts) and sum(map(len, parts)) == partitions and len(set().union(*parts)) == partitions

    until(f"{len(members)} members share {partitions} partitions", shared)


@contextmanager
def leaving() -> Iterator[Callable[[Member], Member]]:
    """Members that are announced here leave at the end, if they have not left by then."""
    present: list[Member] = []

    def announce(member: Member) -> Member:
        present.append(member)
        return member

    try:
        yield announce
    finally:
        for member in present:
            member.leave()
