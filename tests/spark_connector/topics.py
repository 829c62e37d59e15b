"""The topics that both read, and what happens to them."""

from __future__ import annotations

import time
from collections.abc import Callable

from tidegate.client.blocking import Admin, NewTopic, Producer
from tidegate.spark import count_committed

FIRST_MS = 1_700_000_000_000
RECORDS = 40  # of each partition of `plain`
COMPACTED_TOPIC = "compacted"  # which takes no record without a key
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}
CLEANED_S = 60.0


class Topics:
    """Of one cluster."""

    def __init__(self, bootstrap: str, grpc_address: str) -> None:
        self.admin = Admin(bootstrap)
        self._bootstrap = bootstrap
        self._grpc_address = grpc_address
        self._sent: dict[str, int] = {}
        self._open: list[Producer] = []

    def close(self) -> None:
        for producer in self._open:
            producer.abort()
            producer.close()
        self.admin.close()

    def create(self, name: str, partitions: int = 2, **config: str) -> None:
        settings = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, settings)])

    def send(self, name: str, count: int, *, partition: int | None = None, **settings: str) -> None:
        """Records whose timestamps are a second apart, to a partition or to all in turn; some without key,
        without value, with headers."""
        with Producer(self._bootstrap, **settings) as producer:
            self._send(producer, name, count, partition)

    def transaction(self, name: str, count: int, *, commit: bool = True) -> None:
        with Producer(self._bootstrap, transactional_id=f"{name}-writer") as producer:
            producer.begin()
            self._send(producer, name, count, None)
            producer.flush()
            (producer.commit if commit else producer.abort)()
        self._until_decided(name)

    def begin(self, name: str, count: int) -> None:
        """A transaction that stays open until all is closed."""
        producer = Producer(self._bootstrap, transactional_id=f"{name}-open", transaction_timeout_ms=900_000)
        producer.start()
        self._open.append(producer)
        producer.begin()
        self._send(producer, name, count, None)
        producer.flush()

    def delete_records(self, name: str, before: int) -> None:
        (found,) = self.admin.describe_topics([name])
        self.admin.delete_records({(name, number): before for number in range(len(found.partitions))})

    def fill(self) -> None:
        """The topics of the batch reads."""
        for name in ("plain", "like-a", "like-b"):
            self.create(name, 3)
            self.send(name, 3 * RECORDS)
        self.create("empty")
        self.create("stamped-by-broker", message_timestamp_type="LogAppendTime")
        self.send("stamped-by-broker", 20)
        self.create("compressed")
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            self.send("compressed", 30, compression=codec)
        self.create("transactions")
        for commit in (True, False, True, False):
            self.transaction("transactions", 10, commit=commit)
            self.send("transactions", 4)
        self.create("undecided")
        self.send("undecided", 6)
        self.begin("undecided", 4)
        self.send("undecided", 6)
        self.create("shortened")
        self.send("shortened", 40)
        self.delete_records("shortened", 10)
        self._compact(COMPACTED_TOPIC)

    def _compact(self, name: str) -> None:
        self.create(name, 1)
        self.admin.alter_config(name, dict(COMPACTED))
        for number in range(60):
            self.transaction(name, 10, commit=number % 3 > 0)
        written = 400
        self._until(lambda: self._count(name) < written / 2, f"{name} was not compacted")
        self.admin.alter_config(name, {"min.cleanable.dirty.ratio": "1"})
        counts = [self._count(name)]
        while len(counts) < 3 or counts[-1] != counts[-3]:  # a cleaning that runs ends
            time.sleep(0.5)
            counts.append(self._count(name))

    def _count(self, name: str) -> int:
        return count_committed(self._grpc_address, name)

    def _send(self, producer: Producer, name: str, count: int, partition: int | None) -> None:
        partitions = producer.partitions_for(name)
        for _ in range(count):
            number = self._sent[name] = self._sent.get(name, -1) + 1
            producer.send(
                name,
                None if number % 11 == 10 else b"value %d" % number,
                None if number % 7 == 6 and name != COMPACTED_TOPIC else b"key %d" % (number % 9),
                partition=partitions[number % len(partitions)] if partition is None else partition,
                headers=[("n", b"%d" % number), ("n", b"again")] if number % 5 == 0 else (),
                timestamp_ms=FIRST_MS + 1000 * (number // len(partitions)),
            )

    def _until_decided(self, name: str) -> None:
        """A commit is answered before its markers are written (docs/semantics.md T11)."""
        (found,) = self.admin.describe_topics([name])
        places = [(name, number) for number in range(len(found.partitions))]

        def decided() -> bool:
            return self.admin.end_offsets(places) == self.admin.end_offsets(places, read_committed=True)

        self._until(decided, f"a transaction of {name} has no markers")

    def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + CLEANED_S
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(otherwise)
            time.sleep(0.02)
