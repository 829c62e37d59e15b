"""librdkafka without Python in its way: the library that confluent-kafka brings, driven through ctypes.

The throughput runs must load the broker and not the interpreter, so records are given to librdkafka ten
thousand at a time and taken from it without becoming Python objects.  Both are the plain C API of the very
library that confluent-kafka uses.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

import confluent_kafka

PRODUCER, CONSUMER = 0, 1
CONF_OK = 0
COPY, BLOCK, PARTITION = 0x2, 0x4, 0x8
OFFSET_BEGINNING = -2
ERROR_BYTES = 512
WATERMARK_TIMEOUT_S = 10.0
BLOCK_RECORDS = 1000
"""Consecutive records for one partition."""


class RdKafkaError(Exception):
    """librdkafka refused something."""


class _Message(ctypes.Structure):
    """rd_kafka_message_t, whose layout is part of librdkafka's stable interface."""

    _fields_ = [
        ("err", c_int),
        ("rkt", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    ]


class _TopicPartition(ctypes.Structure):
    """rd_kafka_topic_partition_t."""

    _fields_ = [
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("err", c_int),
        ("private", c_void_p),
    ]


class _TopicPartitionList(ctypes.Structure):
    """rd_kafka_topic_partition_list_t."""

    _fields_ = [("count", c_int), ("size", c_int), ("elems", POINTER(_TopicPartition))]


def _load() -> ctypes.CDLL:
    package = Path(confluent_kafka.__file__).parent
    found = sorted((package.parent / "confluent_kafka.libs").glob("librdkafka*.so*"))
    if not found:
        raise RdKafkaError("this confluent-kafka brings no librdkafka of its own: install it from its wheel")
    library = ctypes.CDLL(str(found[0]))
    list_pointer = POINTER(_TopicPartitionList)
    signatures: dict[str, tuple[object, list[object]]] = {
        "conf_new": (c_void_p, []),
        "conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
        "new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
        "destroy": (None, [c_void_p]),
        "topic_new": (c_void_p, [c_void_p, c_char_p, c_void_p]),
        "topic_destroy": (None, [c_void_p]),
        "produce_batch": (c_int, [c_void_p, c_int32, c_int, POINTER(_Message), c_int]),
        "flush": (c_int, [c_void_p, c_int]),
        "poll": (c_int, [c_void_p, c_int]),
        "outq_len": (c_int, [c_void_p]),
        "topic_partition_list_new": (list_pointer, [c_int]),
        "topic_partition_list_add": (POINTER(_TopicPartition), [list_pointer, c_char_p, c_int32]),
        "topic_partition_list_destroy": (None, [list_pointer]),
        "assign": (c_int, [c_void_p, list_pointer]),
        "position": (c_int, [c_void_p, list_pointer]),
        "poll_set_consumer": (c_int, [c_void_p]),
        "queue_get_consumer": (c_void_p, [c_void_p]),
        "queue_destroy": (None, [c_void_p]),
        "consume_callback_queue": (c_int, [c_void_p, c_int, c_void_p, c_void_p]),
        "consumer_close": (c_int, [c_void_p]),
        "query_watermark_offsets": (
            c_int,
            [c_void_p, c_char_p, c_int32, POINTER(c_int64), POINTER(c_int64), c_int],
        ),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"rd_kafka_{name}")
        function.restype = result
        function.argtypes = arguments
    return library


_rd = _load()


class _Client:
    """A librdkafka instance."""

    def __init__(self, kind: int, settings: Mapping[str, object]) -> None:
        error = ctypes.create_string_buffer(ERROR_BYTES)
        configuration = _rd.rd_kafka_conf_new()
        for key, value in settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if (
                _rd.rd_kafka_conf_set(configuration, key.encode(), text.encode(), error, ERROR_BYTES)
                != CONF_OK
            ):
                raise RdKafkaError(error.value.decode())
        self._handle = _rd.rd_kafka_new(kind, configuration, error, ERROR_BYTES)
        if not self._handle:
            raise RdKafkaError(error.value.decode())

    def close(self) -> None:
        _rd.rd_kafka_destroy(self._handle)

    def end_offsets(self, topic: str, partitions: int) -> list[int]:
        """The high watermarks of partitions 0..n-1."""
        return [self._end_offset(topic, partition) for partition in range(partitions)]

    def _end_offset(self, topic: str, partition: int) -> int:
        low, high = c_int64(), c_int64()
        deadline = time.monotonic() + WATERMARK_TIMEOUT_S
        while True:
            code = _rd.rd_kafka_query_watermark_offsets(
                self._handle, topic.encode(), partition, byref(low), byref(high), 5_000
            )
            if not code:
                return high.value
            if time.monotonic() > deadline:
                raise RdKafkaError(f"no watermarks of {topic}-{partition}: error {code}")
            time.sleep(0.02)  # the leader of a new topic may not have applied its role yet


class BulkProducer(_Client):
    """Writes records of one size, as fast as the broker takes them."""

    def __init__(
        self, settings: Mapping[str, object], topic: str, partitions: int, record_bytes: int
    ) -> None:
        super().__init__(PRODUCER, settings)
        self._topic = _rd.rd_kafka_topic_new(self._handle, topic.encode(), None)
        # nothing to compress
        self._payload = ctypes.create_string_buffer(os.urandom(record_bytes), record_bytes)
        self._count = BLOCK_RECORDS * partitions
        self._template = (_Message * self._count)()
        for number in range(self._count):
            message = self._template[number]
            message.partition = number // BLOCK_RECORDS
            message.payload = ctypes.addressof(self._payload)
            message.len = record_bytes
        self._messages = (_Message * self._count)()

    def run(self, seconds: float) -> int:
        """Produces for so long; the number of records handed over.  Call `flush` next."""
        deadline = time.perf_counter() + seconds
        records = 0
        while time.perf_counter() < deadline:
            # each call marks its messages
            ctypes.memmove(self._messages, self._template, ctypes.sizeof(self._template))
            taken = _rd.rd_kafka_produce_batch(
                self._topic, -1, COPY | BLOCK | PARTITION, self._messages, self._count
            )
            if taken != self._count:
                raise RdKafkaError(
                    f"{self._count - taken} records refused, the last with error {self._messages[-1].err}"
                )
            records += taken
            _rd.rd_kafka_poll(self._handle, 0)
        return records

    def flush(self, timeout_s: float) -> None:
        """Waits for all acknowledgements.  Raises RdKafkaError when some are missing."""
        code = _rd.rd_kafka_flush(self._handle, int(timeout_s * 1000))
        if code or _rd.rd_kafka_outq_len(self._handle):
            raise RdKafkaError(
                f"{_rd.rd_kafka_outq_len(self._handle)} records unacknowledged after {timeout_s:g} s"
            )

    def close(self) -> None:
        _rd.rd_kafka_topic_destroy(self._topic)
        super().close()


class BulkConsumer(_Client):
    """Reads whole partitions from their beginning."""

    def __init__(self, settings: Mapping[str, object], topic: str, partitions: int) -> None:
        super().__init__(CONSUMER, settings)
        self._list = _rd.rd_kafka_topic_partition_list_new(partitions)
        for partition in range(partitions):
            _rd.rd_kafka_topic_partition_list_add(
                self._list, topic.encode(), partition
            ).contents.offset = OFFSET_BEGINNING
        self._partitions = partitions
        # The callback of every record must be C code that does nothing: this function only looks whether it
        # is an error.
        self._ignore = ctypes.cast(_rd.rd_kafka_message_errstr, c_void_p)

    def run(self, ends: list[int], timeout_s: float) -> int:
        """Reads until every partition's position is at its end; the number of records."""
        _rd.rd_kafka_poll_set_consumer(self._handle)
        code = _rd.rd_kafka_assign(self._handle, self._list)
        if code:
            raise RdKafkaError(f"assign: error {code}")
        queue = _rd.rd_kafka_queue_get_consumer(self._handle)
        deadline = time.perf_counter() + timeout_s
        want, seen = sum(ends), 0
        try:
            while seen < want or self._positions() != ends:
                seen += max(0, _rd.rd_kafka_consume_callback_queue(queue, 100, self._ignore, None))
                if time.perf_counter() > deadline:
                    raise RdKafkaError(
                        f"read {seen} of {want} records in {timeout_s:g} s, to {self._positions()} of {ends}"
                    )
        finally:
            _rd.rd_kafka_queue_destroy(queue)
        return want

    def _positions(self) -> list[int]:
        _rd.rd_kafka_position(self._handle, self._list)
        return [self._list.contents.elems[number].offset for number in range(self._partitions)]

    def close(self) -> None:
        _rd.rd_kafka_consumer_close(self._handle)
        _rd.rd_kafka_topic_partition_list_destroy(self._list)
        super().close()
