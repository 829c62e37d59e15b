"""The workloads of the comparison.  They see a cluster only through its bootstrap addresses, as any client
does.

Every workload checks its own result: the records must exist afterwards, or the run fails.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from .librdkafka import BulkConsumer, BulkProducer
from .process_cost import cpu_seconds

PARTITIONS = 6
LINGER_MS = 5
FLUSH_TIMEOUT_S = 90.0
CHECK_TIMEOUT_S = 10.0
QUEUE_KIB = 64 * 1024
"""The producer's buffer: enough to keep five full batches a partition in flight."""
TRANSACTION_RECORDS = 100
TRANSACTION_PARTITIONS = 3
MIB = 1 << 20


class WorkloadError(Exception):
    """A workload's own check failed."""


@dataclass(slots=True, frozen=True)
class Target:
    """One thing to measure: a cluster, and how its topics are made."""

    name: str
    bootstrap: str
    pids: Sequence[int]
    replicas: int
    topic_config: Mapping[str, str]
    login: Mapping[str, str] = field(default_factory=dict)
    """How its clients log in, in librdkafka's names; empty: they do not."""


@dataclass(slots=True)
class Cost:
    """Wall-clock seconds of a measured stretch, and the CPU seconds of brokers and client in it."""

    seconds: float = 0.0
    broker_cpu: float = 0.0
    client_cpu: float = 0.0


@contextmanager
def metered(target: Target) -> Iterator[Cost]:
    """Measures the block."""
    cost = Cost()
    broker, client, begin = cpu_seconds(target.pids), time.process_time(), time.perf_counter()
    yield cost
    cost.seconds = time.perf_counter() - begin
    cost.client_cpu = time.process_time() - client
    cost.broker_cpu = cpu_seconds(target.pids) - broker


def quiet(*_: object) -> None:
    """Takes librdkafka's connection errors: what matters shows in the results."""


def settings(target: Target, **more: object) -> dict[str, object]:
    chosen = {key.replace("_", "."): value for key, value in more.items()}
    return {"bootstrap.servers": target.bootstrap, "log_level": 0, **target.login, **chosen}


def create_topic(target: Target, name: str, partitions: int, timeout_s: float = 30.0) -> None:
    """Creates the topic and waits until every partition has a leader that answers."""
    deadline = time.monotonic() + timeout_s
    admin = AdminClient(settings(target) | {"error_cb": quiet})  # type: ignore[arg-type]
    topic = NewTopic(name, partitions, target.replicas, config=dict(target.topic_config))
    while True:
        try:
            admin.create_topics([topic], operation_timeout=5, request_timeout=10)[name].result(15)
        except KafkaException as error:
            code = error.args[0].code()
            if code != KafkaError.TOPIC_ALREADY_EXISTS:
                if time.monotonic() > deadline:
                    raise WorkloadError(f"{target.name}: topic {name} could not be made: {error}") from error
                time.sleep(0.05)
                continue
        break
    while True:
        found = admin.list_topics(name, timeout=10).topics[name]
        if len(found.partitions) == partitions and all(
            part.leader >= 0 and len(part.isrs) == target.replicas for part in found.partitions.values()
        ):
            return
        if time.monotonic() > deadline:
            raise WorkloadError(f"{target.name}: {name} has no leaders after {timeout_s:g} s")
        time.sleep(0.05)


def delete_topic(target: Target, name: str) -> None:
    admin = AdminClient(settings(target) | {"error_cb": quiet})  # type: ignore[arg-type]  # must live until the answer arrives
    admin.delete_topics([name])[name].result(30)


@contextmanager
def topic(target: Target, label: str, partitions: int) -> Iterator[str]:
    """A fresh topic for one run, deleted afterwards."""
    name = f"{label}-{os.urandom(4).hex()}"
    create_topic(target, name, partitions)
    try:
        yield name
    finally:
        delete_topic(target, name)


Figures = dict[str, float]


def bulk(
    target: Target, seconds: float, record_bytes: int, *, idempotent: bool, consume: bool
) -> tuple[Figures, Figures | None]:
    """Produces as fast as it goes with acks=all, then reads everything back when `consume`."""
    with topic(target, "bulk", PARTITIONS) as name:
        produced, ends = _bulk_produce(target, name, seconds, record_bytes, idempotent)
        return produced, _bulk_consume(target, name, ends, record_bytes) if consume else None


def _bulk_produce(
    target: Target, name: str, seconds: float, size: int, idempotent: bool
) -> tuple[Figures, list[int]]:
    conf = settings(target, acks="all", linger_ms=LINGER_MS, enable_idempotence=idempotent)
    conf |= {"queue.buffering.max.kbytes": QUEUE_KIB, "queue.buffering.max.messages": 1_000_000}
    producer = BulkProducer(conf, name, PARTITIONS, size)
    try:
        producer.end_offsets(name, PARTITIONS)  # connects to the leaders
        with metered(target) as cost:
            records = producer.run(seconds)
            producer.flush(FLUSH_TIMEOUT_S)
        ends = producer.end_offsets(name, PARTITIONS)
    finally:
        producer.close()
    if sum(ends) < records or (idempotent and sum(ends) != records):
        raise WorkloadError(f"{target.name}: {records} records were acknowledged and {sum(ends)} are there")
    return _throughput(records, size, cost), ends


def _bulk_consume(target: Target, name: str, ends: list[int], size: int) -> Figures:
    conf = settings(target, group_id="bench", enable_auto_commit=False, check_crcs=False)
    consumer = BulkConsumer(conf, name, PARTITIONS)
    try:
        consumer.end_offsets(name, PARTITIONS)
        with metered(target) as cost:
            records = consumer.run(ends, FLUSH_TIMEOUT_S)
    finally:
        consumer.close()
    return _throughput(records, size, cost)


def _throughput(records: int, size: int, cost: Cost) -> Figures:
    return {
        "records_per_s": records / cost.seconds,
        "mb_per_s": records * size / cost.seconds / 1e6,
        "broker_cpu_s_per_million": cost.broker_cpu / records * 1e6,
        "broker_cores": cost.broker_cpu / cost.seconds,
        "client_cores": cost.client_cpu / cost.seconds,
    }


class _Delivery:
    """Takes the acknowledgements of a producer; the first failure counts."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError | None, _: Message) -> None:
        self.acknowledged += 1
        self.error = self.error or error


def latency(target: Target, seconds: float, *, idempotent: bool = False, record_bytes: int = 100) -> Figures:
    """One record a request, one request at a time, acks=all: from produce() to its acknowledgement, in
    milliseconds."""
    payload = os.urandom(record_bytes)
    delivery = _Delivery()
    with topic(target, "latency", 1) as name:
        conf = settings(target, acks="all", linger_ms=0, enable_idempotence=idempotent)
        producer = Producer({**conf, "error_cb": quiet, "on_delivery": delivery})

        def once() -> None:
            delivery.acknowledged = 0
            producer.produce(name, payload, partition=0)
            while not delivery.acknowledged:
                producer.poll(1.0)
            if delivery.error is not None:
                raise WorkloadError(f"{target.name}: {delivery.error}")

        for _ in range(20):
            once()
        times: list[float] = []
        with metered(target) as cost:
            deadline = time.perf_counter() + seconds
            while (begin := time.perf_counter()) < deadline:
                once()
                times.append(time.perf_counter() - begin)
        producer.flush(FLUSH_TIMEOUT_S)
    cuts = statistics.quantiles(times, n=100)
    return {
        "p50_ms": cuts[49] * 1e3,
        "p99_ms": cuts[98] * 1e3,
        "requests_per_s": len(times) / cost.seconds,
        "broker_cpu_us_per_request": cost.broker_cpu / len(times) * 1e6,
    }


def transactions(target: Target, seconds: float, producers: int, record_bytes: int = 100) -> Figures:
    """Transactions of 100 records over 3 partitions, one after another in each of `producers` threads."""
    payload = os.urandom(record_bytes)
    with topic(target, "txn", TRANSACTION_PARTITIONS) as name:
        clients = [_transactional(target, f"{name}-{number}") for number in range(producers)]
        for client in clients:
            _transaction(client, name, payload)  # the first one makes the connections
        done = [0] * producers
        failures: list[BaseException] = []
        with metered(target) as cost:
            deadline = time.perf_counter() + seconds

            def work(number: int) -> None:
                try:
                    while time.perf_counter() < deadline:
                        _transaction(clients[number], name, payload)
                        done[number] += 1
                except BaseException as error:  # handed to the main thread
                    failures.append(error)

            _run_threads(work, producers)
        if failures:
            raise WorkloadError(f"{target.name}: a transaction failed: {failures[0]!r}")
        count = sum(done)
        # each ends with a marker a partition
        want = (count + producers) * (TRANSACTION_RECORDS + TRANSACTION_PARTITIONS)
        _await_end(target, name, want)
    return {
        "transactions_per_s": count / cost.seconds,
        "broker_cpu_ms_per_transaction": cost.broker_cpu / count * 1e3,
        "broker_cores": cost.broker_cpu / cost.seconds,
    }


def _await_end(target: Target, name: str, want: int) -> None:
    """The last markers may come after the answer to the commit that decided them."""
    consumer = Consumer({**settings(target, group_id="bench"), "error_cb": quiet})
    deadline = time.monotonic() + CHECK_TIMEOUT_S
    try:
        while True:
            parts = [TopicPartition(name, number) for number in range(TRANSACTION_PARTITIONS)]
            ends = [consumer.get_watermark_offsets(part, 10)[1] for part in parts]
            if sum(ends) == want:
                return
            if sum(ends) > want or time.monotonic() > deadline:
                raise WorkloadError(
                    f"{target.name}: {want} records and markers were written, {ends} = {sum(ends)} are there"
                )
            time.sleep(0.02)
    finally:
        consumer.close()


def _transactional(target: Target, transactional_id: str) -> Producer:
    conf = settings(target, transactional_id=transactional_id, linger_ms=LINGER_MS)
    producer = Producer({**conf, "error_cb": quiet})
    producer.init_transactions(30)
    return producer


def _transaction(producer: Producer, name: str, payload: bytes) -> None:
    producer.begin_transaction()
    for number in range(TRANSACTION_RECORDS):
        producer.produce(name, payload, partition=number % TRANSACTION_PARTITIONS)
    producer.commit_transaction(30)


def _run_threads(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
